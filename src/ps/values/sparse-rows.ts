/** Sums of rows: of several lists of rows, the union, and of each row the sum of those that have it, in their order. */
import type { DType } from '../../memory/dtype.ts';
import { balancedTree, type Kernels } from '../../memory/kernels.ts';

export interface Rows {
  /** Distinct and ascending. */
  readonly rows: Uint32Array;
  /** Values of the rows, side by side. */
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
    const places = Uint32Array.from(part.rows, (row) => place.get(row)!);
    const again: number[] = [];
    for (const [k, at] of places.entries()) {
      if (seen[at] === 1) again.push(k);
      else values.set(part.values.subarray(k * rowBytes, (k + 1) * rowBytes), at * rowBytes);
      seen[at] = 1;
    }
    // Rows that are there already are brought together, so that adding is one call.
    const known = Uint32Array.from(again, (k) => places[k]);
    const sum = gatherRows(values, known, rowBytes);
    kernels.reduce(dtype, 'sum', [sum], [sum, gatherRows(part.values, Uint32Array.from(again), rowBytes)], pair);
    scatterRows(values, sum, known, rowBytes);
  }
  return { rows, values };
}

/** Rows of one part: counted from its first; and their places among all rows, ascending. */
export interface PartRows {
  readonly rows: Uint32Array;
  readonly places: Uint32Array;
}

/** Rows, in any order, of each part of a parameter that was cut between its rows. @param firsts the first row of each part, ascending. */
export function rowsByPart(firsts: readonly number[], all: Uint32Array): PartRows[] {
  const lists = firsts.map(() => ({ rows: [] as number[], places: [] as number[] }));
  for (const [place, row] of all.entries()) {
    const at = lastNotAbove(firsts, row);
    lists[at].rows.push(row - firsts[at]);
    lists[at].places.push(place);
  }
  return lists.map(({ rows, places }) => ({ rows: Uint32Array.from(rows), places: Uint32Array.from(places) }));
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

/** Arrays that have the same rows, each of its own width, in bytes. */
export interface RowArray {
  readonly bytes: Uint8Array;
  readonly rowBytes: number;
}

/** Rows of several arrays are brought together, so that the change is one call, and put back. */
export function changeRows(arrays: readonly RowArray[], rows: Uint32Array, change: (gathered: readonly Uint8Array[]) => void): void {
  const gathered = arrays.map(({ bytes, rowBytes }) => gatherRows(bytes, rows, rowBytes));
  change(gathered);
  for (const [k, { bytes, rowBytes }] of arrays.entries()) scatterRows(bytes, gathered[k], rows, rowBytes);
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
