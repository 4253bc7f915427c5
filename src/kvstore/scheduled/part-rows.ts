/** Pushes and pulls of rows, and of a parameter that was cut between its rows: which part has which.
 *
 *      rows 7 2 3 9 of parts 0…4 │ 5…9      part 0: its rows 2 3, places 1 2      part 1: its rows 2 4, places 0 3 */
import { createRegionAllocator } from '../../memory/regions/allocator.ts';
import type { TypedArray } from '../../memory/dtype.ts';
import { countOf, Tensor } from '../../memory/tensor.ts';
import type { RowTransfer } from '../calls/operation.ts';
import { rowBytesOf } from '../../ps/protocol/placement.ts';
import { rowsByPart, type PartRows } from '../../ps/values/sparse-rows.ts';
import type { Value } from '../calls/types.ts';
import { elementsOf, fittingRows, rowIdsOf, type NamedParameter } from '../calls/values-argument.ts';
import type { PartCall } from './part-calls.ts';
import { viewOf, type KeyPart, type PartitionedKey } from './partitioned-keys.ts';

/** A parameter whose rows are pushed and pulled. */
export type TableKey = PartitionedKey & NamedParameter;

interface RowCalls {
  readonly calls: PartCall[];
  /** Puts rows to their places when all have come. */
  readonly gather?: () => void;
}

/** A push goes to every part, with the rows that there are: every worker pushes it. A pull asks the parts that have rows which are asked
 *  for.
 *  @param whole with rows of its own, and of a push with values of its own. @param table undefined: others initialised it, and the store
 *  underneath knows its shape. @throws ShoalError `usage`, `mismatch`. */
export function rowCalls(table: TableKey | undefined, whole: RowTransfer): RowCalls {
  const { type, value } = whole;
  const uncut = { calls: [{ bytes: elementsOf(value).data.byteLength, operation: whole }] };
  if (table === undefined) return uncut;
  const pushes = type === 'rowSparsePush';
  const ids = rowIdsOf(table, whole.rows, { ascending: pushes });
  fittingRows(table, value, ids.length);
  if (table.parts.length === 1) return uncut;
  const rowBytes = rowBytesOf(table);
  const all = rowsOfParts(table.parts, ids);
  const asked = ids.length === 0 && !pushes ? all.slice(0, 1) : all.filter(({ rows }) => pushes || rows.length > 0);
  const apart: { readonly each: RowsOfPart; readonly rows: Value }[] = [];
  const calls = asked.map((each): PartCall => {
    // Rows that are pushed ascend: those of a part are beside each other.
    const view = rowsView(value, each);
    const rows = view ?? rowsApart(value, each);
    if (view === undefined) apart.push({ each, rows });
    return { bytes: each.rows.length * rowBytes, operation: { ...whole, key: each.part.key, rows: each.rows, value: rows } };
  });
  const gather = (): void => {
    for (const { each, rows } of apart) scatterRows(value, rows, each);
  };
  return { calls, gather };
}

interface RowsOfPart extends PartRows {
  readonly part: KeyPart;
}

/** The rows of every part, also of parts without any. @param ids rows that the parameter has. */
function rowsOfParts(parts: readonly KeyPart[], ids: Uint32Array): RowsOfPart[] {
  const width = widthOf(parts[0]);
  const firsts = parts.map(({ offset }) => offset / width);
  return rowsByPart(firsts, ids).map((rows, at) => ({ part: parts[at], ...rows }));
}

/** The part's rows of a value that has all of them, if they are beside each other there: the same memory. */
function rowsView(value: Value, { part, places }: RowsOfPart): Value | undefined {
  const count = places.length;
  const first = count === 0 ? 0 : places[0];
  if (count > 0 && places[count - 1] - first + 1 !== count) return undefined;
  const width = widthOf(part);
  return viewOf(value, { offset: first * width, count: count * width, shape: [count, ...part.shape.slice(1)] });
}

/** Room for the part's rows. */
function rowsApart(value: Value, { part, places }: RowsOfPart): Value {
  const shape = [places.length, ...part.shape.slice(1)];
  if (!(value instanceof Tensor)) return new (value.constructor as new (count: number) => TypedArray)(countOf(shape));
  return new Tensor(
    value.dtype,
    shape,
    createRegionAllocator().create(Math.max(1, countOf(shape) * (value.bytes / Math.max(1, value.count)))),
    0,
  );
}

/** Copies the part's rows to their places in the value that has all. */
function scatterRows(value: Value, from: Value, { part, places }: RowsOfPart): void {
  const [target, source] = [value, from].map((each) => (each instanceof Tensor ? each.data : each) as Float32Array);
  const width = widthOf(part);
  for (const [at, place] of places.entries()) target.set(source.subarray(at * width, (at + 1) * width), place * width);
}

function widthOf({ shape }: KeyPart): number {
  return countOf(shape.slice(1));
}
