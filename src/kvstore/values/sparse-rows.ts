/** Sums of rows: of several lists of rows, the union, and of each row the sum of those that have it, in their order. */
import type { DType } from '../../memory/dtype.ts';
import { balancedTree, type Kernels } from '../../memory/kernels.ts';

export interface Rows {
  /** Distinct and ascending. */
  readonly rows: Uint32Array;
  /** Side by side. */
  readonly values: Uint8Array;
}

const pair = balancedTree(2);

export function sumRows(kernels: Kernels, dtype: DType, rowBytes: number, parts: readonly Rows[]): Rows {
  if (parts.length === 1) return parts[0];
  const union = new Set<number>();
  for (const part of parts) for (const row of part.rows) union.add(row);
  const rows = Uint32Array.from(union).sort();
  const place = new Map<number, number>();
  for (const [k, row] of rows.entries()) place.set(row, k);
  const values = new Uint8Array(new ArrayBuffer(Math.ceil((rows.length * rowBytes) / 8) * 8)).subarray(0, rows.length * rowBytes);
  const seen = new Uint8Array(rows.length);
  for (const part of parts) {
    for (const [k, row] of part.rows.entries()) {
      const at = place.get(row)!;
      const target = values.subarray(at * rowBytes, (at + 1) * rowBytes);
      const source = part.values.subarray(k * rowBytes, (k + 1) * rowBytes);
      if (seen[at] === 0) target.set(source);
      else kernels.reduce(dtype, 'sum', [target], [target, source], pair);
      seen[at] = 1;
    }
  }
  return { rows, values };
}

/** Rows side by side. */
export function gatherRows(source: Uint8Array, rows: Uint32Array, rowBytes: number): Uint8Array {
  const target = new Uint8Array(new ArrayBuffer(Math.ceil((rows.length * rowBytes) / 8) * 8));
  for (let k = 0; k < rows.length; k++) target.set(source.subarray(rows[k] * rowBytes, (rows[k] + 1) * rowBytes), k * rowBytes);
  return target.subarray(0, rows.length * rowBytes);
}

export function scatterRows(target: Uint8Array, source: Uint8Array, rows: Uint32Array, rowBytes: number): void {
  for (let k = 0; k < rows.length; k++) target.set(source.subarray(k * rowBytes, (k + 1) * rowBytes), rows[k] * rowBytes);
}
