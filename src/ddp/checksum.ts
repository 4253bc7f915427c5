/** Fingerprints of parameters: equal bits, equal fingerprint, on every machine. For comparing replicas, not for security. */
import { describeForeign } from '../memory/foreign-value.ts';
import { createHash } from 'node:crypto';
import { ShoalError } from '../base/errors.ts';
import { describeValue } from '../base/schema.ts';
import { groupBy } from '../base/collections/lists.ts';

/** 64 bits (the head of a SHA-256) over the bytes of the arrays in order, each preceded by its length: 16 hex digits.
 *  @throws ShoalError `usage` for anything but arrays. */
export function checksum(arrays: Iterable<ArrayBufferView>): string {
  const hash = createHash('sha256');
  if (typeof arrays !== 'object' || arrays === null || !(Symbol.iterator in arrays))
    throw new ShoalError('usage', `checksum takes a list of arrays, not ${describeValue(arrays)}`);
  for (const array of arrays) {
    if (!ArrayBuffer.isView(array)) throw new ShoalError('usage', `checksum takes arrays, not ${describeForeign(array)}`);
    hash.update(`${array.byteLength};`);
    hash.update(new Uint8Array(array.buffer, array.byteOffset, array.byteLength));
  }
  return hash.digest('hex').slice(0, 16);
}

/** The values of all ranks in one line: `rank 2 has ab…, ranks 0, 1, 3 have cd…`; the most frequent value last. */
export function describeDisagreement(values: readonly string[]): string {
  return [...groupBy(values.keys(), (rank) => values[rank])]
    .toSorted(([, a], [, b]) => a.length - b.length || (b[0] ?? 0) - (a[0] ?? 0))
    .map(([value, ranks]) => `${ranks.length === 1 ? 'rank' : 'ranks'} ${ranks.join(', ')} ${ranks.length === 1 ? 'has' : 'have'} ${value}`)
    .join('; ');
}

/** @throws ShoalError `usage` when `text` is not a checksum. */
export function checksumBytes(text: string): Uint8Array {
  if (!/^[0-9a-f]{16}$/.test(text)) throw new ShoalError('usage', `'${text}' is not a checksum: 16 hexadecimal digits`);
  return Uint8Array.from(Buffer.from(text, 'hex'));
}

/** The checksums that `bytes` holds, eight bytes each. */
export function checksumsOf(bytes: Uint8Array): string[] {
  return Array.from({ length: bytes.length / 8 }, (_, i) => Buffer.from(bytes.subarray(i * 8, i * 8 + 8)).toString('hex'));
}
