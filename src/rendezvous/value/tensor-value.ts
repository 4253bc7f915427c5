/** The values that travel between workers: dense tensors as they lie in memory, and strings, which are serialised. Shoal's tensors are
 *  such values. Ownership goes with the value: its last owner calls `release`. */
import { foreignValue } from '../../memory/foreign-value.ts';
import { messageOf, ShoalError } from '../../base/errors.ts';
import { describeValue } from '../../base/schema.ts';
import { dtypeInfo, type DType, type TypedArray } from '../../memory/dtype.ts';
import { memoryRegion } from '../../memory/regions/thread.ts';
import { countOf } from '../../memory/tensor.ts';
import type { Span } from '../../fabric/fabric.ts';

/** The elements that a tensor between workers may have: those of a dtype, or `string`, which is serialised. */
export type TensorDType = DType | 'string';

/** A tensor to send, or one that has come: dense, of at most 32 dimensions. */
export interface TensorValue {
  /** Element type of `data`. */
  readonly dtype: TensorDType;
  /** Dimensions, the last one fastest; `[]` is a scalar. */
  readonly shape: readonly number[];
  /** Row-major: the typed array of the dtype, or strings. */
  readonly data: TypedArray | readonly string[];
  /** Nobody will look at it any more: memory of a received value is used again, that of a sent one may be changed. Idempotent.
   *  @param cause why a sent one did not reach its receiver. */
  release?: Release;
}

/** The end of a use of memory. */
export type Release = (cause?: ShoalError) => void;

/** @throws ShoalError `usage` for what is no value: its dtype, its shape, or data that are not as both say. */
export function checkTensorValue(value: TensorValue): TensorValue {
  const foreign = foreignValue(value);
  if (foreign !== undefined) throw new ShoalError('usage', `a value to send must have dtype, shape and data, not be ${foreign}`);
  if (typeof value !== 'object' || value === null || !Array.isArray(value.shape))
    throw new ShoalError('usage', `a value to send must have dtype, shape and data, but is ${describeValue(value)}`);
  const { dtype, shape, data } = value;
  const count = countOf(shape);
  const length = Array.isArray(data) || ArrayBuffer.isView(data) ? data.length : -1;
  if (length !== count)
    throw new ShoalError('usage', `${dtype}[${shape.join(', ')}] must have ${count} elements, but its data are ${describeData(data)}`);
  if (dtype === 'string') {
    if (!Array.isArray(data) || !data.every((each) => typeof each === 'string'))
      throw new ShoalError('usage', `a value of dtype string must have a list of strings, not ${describeData(data)}`);
    return value;
  }
  const { bytes } = dtypeInfo(dtype);
  if (!ArrayBuffer.isView(data) || data.BYTES_PER_ELEMENT !== bytes)
    throw new ShoalError('usage', `a value of dtype ${dtype} must have a typed array of ${bytes}-byte elements, not ${describeData(data)}`);
  return value;
}

function describeData(data: unknown): string {
  const length = Array.isArray(data) || ArrayBuffer.isView(data) ? ` of ${(data as unknown as { length: number }).length}` : '';
  return `${describeValue(data)}${length}`;
}

/** Any memory of this thread as the source of a write: a write needs its bytes only. */
export function spanOf(data: ArrayBufferView): Span {
  const { buffer, byteOffset, byteLength } = data;
  return { region: memoryRegion(buffer), offset: byteOffset, bytes: byteLength };
}

/** Memory of this thread for a tensor. @throws ShoalError `out-of-memory`. */
export function allocated(bytes: number): ArrayBuffer {
  try {
    return new ArrayBuffer(bytes);
  } catch (cause) {
    throw new ShoalError('out-of-memory', `no memory for a tensor of ${bytes} bytes: ${messageOf(cause)}`, { bytes, cause });
  }
}

export const nothingToWrite: Span = spanOf(new Uint8Array(0));
