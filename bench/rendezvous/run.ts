/** RecvTensor between two processes, over every carrier, in one interleaved run.
 *
 *    npx tsx bench/rendezvous/run.ts [--out bench/results/rendezvous.json]              on this host
 *    npx tsx bench/rendezvous/run.ts --network --rate-mbit 2000 --out …                 between two network namespaces; needs root
 *    npx tsx bench/rendezvous/run.ts --scale 0.01                                       a trial
 *
 *  A sample is the time of one step: from asking for all its tensors until all are there. Build first. */
import { spawn } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import os from 'node:os';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { median } from '../../src/base/numbers.ts';
import { programArguments } from '../arguments.ts';
import { createNetwork, networkUnavailable, type Network } from '../network/network.ts';
import type { Result } from './receiver.ts';

/** Load of the machine; above the number of CPUs it was busy with other things: ratios hold, speeds are lower bounds. */
const loadBefore = os.loadavg()[0];
const { values } = programArguments(import.meta.url, {
  options: {
    network: { type: 'boolean', default: false },
    'rate-mbit': { type: 'string', default: '0' },
    scale: { type: 'string', default: '1' },
    cases: { type: 'string', default: '' },
    out: { type: 'string' },
  },
});
const reason = values.network ? networkUnavailable() : undefined;
if (reason !== undefined) {
  console.error(reason);
  process.exit(2);
}
const rateMbit = Number(values['rate-mbit']);
using network: Network | undefined = values.network ? await createNetwork({ hosts: 2, rateMbit }) : undefined;

const place = network === undefined ? 'host' : 'network';
const at = (host: number): { enter: readonly string[]; address: string } =>
  network === undefined ? { enter: [], address: '127.0.0.1' } : { enter: network.hosts[host].enter, address: network.hosts[host].address };

/** The first line that a program prints. */
async function startProgram(host: number, file: string, args: readonly string[]) {
  const { enter, address } = at(host);
  const program = fileURLToPath(new URL(file, import.meta.url));
  const [command, ...rest] = [...enter, process.execPath, '--import', 'tsx', program, address, place, values.scale, values.cases, ...args];
  const child = spawn(command, rest, { stdio: ['ignore', 'pipe', 'inherit'], cwd: fileURLToPath(new URL('../..', import.meta.url)) });
  const first = await createInterface({ input: child.stdout })[Symbol.asyncIterator]().next();
  if (first.done === true) throw new Error(`${file} ended without an answer`);
  return { child, line: first.value };
}

const sender = await startProgram(0, './sender.ts', []);
try {
  const receiver = await startProgram(1, './receiver.ts', [sender.line]);
  const results = JSON.parse(receiver.line) as readonly Result[];
  const machine = {
    cpu: os.cpus()[0].model,
    cpus: os.availableParallelism(),
    node: process.version,
    kernel: os.release(),
    loadBefore,
    loadAfter: os.loadavg()[0],
  };
  const report = {
    machine,
    place: network?.description ?? 'one host',
    rateMbit,
    scale: Number(values.scale),
    results: results.map(summarised),
  };
  console.log(JSON.stringify(report, undefined, 2));
  for (const line of table(results)) console.error(line);
  if (values.out !== undefined) writeFileSync(values.out, `${JSON.stringify(report, undefined, 2)}\n`);
} finally {
  sender.child.kill('SIGKILL');
}

function summarised({ stepMs, bytesPerStep, tensorsPerStep, messagesPerStep, bytesCopied, ...rest }: Result) {
  const sorted = stepMs.toSorted((a, b) => a - b);
  const [median, min, max] = [sorted[sorted.length >> 1], sorted[0], sorted.at(-1)!];
  return {
    ...rest,
    samples: sorted.length,
    stepMs: { median: round3(median), min: round3(min), max: round3(max) },
    megabytesPerSecond: round3(bytesPerStep / median / 1000),
    tensorsPerSecond: round3((tensorsPerStep / median) * 1000),
    messagesPerStep: round3(messagesPerStep),
    ...(Number.isFinite(bytesCopied) && { bytesCopied }),
  };
}

/** A table of each contestant against the others of its case, by ratios of times. */
function table(all: readonly Result[]): string[] {
  return all.map((result) => {
    const ratios = all
      .filter((other) => other.case === result.case && other !== result)
      .map((other) => `${median(other.stepMs.map((ms, k) => ms / result.stepMs[k])).toFixed(2)}× ${other.contestant}`);
    return `${result.case.padEnd(16)} ${result.contestant.padEnd(24)} ${median(result.stepMs).toFixed(3).padStart(10)} ms   ${ratios.join(', ')}`;
  });
}

function round3(value: number): number {
  return Number(value.toPrecision(3));
}
