/** The cost of metrics: all-reduces of 8 B and of 1 MiB on the host path, with metrics on and off. Pairs of worlds, one with and one without,
 *  are opened in the same processes one after the other, and blocks of calls take turns in each; the fastest tenth of the blocks is compared:
 *  those that nothing else on the machine has disturbed. Where its memory lies makes a world some per cent faster or slower, so the median
 *  of many pairs is stated, and beside it the same of pairs that are both without.
 *
 *    npx tsx bench/metrics/run.ts                  a table
 *    npx tsx bench/metrics/run.ts --pairs 40 --rounds 100 --ranks 2
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
  /** Microseconds of a call, without metrics and with them: the median of the pairs. */
  readonly offUs: number;
  readonly onUs: number;
  /** With metrics, divided by without: of all pairs. */
  readonly ratio: Spread;
  /** The same of pairs that are both without. */
  readonly control: Spread;
}

interface Spread {
  readonly median: number;
  /** The first and the third quartile. */
  readonly quartiles: readonly [number, number];
}

export interface MetricsReport {
  readonly rows: readonly MetricsRow[];
  /** Median time of a page of one rank. */
  readonly pageMs: number;
}

export interface MetricsOptions {
  readonly ranks: number;
  /** Pairs of worlds of each kind. */
  readonly pairs: number;
  /** Blocks of each world and size. */
  readonly rounds: number;
}

const here = (file: string): string => fileURLToPath(new URL(file, import.meta.url));

/** @throws Error when the job fails. */
export async function benchMetrics({ ranks, pairs, rounds }: MetricsOptions): Promise<MetricsReport> {
  const folder = mkdtempSync(join(tmpdir(), 'shoal-bench-metrics-'));
  try {
    const rank = [here('rank.mjs'), ...[pairs, rounds, await freePort()].map(String), folder];
    const args = [here('../../dist/tools/cli/main.js'), 'run', '-q', '-n', String(ranks), ...rank];
    const { status, stderr } = spawnSync(process.execPath, args, { encoding: 'utf8' });
    if (status !== 0) throw new Error(`the job ended with ${status}: ${stderr}`);
    return reportOf(JSON.parse(readFileSync(join(folder, 'times.json'), 'utf8')) as Times);
  } finally {
    rmSync(folder, { recursive: true });
  }
}

interface PairTimes {
  readonly bytes: number;
  readonly calls: number;
  readonly control: boolean;
  readonly offUs: readonly number[];
  readonly onUs: readonly number[];
}

interface Times {
  readonly results: readonly PairTimes[];
  readonly pagesMs: readonly number[];
}

function reportOf({ results, pagesMs }: Times): MetricsReport {
  const rows = [...new Set(results.map(({ bytes }) => bytes))].map((size): MetricsRow => {
    const pairs = results.filter(({ bytes, control }) => bytes === size && !control);
    const controls = results.filter(({ bytes, control }) => bytes === size && control);
    return {
      bytes: size,
      callsPerBlock: pairs[0].calls,
      offUs: median(pairs.map(({ offUs }) => fastest(offUs))),
      onUs: median(pairs.map(({ onUs }) => fastest(onUs))),
      ratio: ratiosOf(pairs),
      control: ratiosOf(controls),
    };
  });
  return { rows, pageMs: median(pagesMs) };
}

function ratiosOf(pairs: readonly PairTimes[]): Spread {
  const ratios = pairs.map(({ offUs, onUs }) => fastest(onUs) / fastest(offUs)).toSorted((a, b) => a - b);
  const quartile = (which: number): number => ratios[Math.floor((which * (ratios.length - 1)) / 4)];
  return { median: median(ratios), quartiles: [quartile(1), quartile(3)] };
}

/** The slowest of the fastest tenth. */
function fastest(us: readonly number[]): number {
  return us.toSorted((a, b) => a - b)[Math.floor(us.length / 10)];
}

async function main(): Promise<void> {
  const { values } = programArguments(import.meta.url, {
    options: {
      out: { type: 'string' },
      pairs: { type: 'string', default: '40' },
      rounds: { type: 'string', default: '100' },
      ranks: { type: 'string', default: '2' },
    },
  });
  const options = { ranks: positive(values.ranks), pairs: positive(values.pairs), rounds: positive(values.rounds) };
  const machine = { cpu: cpus()[0]?.model ?? 'unknown', cpus: cpus().length, node: process.version, loadAverage: loadavg()[0] };
  const { rows, pageMs } = await benchMetrics(options);
  if (values.out !== undefined) writeFileSync(values.out, `${JSON.stringify({ machine, ...options, pageMs, rows }, null, 2)}\n`);
  const text = ({ median: middle, quartiles }: Spread): string =>
    `${middle.toFixed(3)} (${quartiles.map((each) => each.toFixed(3)).join(' to ')})`;
  for (const { bytes, offUs, onUs, ratio, control } of rows)
    console.log(
      `${bytes} B: ${offUs.toFixed(2)} µs without, ${onUs.toFixed(2)} µs with; ratio ${text(ratio)}, of two without ${text(control)}`,
    );
  console.log(`a page: ${pageMs.toFixed(1)} ms`);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await main();
