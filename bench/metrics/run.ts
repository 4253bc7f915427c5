/** The cost of metrics: all-reduces of 8 B and of 1 MiB on the host path, with metrics on and off, in blocks that take turns in the same
 *  processes; and the time of a page. Blocks are short, and the fastest tenth of them is compared: those that nothing else on the machine
 *  has disturbed.
 *
 *    npx tsx bench/metrics/run.ts                  a table
 *    npx tsx bench/metrics/run.ts --rounds 1000 --ranks 2
 *    npx tsx bench/metrics/run.ts --out out.json   writes one JSON document
 *
 *  Needs a built package. */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { cpus, loadavg, tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { median } from '../../src/base/numbers.ts';
import { freePort } from '../../src/base/testing/free-port.ts';
import { positive } from '../../src/tools/cli/option-values.ts';
import { programArguments } from '../arguments.ts';

export interface MetricsRow {
  readonly bytes: number;
  readonly callsPerBlock: number;
  /** Microseconds of a call: of the fastest tenth of the blocks the slowest. */
  readonly offUs: number;
  readonly onUs: number;
  /** With metrics, divided by without. */
  readonly ratio: number;
  /** The ratio of the first and of the second half of the rounds, for its spread. */
  readonly halves: readonly [number, number];
}

export interface MetricsReport {
  readonly rows: readonly MetricsRow[];
  /** Median time of a page of one rank. */
  readonly pageMs: number;
}

const here = (file: string): string => fileURLToPath(new URL(file, import.meta.url));

/** @throws Error when the job fails. */
export async function benchMetrics(ranks: number, rounds: number): Promise<MetricsReport> {
  const ports = [await freePort(), await freePort(), await freePort()];
  const folder = mkdtempSync(join(tmpdir(), 'shoal-bench-metrics-'));
  try {
    const file = join(folder, 'times.json');
    const rank = [here('rank.mjs'), String(rounds), ...ports.map(String), file];
    const args = [here('../../dist/tools/cli/main.js'), 'run', '-q', '-n', String(ranks), ...rank];
    const { status, stderr } = spawnSync(process.execPath, args, { encoding: 'utf8' });
    if (status !== 0) throw new Error(`the job ended with ${status}: ${stderr}`);
    return reportOf(JSON.parse(readFileSync(file, 'utf8')) as Times);
  } finally {
    rmSync(folder, { recursive: true });
  }
}

interface Times {
  readonly times: Readonly<Record<string, { readonly calls: number; readonly offUs: readonly number[]; readonly onUs: readonly number[] }>>;
  readonly pagesMs: readonly number[];
}

function reportOf({ times, pagesMs }: Times): MetricsReport {
  const rows = Object.entries(times).map(([bytes, { calls, offUs, onUs }]): MetricsRow => {
    const half = Math.ceil(offUs.length / 2);
    const ratioOf = (from: number, to: number): number => fastest(onUs.slice(from, to)) / fastest(offUs.slice(from, to));
    return {
      bytes: Number(bytes),
      callsPerBlock: calls,
      offUs: fastest(offUs),
      onUs: fastest(onUs),
      ratio: ratioOf(0, Infinity),
      halves: [ratioOf(0, half), ratioOf(half, Infinity)],
    };
  });
  return { rows, pageMs: median(pagesMs) };
}

function fastest(us: readonly number[]): number {
  return us.toSorted((a, b) => a - b)[Math.floor(us.length / 10)];
}

async function main(): Promise<void> {
  const { values } = programArguments(import.meta.url, {
    options: { out: { type: 'string' }, rounds: { type: 'string', default: '1000' }, ranks: { type: 'string', default: '2' } },
  });
  const [rounds, ranks] = [positive(values.rounds), positive(values.ranks)];
  const machine = { cpu: cpus()[0]?.model ?? 'unknown', cpus: cpus().length, node: process.version, loadAverage: loadavg()[0] };
  const { rows, pageMs } = await benchMetrics(ranks, rounds);
  if (values.out !== undefined) writeFileSync(values.out, `${JSON.stringify({ machine, rounds, ranks, pageMs, rows }, null, 2)}\n`);
  for (const { bytes, offUs, onUs, ratio, halves } of rows)
    console.log(
      `${bytes} B: ${offUs.toFixed(2)} µs without, ${onUs.toFixed(2)} µs with; ratio ${ratio.toFixed(4)} (halves: ${halves.map((each) => each.toFixed(3)).join(', ')})`,
    );
  console.log(`a page: ${pageMs.toFixed(1)} ms`);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await main();
