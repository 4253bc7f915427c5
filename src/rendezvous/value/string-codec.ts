/** Strings as they travel: TensorFlow's TensorProto with `string_val`, in the wire format of Protocol Buffers. Written by hand: it is
 *  one field, and needs no package. Elements that repeat the field's tag cost two to six bytes each. */
import { ShoalError } from '../../base/errors.ts';

/** Field 8, length-delimited. */
const stringValueTag = 0x42;

export function encodeStrings(strings: readonly string[]): Uint8Array {
  const lengths = strings.map((text) => Buffer.byteLength(text));
  const bytes = Buffer.allocUnsafeSlow(lengths.reduce((sum, length) => sum + 1 + varintBytes(length) + length, 0));
  let at = 0;
  strings.forEach((text, index) => {
    bytes[at++] = stringValueTag;
    let left = lengths[index];
    for (; left >= 0x80; left = Math.floor(left / 0x80)) bytes[at++] = (left % 0x80) | 0x80;
    bytes[at++] = left;
    at += bytes.write(text, at, 'utf8');
  });
  return bytes;
}

/** @throws ShoalError `protocol` when the bytes are not exactly `count` strings. */
export function decodeStrings(bytes: Uint8Array, count: number): string[] {
  const text = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const strings: string[] = [];
  for (let at = 0; at < text.length;) {
    if (text[at++] !== stringValueTag || strings.length >= count) throw malformed(count);
    let length = 0;
    let factor = 1;
    for (let more = true; more; factor *= 0x80) {
      if (at >= text.length || factor > 2 ** 28) throw malformed(count);
      const byte = text[at++];
      length += (byte & 0x7f) * factor;
      more = byte >= 0x80;
    }
    if (length > text.length - at) throw malformed(count);
    strings.push(text.toString('utf8', at, at + length));
    at += length;
  }
  if (strings.length !== count) throw malformed(count);
  return strings;
}

function varintBytes(length: number): number {
  let bytes = 1;
  for (let left = length; left >= 0x80; left = Math.floor(left / 0x80)) bytes++;
  return bytes;
}

function malformed(count: number): ShoalError {
  return new ShoalError('protocol', `a tensor of ${count} strings came as bytes that are not ${count} strings`);
}
