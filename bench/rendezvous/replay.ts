/** Training VGG16 with one parameter server, replayed: sizes of tensors and times of layers are a trace, tensors travel as they would.
 *
 *    npx tsx bench/rendezvous/replay.ts [--out bench/results/rendezvous-replay.json]     1 server and 1, 2, 4 and 8 workers, each in a namespace
 *    npx tsx bench/rendezvous/replay.ts --here --workers 1 --bytes-scale 0.001           a trial on this host
 *
 *  A step of a worker: it asks for all parameters; a layer's forward pass begins when its parameters are there and the layer before has ended; a
 *  layer's gradients are sent when its backward pass has ended. The server has a parameter for the next step when all workers' gradients of it
 *  have come; it adds nothing up. Passes are waited for, not computed.
 *
 *  Bytes are scaled by --bytes-scale and times are not: a link of 1 Gbit/s with a 32nd of the bytes stands for one of 32 Gbit/s. Contestants take
 *  turns, step by step, in the same processes. Needs root. Build first. */
import { spawn, type ChildProcess } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import os from 'node:os';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { median } from '../../src/base/numbers.ts';
import { modelTrace } from '../../src/scheduler/model-traces.ts';
import { programArguments } from '../arguments.ts';
import { createNetwork, networkUnavailable, type Network } from '../network/network.ts';
import type { ReplayPlan, Samples } from './replay-plan.ts';

const loadBefore = os.loadavg()[0];
const { values } = programArguments(import.meta.url, {
  options: {
    here: { type: 'boolean', default: false },
    workers: { type: 'string', default: '1,2,4,8' },
    'rate-mbit': { type: 'string', default: '1000' },
    'bytes-scale': { type: 'string', default: String(1 / 32) },
    rounds: { type: 'string', default: '3' },
    /** Steps of a contestant in a round, and one more before. */
    steps: { type: 'string', default: '2' },
    out: { type: 'string' },
  },
});
const reason = values.here ? undefined : networkUnavailable();
if (reason !== undefined) {
  console.error(`${reason}; --here measures on this host, without links`);
  process.exit(2);
}
const counts = values.workers.split(',').map(Number);
const plan: ReplayPlan = { bytesScale: Number(values['bytes-scale']), rounds: Number(values.rounds), steps: Number(values.steps) };
const rateMbit = values.here ? 0 : Number(values['rate-mbit']);
const { batch, layers } = modelTrace('vgg16');
const computeMs = layers.reduce((sum, { forwardMs, backwardMs }) => sum + forwardMs + backwardMs, 0);
using network: Network | undefined = values.here ? undefined : await createNetwork({ hosts: 1 + Math.max(...counts), rateMbit });

/** A process and the lines it prints. */
interface Program {
  readonly child: ChildProcess;
  next(): Promise<string>;
}

function start(host: number, workers: number): Program {
  const { enter, address } = network?.hosts[host] ?? { enter: [], address: '127.0.0.1' };
  const program = fileURLToPath(new URL('./replay-process.ts', import.meta.url));
  const args = [String(host), String(workers), address, JSON.stringify(plan)];
  const [command, ...rest] = [...enter, process.execPath, '--import', 'tsx', program, ...args];
  const child = spawn(command, rest, { stdio: ['pipe', 'pipe', 'inherit'], cwd: fileURLToPath(new URL('../..', import.meta.url)) });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const next = async (): Promise<string> => {
    const line = await lines.next();
    if (line.done === true) throw new Error(`process ${host} ended without an answer`);
    return line.value;
  };
  return { child, next };
}

async function measure(workers: number): Promise<Samples> {
  const programs = Array.from({ length: workers + 1 }, (_, host) => start(host, workers));
  try {
    const addresses = await Promise.all(programs.map(async ({ next }) => JSON.parse(await next()) as unknown));
    for (const { child } of programs) child.stdin!.write(`${JSON.stringify(addresses)}\n`);
    return JSON.parse(await programs[0].next()) as Samples;
  } finally {
    for (const { child } of programs) child.kill('SIGKILL');
  }
}

const results = [];
for (const workers of counts) {
  const samples = await measure(workers);
  const rows = Object.entries(samples).map(([contestant, stepMs]) => {
    const sorted = stepMs.toSorted((a, b) => a - b);
    const medianMs = median(stepMs);
    const imagesPerSecond = (1000 * batch * workers) / medianMs;
    return {
      workers,
      contestant,
      samples: sorted.length,
      stepMs: { median: round3(medianMs), min: round3(sorted[0]), max: round3(sorted.at(-1)!) },
      imagesPerSecond: round3(imagesPerSecond),
      ofComputing: round3(computeMs / medianMs),
      // Ratios sample by sample: the machine's noise meets all alike.
      timesAsFastAs: Object.fromEntries(
        Object.entries(samples)
          .filter(([other]) => other !== contestant)
          .map(([other, theirs]) => [other, round3(median(theirs.map((ms, k) => ms / stepMs[k])))]),
      ),
    };
  });
  results.push(...rows);
  for (const { contestant, stepMs, imagesPerSecond, timesAsFastAs } of rows)
    console.error(
      `${workers} workers   ${contestant.padEnd(16)} ${stepMs.median.toFixed(0).padStart(6)} ms per step ${imagesPerSecond.toFixed(1).padStart(8)} images/s   ${Object.entries(
        timesAsFastAs,
      )
        .map(([other, ratio]) => `${ratio.toFixed(2)}× ${other}`)
        .join(', ')}`,
    );
}
const report = {
  machine: {
    cpu: os.cpus()[0].model,
    cpus: os.availableParallelism(),
    node: process.version,
    kernel: os.release(),
    loadBefore,
    loadAfter: os.loadavg()[0],
  },
  place: network?.description ?? 'one host',
  rateMbit,
  model: { name: 'vgg16', batch, computeMs: round3(computeMs), bytes: layers.reduce((sum, { bytes }) => sum + bytes, 0) },
  ...plan,
  results,
};
console.log(JSON.stringify(report, undefined, 2));
if (values.out !== undefined) writeFileSync(values.out, `${JSON.stringify(report, undefined, 2)}\n`);

function round3(value: number): number {
  return Number(value.toPrecision(3));
}
