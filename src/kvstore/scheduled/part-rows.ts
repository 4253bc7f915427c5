/** Rows of a parameter that was cut between its rows: which part has which. It must not know stores.
 *
 *      rows 7 2 3 9 of parts 0…4 │ 5…9      part 0: its rows 2 3, places 1 2      part 1: its rows 2 4, places 0 3 */
import { createRegionAllocator } from '../../memory/regions/allocator.ts';
import type { TypedArray } from '../../memory/dtype.ts';
import { countOf, Tensor } from '../../memory/tensor.ts';
import type { Value } from '../values/types.ts';
import { viewOf, type KeyPart } from './partitioned-keys.ts';

export interface PartRows {
  readonly part: KeyPart;
  /** Counted from the part's first. */
  readonly rows: Uint32Array;
  /** Where each is among all that were asked for; ascending. */
  readonly places: Uint32Array;
}

/** Of every part, also of those without any. @param ids rows that the parameter has. */
export function rowsByPart(parts: readonly KeyPart[], ids: Uint32Array): PartRows[] {
  const lists = parts.map(() => ({ rows: [] as number[], places: [] as number[] }));
  const width = widthOf(parts[0]);
  const firsts = parts.map(({ offset }) => offset / width);
  for (const [place, id] of ids.entries()) {
    const at = lastNotAbove(firsts, id);
    lists[at].rows.push(id - firsts[at]);
    lists[at].places.push(place);
  }
  return lists.map(({ rows, places }, at) => ({ part: parts[at], rows: Uint32Array.from(rows), places: Uint32Array.from(places) }));
}

/** The part's rows of a value that has all of them, if they are beside each other there: the same memory. */
export function rowsView(value: Value, { part, places }: PartRows): Value | undefined {
  const count = places.length;
  const first = count === 0 ? 0 : places[0];
  if (count > 0 && places[count - 1] - first + 1 !== count) return undefined;
  const width = widthOf(part);
  return viewOf(value, { offset: first * width, count: count * width, shape: [count, ...part.shape.slice(1)] });
}

/** Room for the part's rows. */
export function rowsApart(value: Value, { part, places }: PartRows): Value {
  const shape = [places.length, ...part.shape.slice(1)];
  if (!(value instanceof Tensor)) return new (value.constructor as new (count: number) => TypedArray)(countOf(shape));
  return new Tensor(
    value.dtype,
    shape,
    createRegionAllocator().create(Math.max(1, countOf(shape) * (value.bytes / Math.max(1, value.count)))),
    0,
  );
}

/** To their places in the value that has all. */
export function scatterRows(value: Value, from: Value, { part, places }: PartRows): void {
  const [target, source] = [value, from].map((each) => (each instanceof Tensor ? each.data : each) as Float32Array);
  const width = widthOf(part);
  for (const [at, place] of places.entries()) target.set(source.subarray(at * width, (at + 1) * width), place * width);
}

function widthOf({ shape }: KeyPart): number {
  return countOf(shape.slice(1));
}

/** Index of the part that has the row. */
function lastNotAbove(firsts: readonly number[], row: number): number {
  let [low, high] = [0, firsts.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (firsts[middle] <= row) low = middle;
    else high = middle - 1;
  }
  return low;
}
