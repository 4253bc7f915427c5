/** Rate and latency of messages beside the layers below them: dealers and routers over tcp beside the zeromq package, the fabric
 *  beside tcp, inproc beside postMessage.
 *
 *    tsx bench/messaging/run.ts [--rounds 7] [--scale 1] [--only inproc] [--out bench/results/messaging.json]
 *
 *  Each comparison has two processes of its own, so that nothing else is awake in them, and its subjects take turns. Rate:
 *  messages one way until a count is over, the last one answered. Latency: a round trip, one at a time. The raw programs do as
 *  the package's documentation shows: await each send, iterate over the socket. */
import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import os from 'node:os';
import { fileURLToPath } from 'node:url';
import { programArguments } from '../arguments.ts';
import { comparisons, type Sample } from './comparison.ts';

/** Load of the machine; above the number of CPUs it was busy with other things. */
const loadBefore = os.loadavg()[0];
const { values } = programArguments(import.meta.url, {
  options: {
    rounds: { type: 'string', default: '7' },
    scale: { type: 'string', default: '1' },
    only: { type: 'string', default: '' },
    out: { type: 'string' },
  },
});

const samples: Sample[] = [];
let checksum = 0;
const ratios: Record<string, number> = {};
for (const { name, subjects, ratiosOf } of comparisons) {
  if (!name.includes(values.only)) continue;
  const script = fileURLToPath(new URL('./subjects.ts', import.meta.url));
  const args = ['--import', 'tsx', script, ...['--rounds', values.rounds], ...['--scale', values.scale], ...subjects];
  const { status, stdout, stderr } = spawnSync(process.execPath, args, { encoding: 'utf8', maxBuffer: 2 ** 26 });
  if (status !== 0) throw new Error(`${name} ended with ${status}: ${stderr}`);
  const measured = JSON.parse(stdout) as { samples: Sample[]; checksum: number };
  samples.push(...measured.samples.map((each) => ({ ...each, comparison: name })));
  checksum = (checksum + measured.checksum) >>> 0;
  Object.assign(ratios, ratiosOf(measured.samples));
}
const machine = { cpu: os.cpus()[0].model, cpus: os.availableParallelism(), node: process.version, kernel: os.release(), loadBefore };
const report = { machine, rounds: Number(values.rounds), scale: Number(values.scale), checksum, ratios, results: samples };
console.log(JSON.stringify(report, undefined, 2));
if (values.out !== undefined) writeFileSync(values.out, `${JSON.stringify(report, undefined, 2)}\n`);
