/** Compared algorithms as text, and as the ranges of a tuning file. Pure. */
import { formatBytes } from '../../../base/settings/quantity.ts';
import type { TunedWorld } from '../../../collectives/tuning-format.ts';
import type { ComparableCollective, ComparedRow } from '../compare.ts';

/** A measured advantage below this may be noise: the algorithm of the size before, or the one that is taken untuned, stays. */
const worthChanging = 0.95;

const timeWidth = 11;

/** The head of the table; algorithms in the order of the columns. */
export function formatComparisonHead(names: readonly string[]): string {
  const columns = ['auto', ...names].map((name) => name.slice(0, timeWidth + 5).padStart(Math.max(timeWidth, name.length)));
  return `${'collective'.padEnd(14)}  ${'size'.padStart(8)}  ${columns.join('  ')}  best, auto/best, the same twice (times in us)\n`;
}

export function formatComparison(row: ComparedRow, names: readonly string[]): string {
  const cells = ['auto', ...names].map((name) => {
    const width = Math.max(timeWidth, name.length);
    const time = row.timesUs[name];
    return (time === undefined ? (row.hopeless.includes(name) ? '>4x' : '-') : time.toFixed(time < 100 ? 2 : 0)).padStart(width);
  });
  const verdict = `${row.best}${row.chosen === row.best ? '' : ` (auto: ${row.chosen})`}, ${row.autoOverBest.toFixed(2)}, ${row.scatter.toFixed(2)}${row.wrong > 0 ? `, ${row.wrong} WRONG` : ''}`;
  return `${row.collective.padEnd(14)}  ${formatBytes(row.bytes).padStart(8)}  ${cells.join('  ')}  ${verdict}\n`;
}

/** The fastest algorithm per range of sizes. Ranges meet half-way, on a logarithmic scale, between the measured sizes; below the
 *  smallest and above the largest of them nothing is known, and nothing is said. */
export function choicesOf(rows: readonly ComparedRow[]): TunedWorld['choices'] {
  const collectives = [...new Set(rows.map(({ collective }) => collective))];
  return collectives.map((collective) => ({
    collective,
    ranges: rangesOf(rows.filter((row) => row.collective === collective)),
    measured: rows
      .filter((row) => row.collective === collective)
      .map(({ bytes, timesUs }) => ({
        bytes,
        timesUs: Object.fromEntries(Object.entries(timesUs).map(([name, time]) => [name, Number(time.toPrecision(4))])),
      })),
  }));
}

type Range = TunedWorld['choices'][number]['ranges'][number];

function rangesOf(rows: readonly (ComparedRow & { readonly collective: ComparableCollective })[]): Range[] {
  const ranges: Range[] = [];
  for (const [index, row] of rows.entries()) {
    const before = ranges.at(-1);
    const from = index === 0 ? row.bytes : Math.round(Math.sqrt(rows[index - 1].bytes * row.bytes));
    const good = [before?.algorithm, row.chosen].find(
      (name) => name !== undefined && (row.timesUs[name] ?? Number.POSITIVE_INFINITY) * worthChanging <= row.timesUs[row.best],
    );
    const algorithm = good ?? row.best;
    const to = row.bytes + 1;
    if (before !== undefined) before.to = before.algorithm === algorithm ? to : from;
    if (before?.algorithm !== algorithm) ranges.push({ from, to, algorithm });
  }
  return ranges;
}
