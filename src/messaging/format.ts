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
import { ByteReader, ByteWriter, textOf } from '../base/bytes.ts';
import { ShoalError } from '../base/errors.ts';
import { anyText, checkArgument, integer, that, type Shape } from '../base/schema.ts';

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

interface Code {
  readonly shape: Shape<unknown>;
  write(writer: ByteWriter, value: never, pointers: Uint8Array[]): void;
  read(reader: ByteReader, pointers: readonly Uint8Array[]): unknown;
}

const codes: Readonly<Record<string, Code>> = {
  i: {
    shape: integer({ min: -0x80000000, max: 0x7fffffff }),
    write: (writer, value: number) => writer.u32(value >>> 0),
    read: (reader) => reader.u32() | 0,
  },
  '1': { shape: integer({ min: 0, max: 0xff }), write: (writer, value: number) => writer.u8(value), read: (reader) => reader.u8() },
  '2': { shape: integer({ min: 0, max: 0xffff }), write: (writer, value: number) => writer.u16(value), read: (reader) => reader.u16() },
  '4': { shape: integer({ min: 0, max: 0xffffffff }), write: (writer, value: number) => writer.u32(value), read: (reader) => reader.u32() },
  '8': {
    shape: that('a bigint or a safe integer from 0 to 2⁶⁴−1', (value) => {
      if (typeof value !== 'bigint' && !Number.isSafeInteger(value)) return false;
      return BigInt.asUintN(64, BigInt(value as bigint | number)) === BigInt(value as bigint | number);
    }),
    write: (writer, value: bigint | number) => writer.u64(BigInt(value)),
    read: (reader) => reader.u64(),
  },
  s: {
    shape: anyText,
    write: (writer, value: string) => {
      const text = Buffer.from(value);
      writer.u32(text.length);
      writer.put(text);
    },
    read: (reader) => textOf(reader.bytes(reader.u32())),
  },
  p: {
    shape: that(
      'a Uint8Array over a SharedArrayBuffer, which is the only memory that threads share',
      (value) => value instanceof Uint8Array && value.buffer instanceof SharedArrayBuffer,
    ),
    write: (writer, value: Uint8Array, pointers) => writer.u32(pointers.push(value) - 1),
    read: (reader, pointers) => {
      const index = reader.u32();
      const pointer = pointers[index];
      if (pointer === undefined) throw reader.malformed(`it refers to pointer ${index} of ${pointers.length}`);
      return pointer;
    },
  },
};

/** The frame. Pointers are appended to `pointers`.
 *  @throws ShoalError `usage` when the values do not suit the format. */
export function encodeFormat(format: string, values: readonly unknown[], pointers: Uint8Array[]): Uint8Array {
  if (values.length !== format.length) {
    throw new ShoalError('usage', `format '${format}' wants ${format.length} values, ${values.length} were given`);
  }
  const kinds = format.split('').map((code) => codeOf(format, code));
  for (const [position, { shape }] of kinds.entries()) checkArgument(`value ${position} of format '${format}'`, values[position], shape);
  const writer = new ByteWriter();
  for (const [position, { write }] of kinds.entries()) {
    writer.u8(format.charCodeAt(position));
    write(writer, values[position] as never, pointers);
  }
  return writer.bytes;
}

/** The values of a frame made with the same format.
 *  @throws ShoalError `protocol` when it was not, or is cut. */
export function decodeFormat(format: string, frame: Uint8Array, pointers: readonly Uint8Array[]): unknown[] {
  const reader = new ByteReader(frame, `a frame of format '${format}'`);
  const values = format.split('').map((code) => {
    const tag = String.fromCharCode(reader.u8());
    if (tag !== code)
      throw reader.malformed(`it has a '${printable(tag)}' where the format has '${code}'; do sender and receiver agree on it?`);
    return codeOf(format, code).read(reader, pointers);
  });
  reader.end();
  return values;
}

/** @throws ShoalError `usage` for a code that is none. */
function codeOf(format: string, code: string): Code {
  const known = codes[code];
  if (known === undefined) throw new ShoalError('usage', `format '${format}' has the unknown code '${code}'; there are i 1 2 4 8 s p`);
  return known;
}

function printable(tag: string): string {
  return /[\x20-\x7e]/.test(tag) ? tag : `\\x${tag.charCodeAt(0).toString(16)}`;
}
