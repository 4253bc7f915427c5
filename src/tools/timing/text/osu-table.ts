/** The tables of the OSU micro-benchmarks (7.5; osu_latency, osu_bw, osu_bibw, osu_iallreduce), with a column for checked results. Pure. */
import type { BenchHeader, BenchRow } from '../report.ts';

type Options = BenchHeader['options'];

/** Titles and numbers of the columns after the size. Times are in microseconds, MB are 10⁶ bytes. */
function columnsOf({ collective, overlap }: Options): readonly (readonly [title: string, value: (row: BenchRow) => number | undefined])[] {
  const half = (row: BenchRow): BenchRow['inPlace'] => row.inPlace ?? row.outOfPlace;
  if (overlap === true) {
    return [
      ['Overall(us)', (row) => half(row)?.overlap?.overallUs],
      ['Compute(us)', (row) => half(row)?.overlap?.computeUs],
      ['Pure Comm.(us)', (row) => half(row)?.medianUs],
      ['Overlap(%)', (row) => half(row)?.overlap?.percent],
    ];
  }
  if (collective === 'latency') return [['Latency (us)', (row) => half(row)?.medianUs]];
  return [['Bandwidth (MB/s)', (row) => (half(row)?.busBandwidth ?? 0) * 1000]];
}

/** The text above the first row. */
export function formatOsuHeader({ options, shoal, node, native }: BenchHeader): string {
  const { collective, overlap, checks, memory, wait, buckets } = options;
  const titles = columnsOf(options).map(([title]) => title);
  return [
    `# Shoal ${collective}${overlap === true ? ' overlap' : ''} test, version ${shoal} node=${node} native=${native ?? 'none'}`,
    `# memory: ${memory} wait: ${wait} window: ${buckets} time: median over iterations, largest over ranks`,
    `${'# Size'.padEnd(10)}${cells(checks === 0 ? titles : [...titles, 'Validation'])}`,
    '',
  ].join('\n');
}

export function formatOsuRow(row: BenchRow, options: Options): string {
  const wrong = (row.inPlace ?? row.outOfPlace)?.wrong ?? null;
  const numbers = columnsOf(options).map(([, value]) => (value(row) ?? 0).toFixed(2));
  return `${String(row.size).padEnd(10)}${cells(wrong === null ? numbers : [...numbers, wrong === 0 ? 'Pass' : 'Fail'])}\n`;
}

function cells(texts: readonly string[]): string {
  return texts.map((text) => text.padStart(18)).join('');
}
