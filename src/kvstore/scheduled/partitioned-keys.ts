/** Parameters that a scheduled store has cut: each part is a parameter of its own in the store underneath, over a range of the
 *  elements. It must not know tasks. */
import { ShoalError } from '../../base/errors.ts';
import { dtypeInfo } from '../../memory/dtype.ts';
import { countOf, Tensor } from '../../memory/tensor.ts';
import type { Value } from '../calls/types.ts';
import type { Placeable } from '../../ps/protocol/placement.ts';

/** A range of elements. */
export interface ElementRange {
  readonly offset: number;
  readonly count: number;
  readonly shape: readonly number[];
}

/** Elements of a parameter, and the key they have underneath. */
export interface KeyPart extends ElementRange {
  readonly key: string;
}

/** A parameter as it was initialised. */
export interface PartitionedKey extends Placeable {
  readonly parts: readonly KeyPart[];
}

/** Cuts a parameter into as few parts as can be, of equal size. Matrices are cut between rows, and their parts are matrices; those with
 *  rows that are larger than a partition are cut anywhere, into vectors. */
export function cutKey(key: string, shape: readonly number[], elementBytes: number, partitionBytes: number): readonly KeyPart[] {
  const count = countOf(shape);
  const perPart = Math.max(1, Math.floor(partitionBytes / elementBytes));
  if (count <= perPart) return [{ key, offset: 0, count, shape }];
  const width = countOf(shape.slice(1));
  const [unit, tail] = width <= perPart ? [width, shape.slice(1)] : [1, []];
  const units = count / unit;
  const parts = Math.ceil(units / Math.floor(perPart / unit));
  const at = (index: number): number => Math.floor((units * index) / parts);
  return Array.from({ length: parts }, (_, index) => ({
    // Without their number: workers that cut it in another way have parts of the same names and other sizes, and are told.
    key: `${key}/part-${index}`,
    offset: at(index) * unit,
    count: (at(index + 1) - at(index)) * unit,
    shape: [at(index + 1) - at(index), ...tail],
  }));
}

/** @throws ShoalError `mismatch` for a value of another size than these parts have. */
export function checkCount(key: string, parts: readonly KeyPart[], value: Value): void {
  const count = parts.reduce((sum, part) => sum + part.count, 0);
  const own = value instanceof Tensor ? value.count : value.length;
  if (own !== count) throw new ShoalError('mismatch', `parameter '${key}' has ${count} elements, the value ${own}`);
}

/** A part of the value: the same memory. */
export function viewOf(value: Value, { offset, count, shape }: ElementRange): Value {
  if (!(value instanceof Tensor)) return value.subarray(offset, offset + count);
  const { dtype, region, byteOffset } = value;
  return new Tensor(dtype, shape, region, byteOffset + offset * dtypeInfo(dtype).bytes);
}
