/** Cuts element ranges: into shares per rank, along given counts, into pieces of a largest size. Shares begin on 64-byte lines of
 *  4-byte elements where they can, so that ranks storing side by side do not share a cache line. */
import { assert } from '../base/assert.ts';

/** Elements from `offset` on. */
export interface Range {
  readonly offset: number;
  readonly count: number;
}

/** Elements per line: shares are multiples of it, the last one excepted. */
export const lineCount = 16;

/** `parts` ranges that cover [0, count) exactly and in order, as even as whole lines allow; some are empty when there are
 *  fewer lines than parts. */
export function split(count: number, parts: number): Range[] {
  const lines = Math.ceil(count / lineCount);
  const edge = (part: number): number => Math.min(count, Math.floor((part * lines) / parts) * lineCount);
  return Array.from({ length: parts }, (_, part) => ({ offset: edge(part), count: edge(part + 1) - edge(part) }));
}

/** Consecutive ranges of the given counts, from 0 on. */
export function segments(counts: readonly number[]): Range[] {
  let offset = 0;
  return counts.map((count) => {
    const range = { offset, count };
    offset += count;
    return range;
  });
}

/** A range in order, in pieces of at most `most` elements and of nearly equal size; none when the range is empty. */
export function pieces(range: Range, most: number): Range[] {
  assert(most >= 1, () => `a piece holds at least one element, not ${most}`);
  if (range.count === 0) return [];
  if (range.count <= most) return [range];
  const parts = Math.ceil(range.count / most);
  // Pieces are whole lines if that keeps every piece within the limit; else even cuts.
  const size = Math.ceil(range.count / parts);
  const lined = Math.ceil(size / lineCount) * lineCount;
  const step = lined <= most ? lined : size;
  const result: Range[] = [];
  for (let at = 0; at < range.count; at += step) {
    result.push({ offset: range.offset + at, count: Math.min(step, range.count - at) });
  }
  return result;
}

/** The ranges sorted by offset, neighbours joined. They must not overlap. */
export function joined(ranges: readonly Range[]): Range[] {
  const result: Range[] = [];
  for (const range of [...ranges].sort((a, b) => a.offset - b.offset)) {
    const last = result.at(-1);
    if (range.count === 0) continue;
    if (last !== undefined && last.offset + last.count === range.offset) {
      result[result.length - 1] = { offset: last.offset, count: last.count + range.count };
    } else {
      result.push(range);
    }
  }
  return result;
}
