/** A buffer's symbolic contents: values constant on intervals. */
import type { Value } from './expression.ts';
import type { Range } from './ranges.ts';

/** A value on [offset, offset + count). */
export interface Interval extends Range {
  readonly value: Value;
}

/** Covers [0, count) with intervals in order; neighbours differ. */
export class IntervalMap {
  #intervals: Interval[];

  constructor(count: number, value: Value) {
    this.#intervals = count > 0 ? [{ offset: 0, count, value }] : [];
  }

  /** The intervals of [offset, offset + count), cut to it. */
  read(offset: number, count: number): Interval[] {
    const end = offset + count;
    const result: Interval[] = [];
    for (let index = this.#find(offset); index < this.#intervals.length; index++) {
      const each = this.#intervals[index];
      if (each.offset >= end) break;
      const from = Math.max(each.offset, offset);
      const to = Math.min(each.offset + each.count, end);
      if (from < to) result.push({ offset: from, count: to - from, value: each.value });
    }
    return result;
  }

  /** Writes intervals that adjoin each other in place of the old ones. */
  write(intervals: readonly Interval[]): void {
    const first = intervals.at(0);
    const last = intervals.at(-1);
    if (first === undefined || last === undefined) return;
    const end = last.offset + last.count;
    // The range includes the neighbours on both sides, to join equal ones.
    const from = this.#find(Math.max(0, first.offset - 1));
    let to = from;
    while (to < this.#intervals.length && this.#intervals[to].offset <= end) to += 1;
    const before = this.#intervals[from];
    const after = this.#intervals[to - 1];
    const replacement: Interval[] = [];
    const add = (each: Interval): void => {
      const previous = replacement.at(-1);
      if (each.count === 0) return;
      if (previous && previous.value.node === each.value.node && previous.value.delta === each.value.delta) {
        replacement[replacement.length - 1] = { ...previous, count: previous.count + each.count };
      } else {
        replacement.push(each);
      }
    };
    add({ ...before, count: first.offset - before.offset });
    intervals.forEach(add);
    add({ offset: end, count: after.offset + after.count - end, value: after.value });
    this.#intervals.splice(from, to - from, ...replacement);
  }

  /** Index of the interval that holds `offset`. */
  #find(offset: number): number {
    let low = 0;
    let high = this.#intervals.length;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (this.#intervals[middle].offset <= offset) low = middle;
      else high = middle;
    }
    return low;
  }
}
