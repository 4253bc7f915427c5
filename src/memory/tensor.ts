/** Tensors: a dtype and a shape over part of a region. Row-major, contiguous. */
import { ShoalError } from '../base/errors.ts';
import { anyList, checkArgument, describeValue } from '../base/schema.ts';
import { dtypeInfo, float16ViewOf, viewOf, type DType, type DTypeViews, type NativeFloat16Array } from './dtype.ts';
import type { Region } from './region.ts';

/** A dense tensor in memory that communication reads and writes in place: row-major, contiguous. `group.tensor` and `kv.tensor` make
 *  them; a typed array of the same dtype serves wherever a tensor does, at the price of a copy each way.
 *
 *      const x = group.tensor('float32', [2, 3]);
 *      x.data[4] = 1;                              // row 1, column 1 */
export class Tensor<D extends DType = DType> {
  /** Element type; says which typed array `data` is. */
  readonly dtype: D;
  /** Dimensions, the last one fastest; `[]` is a scalar. */
  readonly shape: readonly number[];
  /** Number of elements. */
  readonly count: number;
  /** Number of bytes. */
  readonly bytes: number;
  /** The region that holds the elements, which other tensors may share. */
  readonly region: Region;
  /** Offset of the first element in the region, in bytes. */
  readonly byteOffset: number;
  /** The elements, as a view of the region: no copy. */
  readonly data: DTypeViews[D];

  constructor(dtype: D, shape: readonly number[], region: Region, byteOffset: number) {
    const { bytes: elementBytes } = dtypeInfo(dtype);
    this.dtype = dtype;
    this.count = countOf(shape);
    this.shape = [...shape];
    this.bytes = this.count * elementBytes;
    this.region = region;
    this.byteOffset = byteOffset;
    if (!isMemory(region?.buffer))
      throw new ShoalError('usage', `tensor ${dtype}[${shape.join(', ')}]: its region is ${describeValue(region)}`);
    if (!Number.isSafeInteger(byteOffset) || byteOffset < 0 || byteOffset % elementBytes !== 0 || byteOffset + this.bytes > region.bytes) {
      const message = `tensor ${dtype}[${shape.join(', ')}] at byte ${byteOffset} does not fit the region of ${region.bytes} bytes`;
      throw new ShoalError('usage', message);
    }
    this.data = viewOf(dtype, region.buffer, byteOffset, this.count);
  }

  /** The elements of a float16 tensor as numbers, in the engine's own view of them: no copy.
   *  @throws ShoalError `usage` for another dtype; `unsupported` where the engine has no Float16Array. */
  get float16(): NativeFloat16Array {
    if (this.dtype !== 'float16') throw new ShoalError('usage', `float16 is a view of float16 tensors, this one is ${this.dtype}`);
    return float16ViewOf(this.region.buffer, this.byteOffset, this.count);
  }

  /** True once its memory has been given back: no operation accepts it. */
  get released(): boolean {
    return this.region.released === true;
  }
}

function isMemory(buffer: unknown): boolean {
  return buffer instanceof ArrayBuffer || buffer instanceof SharedArrayBuffer;
}

/** Largest number of dimensions of any tensor, wherever it is. */
export const dimensionsMax = 32;

/** Number of elements of a shape; 1 for a scalar `[]`, 0 when any dimension is 0.
 *  @throws ShoalError `usage` for anything but a list of at most `dimensionsMax`, and for a dimension that is not a non-negative
 *  integer. */
export function countOf(shape: readonly number[]): number {
  checkArgument('shape', shape, anyList);
  if (shape.length > dimensionsMax)
    throw new ShoalError('usage', `a shape has ${shape.length} dimensions; at most ${dimensionsMax} are allowed`);
  let count = 1;
  for (const dimension of shape) {
    if (!Number.isSafeInteger(dimension) || dimension < 0) {
      throw new ShoalError('usage', `shape [${shape.join(', ')}] is not valid: dimensions are non-negative integers`);
    }
    count *= dimension;
  }
  return count;
}

export function sameShape(a: readonly number[], b: readonly number[]): boolean {
  if (a.length !== b.length) return false;
  for (let axis = 0; axis < a.length; axis++) if (a[axis] !== b[axis]) return false;
  return true;
}
