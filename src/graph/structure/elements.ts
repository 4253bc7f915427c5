/** Elements of values as typed arrays: what kernels read and write. Values of Shoal, TensorFlow.js and jax-js are read alike. */
import { describeValue } from '../../base/schema.ts';
import { ShoalError } from '../../base/errors.ts';
import { dtypeInfo, type DType, type TypedArray } from '../../memory/dtype.ts';
import type { Reals } from '../../memory/parameter-kernels.ts';
import { formatValue, type DenseValue, type Value } from './value.ts';

/** A value whose elements are at hand. */
export interface ElementsValue extends DenseValue {
  readonly data: TypedArray;
}

export function countOf(shape: readonly number[]): number {
  let count = 1;
  for (const dimension of shape) count *= dimension;
  return count;
}

export function elementsValue(dtype: string, shape: readonly number[], data: TypedArray): ElementsValue {
  return { dtype, shape, data };
}

export function emptyElements(dtype: string, count: number): TypedArray {
  const { bytes, view } = dtypeInfo(dtype as DType);
  return view(new ArrayBuffer(count * bytes), 0, count);
}

/** The elements as a typed array of the dtype; the value's own memory where that is one, so it must not be changed.
 *  @throws ShoalError `unsupported` when the elements cannot be read at once, `usage` when there are too few or too many. */
export function elementsOf(value: Value): TypedArray {
  const { dtype, shape } = (value ?? {}) as { dtype?: unknown; shape?: unknown };
  if (typeof dtype !== 'string' || !Array.isArray(shape))
    throw new ShoalError('usage', `elementsOf takes a value with dtype, shape and data, not ${describeValue(value)}`);
  const { data, dataSync } = value as { data?: unknown; dataSync?: () => unknown };
  const raw = typeof dataSync === 'function' ? dataSync.call(value) : data;
  if (raw === undefined || raw === null || typeof raw === 'function' || typeof (raw as { length?: unknown }).length !== 'number')
    throw new ShoalError('unsupported', `the elements of ${formatValue(value)} cannot be read: it has neither data nor dataSync()`);
  const list = raw as ArrayLike<number>;
  const count = countOf(value.shape);
  if (list.length !== count) throw new ShoalError('usage', `${formatValue(value)} must have ${count} elements, not ${list.length}`);
  const { empty } = dtypeInfo(value.dtype as DType);
  if (ArrayBuffer.isView(raw) && raw.constructor === empty.constructor) return raw as TypedArray;
  return elementsAs(value.dtype, list);
}

/** Elements of this dtype. */
export function elementsAs(dtype: string, list: ArrayLike<number>): TypedArray {
  const copy = emptyElements(dtype, list.length);
  if (copy instanceof BigInt64Array || copy instanceof BigUint64Array) for (let k = 0; k < list.length; k++) copy[k] = BigInt(list[k]);
  else copy.set(list);
  return copy;
}

/** A value that outlives its step. What came from another task may lie among others' elements, all of which its memory would keep: a
 *  small part of a larger memory is copied, anything else is kept as it is. */
export function kept(value: Value, counters: { bytesCopied: number }): Value {
  const { data } = value;
  if (!ArrayBuffer.isView(data) || data.byteLength * 2 >= data.buffer.byteLength) return value;
  counters.bytesCopied += data.byteLength;
  return elementsValue(value.dtype, value.shape, elementsOf(value).slice());
}

/** @throws ShoalError `unsupported` for anything but float32 and float64. */
export function realsOf(value: Value): Reals {
  const data = elementsOf(value);
  if (data instanceof Float32Array || data instanceof Float64Array) return data;
  throw new ShoalError('unsupported', `the optimisers' kernels take float32 and float64, not ${formatValue(value)}`);
}

/** Numbers of rows, checked. @throws ShoalError `usage` for one outside the table. */
export function rowNumbers(indices: Value, rows: number): Int32Array {
  const data = elementsOf(indices);
  const numbers = data instanceof Int32Array ? data : Int32Array.from(data as ArrayLike<number>, Number);
  for (let k = 0; k < numbers.length; k++) {
    const row = Number(data[k]);
    if (row < 0 || row >= rows) throw new ShoalError('usage', `index ${row} at ${k} is outside a table of ${rows} rows`);
  }
  return numbers;
}

/** Elements of one row. */
export function rowWidth(shape: readonly number[]): number {
  return countOf(shape.slice(1));
}
