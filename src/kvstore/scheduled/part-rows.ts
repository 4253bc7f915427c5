/** Pushes and pulls of rows, and of a parameter that was cut between its rows: which part has which.
 *
 *      rows 7 2 3 9 of parts 0…4 │ 5…9      part 0: its rows 2 3, places 1 2      part 1: its rows 2 4, places 0 3 */
import { createRegionAllocator } from '../../memory/regions/allocator.ts';
import { must } from '../../base/assert.ts';
import { dtypeInfo, type TypedArray } from '../../memory/dtype.ts';
import { countOf, Tensor } from '../../memory/tensor.ts';
import type { RowTransfer } from '../calls/operation.ts';
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

/** Every part is pushed by every worker, with the rows that there are. @param push with rows and values of its own; ascending rows.
 *  @param table undefined: others initialised it, and the store underneath knows its shape.
 *  @throws ShoalError `usage`, `mismatch`. */
export function rowPushes(table: TableKey | undefined, push: RowTransfer): RowCalls {
  if (table === undefined) return { calls: [wholeCall(push)] };
  const ids = rowIdsOf(table, push.rows, { ascending: true });
  fittingRows(table, push.value, ids.length);
  if (table.parts.length === 1) return { calls: [wholeCall(push)] };
  const calls = rowsOfParts(table.parts, ids).map((each): PartCall => {
    const own = must(rowsView(push.value, each), () => 'ascending rows of a part are beside each other');
    return partCall(table, push, each, own);
  });
  return { calls };
}

/** The parts that have rows which are asked for, and what gathers them. @throws ShoalError `usage`, `mismatch`. */
export function rowPulls(table: TableKey | undefined, pull: RowTransfer): RowCalls {
  if (table === undefined) return { calls: [wholeCall(pull)] };
  const { value: out } = pull;
  const ids = rowIdsOf(table, pull.rows, { ascending: false });
  fittingRows(table, out, ids.length);
  const all = rowsOfParts(table.parts, ids);
  const apart: { readonly each: RowsOfPart; readonly rows: Value }[] = [];
  const asked = ids.length === 0 ? all.slice(0, 1) : all.filter(({ rows }) => rows.length > 0);
  const calls = asked.map((each): PartCall => {
    const view = table.parts.length === 1 ? out : rowsView(out, each);
    const rows = view ?? rowsApart(out, each);
    if (view === undefined) apart.push({ each, rows });
    return partCall(table, pull, each, rows);
  });
  const gather = (): void => {
    for (const { each, rows } of apart) scatterRows(out, rows, each);
  };
  return { calls, gather };
}

function wholeCall(operation: RowTransfer): PartCall {
  return { bytes: elementsOf(operation.value).data.byteLength, operation };
}

function partCall(table: TableKey, whole: RowTransfer, { part, rows }: RowsOfPart, value: Value): PartCall {
  return { bytes: bytesOfRows(table, rows.length), operation: { ...whole, key: part.key, rows, value } };
}

function bytesOfRows({ dtype, shape }: TableKey, rows: number): number {
  return rows * countOf(shape.slice(1)) * dtypeInfo(dtype).bytes;
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
