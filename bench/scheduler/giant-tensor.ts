/** The cost of scheduling where it cannot gain: one giant tensor, all-reduced whole and in parts, in turns within the same
 *  processes, by hosts made of network namespaces (root) whose network is the bottleneck.
 *
 *    npx tsx bench/scheduler/giant-tensor.ts [--hosts 2] [--rate-mbit 400] [--mbytes 64] [--rounds 9] [--out bench/results/scheduler-giant.json]
 *
 *  Build first. */
import { randomBytes } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import os from 'node:os';
import { fileURLToPath } from 'node:url';
import { median } from '../../src/base/numbers.ts';
import { programArguments } from '../arguments.ts';
import { createNetwork, networkUnavailable } from '../network/network.ts';
import { rankVariables } from '../peers/place.ts';
import { runTogether } from '../peers/processes.ts';

const { values } = programArguments(import.meta.url, {
  options: {
    hosts: { type: 'string', default: '2' },
    'rate-mbit': { type: 'string', default: '400' },
    mbytes: { type: 'string', default: '64' },
    rounds: { type: 'string', default: '9' },
    out: { type: 'string' },
  },
});
const problem = networkUnavailable();
if (problem !== undefined) {
  console.error(problem);
  process.exit(2);
}
const [hosts, rateMbit, mbytes, rounds] = [values.hosts, values['rate-mbit'], values.mbytes, values.rounds].map(Number);
const bytes = mbytes * 1e6;
const script = fileURLToPath(new URL('giant-tensor-rank.ts', import.meta.url));
const secret = randomBytes(32).toString('hex');
const loadBefore = os.loadavg()[0];
using network = await createNetwork({ hosts, rateMbit, delayUs: 0, jitterUs: 0, lossPercent: 0 });
const programs = network.hosts.map(({ enter }, rank) => ({
  command: [...enter, process.execPath, '--import', 'tsx', script],
  environment: {
    ...rankVariables({ rank, ranks: hosts, localRank: 0, localRanks: 1, masterAddress: network.hosts[0].address, masterPort: 29_410 }),
    SHOAL_HOST_ID: `${network.name}-host-${rank}`,
    SHOAL_SECRET: secret,
    BYTES: String(bytes),
    ROUNDS: String(rounds),
  },
}));
const stdout = await runTogether(programs, { timeoutMs: 600_000 });
const line = stdout.split('\n').find((each) => each.startsWith('{"turns"')) ?? '';
const { turns, ...scheduling } = JSON.parse(line) as { turns: { plainMs: number; scheduledMs: number }[] };
const of = (way: 'plainMs' | 'scheduledMs'): { bestMs: number; medianMs: number } => {
  const all = turns.map((turn) => turn[way]);
  return { bestMs: Math.min(...all), medianMs: median(all) };
};
const [plain, scheduled] = [of('plainMs'), of('scheduledMs')];
const wireMs = (2 * (hosts - 1) * bytes * 8) / hosts / (rateMbit * 1000);
const cost = { best: scheduled.bestMs / plain.bestMs - 1, median: median(turns.map((turn) => turn.scheduledMs / turn.plainMs)) - 1 };
const percent = (share: number): string => `${(share * 100).toFixed(2)} %`;
console.log(`${mbytes} MB, ${hosts} hosts at ${rateMbit} Mbit/s, ${wireMs.toFixed(0)} ms at line rate; load ${loadBefore.toFixed(1)}`);
for (const [name, { bestMs, medianMs }] of Object.entries({ plain, scheduled }))
  console.log(`${name.padEnd(10)} best ${bestMs.toFixed(1)} ms, median ${medianMs.toFixed(1)} ms`);
console.log(`scheduling costs ${percent(cost.best)} by best turns, ${percent(cost.median)} by the median of turns`);
if (values.out !== undefined) {
  const machine = { cpu: os.cpus()[0]?.model, cpus: os.cpus().length, node: process.version, loadBefore, loadAfter: os.loadavg()[0] };
  writeFileSync(
    values.out,
    `${JSON.stringify({ machine, bytes, hosts, rateMbit, wireMs, ...scheduling, plain, scheduled, cost, turns }, null, 2)}\n`,
  );
}
