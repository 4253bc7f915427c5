/** Functions that every parser of bytes from outside needs. Layouts, lengths and their checks are each parser's own. */

/** The same bytes, for reading and writing numbers at offsets. */
export function dataViewOf(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

/** True for a whole number from 0 that a double holds exactly: a number, a length, an offset. */
export function isCount(value: number): boolean;
export function isCount(value: unknown): value is number;
export function isCount(value: unknown): boolean {
  return Number.isSafeInteger(value) && (value as number) >= 0 && !Object.is(value, -0);
}

export function areCounts(value: unknown): value is number[] {
  return Array.isArray(value) && value.every(isCount);
}
