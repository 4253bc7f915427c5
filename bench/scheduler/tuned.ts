/** The tuner's result beside a grid of points: a training of a model's sizes on hosts made of network namespaces (root), at a
 *  network rate at which communication takes as long as the passes. The tuner, with its defaults, searches the document's space,
 *  scaled as the model is; then its point and a grid over that space are measured in rounds within the same processes. Two points
 *  are compared round by round, by the median of the ratios: other load of the machine in a round is in both.
 *
 *    npx tsx bench/scheduler/tuned.ts [--model vgg16] [--scale 0.02] [--hosts 2] [--rate-mbit 500] [--rounds 8]
 *        [--out bench/results/scheduler-tuned.json]
 *
 *  Build first. */
import { randomBytes } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import os from 'node:os';
import { fileURLToPath } from 'node:url';
import { formatBytes } from '../../src/base/settings/quantity.ts';
import { median } from '../../src/base/numbers.ts';
import { modelTrace, type ModelName } from '../../src/scheduler/model-traces.ts';
import { programArguments } from '../arguments.ts';
import { createNetwork, networkUnavailable } from '../network/network.ts';
import { rankVariables } from '../peers/place.ts';
import { runTogether } from '../peers/processes.ts';

const { values } = programArguments(import.meta.url, {
  options: {
    model: { type: 'string', default: 'vgg16' },
    scale: { type: 'string', default: '0.02' },
    hosts: { type: 'string', default: '2' },
    'rate-mbit': { type: 'string', default: '500' },
    rounds: { type: 'string', default: '8' },
    steps: { type: 'string', default: '6' },
    'steps-per-point': { type: 'string', default: '100' },
    out: { type: 'string' },
  },
});
const problem = networkUnavailable();
if (problem !== undefined) {
  console.error(problem);
  process.exit(2);
}
const [scale, hosts, rateMbit, rounds, steps, stepsPerPoint] = [
  ...[values.scale, values.hosts, values['rate-mbit'], values.rounds, values.steps, values['steps-per-point']],
].map(Number);
/** The document's space is for whole models, in parameters of float32, 4 bytes each. */
const million = 4e6;
const inSpace = (millions: number): number => Math.round(millions * million * scale);
const space = {
  creditBytes: { least: inSpace(4), most: inSpace(64) },
  partitionBytes: { least: inSpace(2), most: inSpace(32) },
};
const grid = [4, 8, 16, 32, 64].flatMap((credit) =>
  [2, 4, 8, 16, 32].map((partition) => ({ creditBytes: inSpace(credit), partitionBytes: inSpace(partition) })),
);
const trace = modelTrace(values.model as ModelName, scale).layers;
const bytes = trace.reduce((sum, layer) => sum + layer.bytes, 0);
const passMs = trace.reduce((sum, { forwardMs, backwardMs }) => sum + forwardMs + backwardMs, 0);
const wireMs = (2 * (hosts - 1) * bytes * 8) / hosts / (rateMbit * 1000);
const slower = wireMs / passMs;
const layers = trace.map((layer) => ({ ...layer, forwardMs: layer.forwardMs * slower, backwardMs: layer.backwardMs * slower }));

const secret = randomBytes(32).toString('hex');
const loadBefore = os.loadavg()[0];
using network = await createNetwork({ hosts, rateMbit, delayUs: 0, jitterUs: 0, lossPercent: 0 });
const programs = network.hosts.map(({ enter }, rank) => ({
  command: [...enter, process.execPath, '--import', 'tsx', fileURLToPath(new URL('tuned-rank.ts', import.meta.url))],
  environment: {
    ...rankVariables({ rank, ranks: hosts, localRank: 0, localRanks: 1, masterAddress: network.hosts[0].address, masterPort: 29_420 }),
    SHOAL_HOST_ID: `${network.name}-host-${rank}`,
    SHOAL_SECRET: secret,
    // Points that earlier runs have found must not be used.
    SHOAL_SCHEDULE_TUNING_DIR: '-',
    TRAINING: JSON.stringify({ layers, space, grid, rounds, steps, stepsPerPoint }),
  },
}));
const stdout = await runTogether(programs, { timeoutMs: 2_400_000 });
const line = stdout.split('\n').find((each) => each.startsWith('{"points"')) ?? '';
const { points, turns } = JSON.parse(line) as { points: (typeof grid)[number][]; turns: number[][] };
const measured = points.map((point, index) => ({
  ...point,
  bestMs: Math.min(...turns[index]),
  medianMs: median(turns[index]),
  turnsMs: turns[index],
}));
const [tuned, ...others] = measured;
// The fastest of 25 noisy medians is faster than it is: half of the rounds choose it, the other half compare.
interface Turns {
  readonly turnsMs: readonly number[];
}
const choice = ({ turnsMs }: Turns): number => median(turnsMs.filter((_, round) => round % 2 === 0));
const asFast = (point: Turns, reference: Turns): number =>
  median(point.turnsMs.map((ms, round) => reference.turnsMs[round] / ms).filter((_, round) => round % 2 === 1));
const byChoice = others.toSorted((a, b) => choice(a) - choice(b));
const [best, worst] = [byChoice[0], byChoice[byChoice.length - 1]];
console.log(
  `${values.model} × ${scale}, ${(bytes / 1e6).toFixed(1)} MB, ${hosts} hosts at ${rateMbit} Mbit/s; load ${loadBefore.toFixed(1)}`,
);
for (const [name, point] of Object.entries({ tuned, 'best of grid': best, 'worst of grid': worst }))
  console.log(
    `${name.padEnd(14)} credit ${formatBytes(point.creditBytes)}, partition ${formatBytes(point.partitionBytes)}: best ${point.bestMs.toFixed(1)} ms, median ${point.medianMs.toFixed(1)} ms a step`,
  );
const [ofBest, worstOfBest] = [asFast(tuned, best), asFast(worst, best)];
console.log(`tuned is ${ofBest.toFixed(3)} × as fast as the best point of the grid, the worst is ${worstOfBest.toFixed(3)} ×`);
if (values.out !== undefined) {
  const machine = { cpu: os.cpus()[0]?.model, cpus: os.cpus().length, node: process.version, loadBefore, loadAfter: os.loadavg()[0] };
  const training = { model: values.model, scale, bytes, hosts, rateMbit, wireMs };
  writeFileSync(values.out, `${JSON.stringify({ machine, training, ofBest, worstOfBest, tuned, best, worst, grid: others }, null, 2)}\n`);
}
