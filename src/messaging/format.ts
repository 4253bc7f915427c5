/** Format frames: several small values in one frame, described by a string as in CZMQ's zsock_send. Pure.
 *
 *    i int32    1 uint8    2 uint16    4 uint32    8 uint64 (bigint)    s string (UTF-8)    p shared memory
 *
 *  Every value is preceded by its code, so that a frame parsed with another format than it was made with is an error
 *  and never garbage. Little-endian, not aligned:
 *
 *    byte 0    1          5    6             9  …
 *        │'i' │int32     │'s' │length u32     │UTF-8 …
 *
 *  `p` is memory that threads of this process share: a Uint8Array over a SharedArrayBuffer. The frame holds an index
 *  into the message's list of them; it can only travel over inproc. */
import { ShoalError } from '../base/errors.ts';

type FormatValue<Code extends string> = Code extends 'i' | '1' | '2' | '4'
  ? number
  : Code extends '8'
    ? bigint
    : Code extends 's'
      ? string
      : Code extends 'p'
        ? Uint8Array
        : never;

/** `FormatValues<'i8s'>` is `[number, bigint, string]`; a format known only at run time gives `unknown[]`. */
export type FormatValues<Format extends string> = string extends Format
  ? unknown[]
  : Format extends `${infer Code}${infer Rest}`
    ? [FormatValue<Code>, ...FormatValues<Rest>]
    : [];

/** Width and inclusive range of the integers that are JavaScript numbers. */
const integers: Readonly<Record<string, { readonly bytes: number; readonly least: number; readonly most: number }>> = {
  i: { bytes: 4, least: -0x80000000, most: 0x7fffffff },
  '1': { bytes: 1, least: 0, most: 0xff },
  '2': { bytes: 2, least: 0, most: 0xffff },
  '4': { bytes: 4, least: 0, most: 0xffffffff },
};

const uint64Max = 0xffffffffffffffffn;

/** The frame. Pointers are appended to `pointers`.
 *  @throws ShoalError `usage` when the values do not suit the format. */
export function encodeFormat(format: string, values: readonly unknown[], pointers: Uint8Array[]): Uint8Array {
  if (values.length !== format.length) {
    throw new ShoalError('usage', `format '${format}' wants ${format.length} values, ${values.length} were given`);
  }
  const texts = values.map((value) => (typeof value === 'string' ? Buffer.from(value, 'utf8') : undefined));
  const checked = format.split('').map((code, k) => checkValue(format, code, k, values[k]));
  const frame = Buffer.alloc(checked.reduce((sum, bytes, k) => sum + 1 + bytes + (texts[k]?.length ?? 0), 0));
  let at = 0;
  for (const [k, code] of format.split('').entries()) {
    const value = values[k];
    at = frame.writeUInt8(code.charCodeAt(0), at);
    if (code === 's') {
      const text = texts[k]!;
      at = frame.writeUInt32LE(text.length, at);
      at += text.copy(frame, at);
    } else if (code === 'p') {
      at = frame.writeUInt32LE(pointers.push(value as Uint8Array) - 1, at);
    } else if (code === '8') {
      at = frame.writeBigUInt64LE(BigInt(value as bigint | number), at);
    } else {
      const { bytes } = integers[code];
      at = code === 'i' ? frame.writeInt32LE(value as number, at) : frame.writeUIntLE(value as number, at, bytes);
    }
  }
  return frame;
}

/** The values of a frame made with the same format.
 *  @throws ShoalError `protocol` when it was not, or is cut. */
export function decodeFormat(format: string, frame: Uint8Array, pointers: readonly Uint8Array[]): unknown[] {
  const bytes = Buffer.from(frame.buffer, frame.byteOffset, frame.byteLength);
  let at = 0;
  const take = (count: number): number => {
    if (count > bytes.length - at) throw malformed(format, `it ends after ${bytes.length} bytes`);
    const start = at;
    at += count;
    return start;
  };
  const values = format.split('').map((code) => {
    const tag = String.fromCharCode(bytes[take(1)]);
    if (tag !== code) throw malformed(format, `it has a '${printable(tag)}' where the format has '${code}'`);
    switch (code) {
      case 's': {
        const length = bytes.readUInt32LE(take(4));
        const start = take(length);
        return bytes.toString('utf8', start, start + length);
      }
      case 'p': {
        const index = bytes.readUInt32LE(take(4));
        const pointer = pointers[index];
        if (pointer === undefined) throw malformed(format, `it refers to pointer ${index} of ${pointers.length}`);
        return pointer;
      }
      case '8':
        return bytes.readBigUInt64LE(take(8));
      case 'i':
        return bytes.readInt32LE(take(4));
      default: {
        const integer = integers[code];
        if (integer === undefined) throw unknownCode(format, code);
        return bytes.readUIntLE(take(integer.bytes), integer.bytes);
      }
    }
  });
  if (at !== bytes.length) throw malformed(format, `${bytes.length - at} bytes are left over`);
  return values;
}

/** @returns bytes of the value after its code, without a string's own bytes. */
function checkValue(format: string, code: string, position: number, value: unknown): number {
  const wrong = (wanted: string): ShoalError =>
    new ShoalError('usage', `value ${position} of format '${format}' must be ${wanted}, not ${describe(value)}`);
  switch (code) {
    case 's':
      if (typeof value !== 'string') throw wrong('a string');
      return 4;
    case 'p':
      if (!(value instanceof Uint8Array) || !(value.buffer instanceof SharedArrayBuffer))
        throw wrong('a Uint8Array over a SharedArrayBuffer, which is the only memory that threads share');
      return 4;
    case '8':
      if (typeof value !== 'bigint' && !Number.isSafeInteger(value)) throw wrong('a bigint or a safe integer');
      if (BigInt(value as bigint | number) < 0n || BigInt(value as bigint | number) > uint64Max) throw wrong('from 0 to 2⁶⁴−1');
      return 8;
    default: {
      const integer = integers[code];
      if (integer === undefined) throw unknownCode(format, code);
      const { least, most, bytes } = integer;
      if (!Number.isInteger(value) || (value as number) < least || (value as number) > most)
        throw wrong(`an integer from ${least} to ${most}`);
      return bytes;
    }
  }
}

function unknownCode(format: string, code: string): ShoalError {
  return new ShoalError('usage', `format '${format}' has the unknown code '${code}'; there are i 1 2 4 8 s p`);
}

function malformed(format: string, what: string): ShoalError {
  return new ShoalError('protocol', `frame does not have format '${format}': ${what}; do sender and receiver agree on it?`);
}

function printable(tag: string): string {
  return /[\x20-\x7e]/.test(tag) ? tag : `\\x${tag.charCodeAt(0).toString(16)}`;
}

function describe(value: unknown): string {
  return typeof value === 'number' || typeof value === 'bigint' || typeof value === 'string' ? `${typeof value} ${value}` : typeof value;
}
