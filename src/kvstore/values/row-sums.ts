/** Rows that several workers pushed, as one: every row that one of them has, with the sum over those that have it. */
import type { DType, TypedArray } from '../../memory/dtype.ts';
import { balancedTree, type Kernels } from '../../memory/kernels.ts';
import { emptyLike } from './device-values.ts';
import { bytesOf } from './values-argument.ts';

export interface PushedRows {
  /** Distinct and ascending. */
  readonly rows: Uint32Array;
  /** rows × width elements. */
  readonly values: TypedArray;
}

/** In the order of the parts, one after the other: the same bits on every worker. */
export function sumRows(kernels: Kernels, dtype: DType, width: number, parts: readonly PushedRows[]): PushedRows {
  const rows = Uint32Array.from(new Set(parts.flatMap((part) => [...part.rows]))).sort();
  const place = new Map<number, number>();
  for (const [k, row] of rows.entries()) place.set(row, k);
  const values = emptyLike(dtype, rows.length * width);
  const seen = new Uint8Array(rows.length);
  for (const part of parts) {
    const again: number[] = [];
    for (const [k, row] of part.rows.entries()) {
      const at = place.get(row)!;
      if (seen[at] === 1) again.push(k);
      else values.set(part.values.subarray(k * width, (k + 1) * width) as never, at * width);
      seen[at] = 1;
    }
    // Rows that are there already are brought together, so that adding is one call.
    const [sum, added] = [emptyLike(dtype, again.length * width), emptyLike(dtype, again.length * width)];
    for (const [k, index] of again.entries()) {
      const at = place.get(part.rows[index])!;
      sum.set(values.subarray(at * width, (at + 1) * width) as never, k * width);
      added.set(part.values.subarray(index * width, (index + 1) * width) as never, k * width);
    }
    kernels.reduce(dtype, 'sum', [bytesOf(sum)], [bytesOf(sum), bytesOf(added)], balancedTree(2));
    for (const [k, index] of again.entries()) {
      const at = place.get(part.rows[index])!;
      values.set(sum.subarray(k * width, (k + 1) * width) as never, at * width);
    }
  }
  return { rows, values };
}
