/** Sets of ranks as text: `0-62,64-127`. */
import { ShoalError } from '../base/errors.ts';

export function rangesOf(ranks: readonly number[]): string {
  const ranges: { first: number; last: number }[] = [];
  for (const rank of [...ranks].sort((a, b) => a - b)) {
    const range = ranges.at(-1);
    if (range !== undefined && rank <= range.last + 1) range.last = rank;
    else ranges.push({ first: rank, last: rank });
  }
  return ranges.map(({ first, last }) => (first === last ? String(first) : `${first}-${last}`)).join();
}

/** @throws ShoalError `protocol` on text that `rangesOf` does not make of ranks below `size`. */
export function ranksIn(ranges: string, size: number): number[] {
  if (ranges === '') return [];
  const ranks: number[] = [];
  for (const range of ranges.split(',')) {
    const [, first, last = first] = /^(\d{1,9})(?:-(\d{1,9}))?$/.exec(range) ?? [];
    const from = Number(first);
    const to = Number(last);
    const isNext = ranks.length === 0 || from > ranks[ranks.length - 1];
    if (first === undefined || !isNext || to < from || to >= size) throw new ShoalError('protocol', `'${range}' is no range of ranks`);
    for (let rank = from; rank <= to; rank++) ranks.push(rank);
  }
  return ranks;
}
