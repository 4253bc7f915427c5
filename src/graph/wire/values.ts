/** Values as bytes between tasks. Several in one body: a table of fixed heads, then the elements, each at a multiple of 8, so that who
 *  receives them makes views and no copies.
 *
 *      u32 count │ per value: u8 status │ u8 dtype │ u16 rank │ u32 – │ f64 bytes │ f64 × rank dimensions │ … elements
 *
 *  Status: a value, or dead. Strings are a JSON list. */
import { ByteReader, ByteWriter, Layout, textOf } from '../../base/bytes.ts';
import { dtypeInfo, dtypes, type DType } from '../../memory/dtype.ts';
import { dimensionsMax } from '../../memory/tensor.ts';
import { Reference } from '../execute/variable-store.ts';
import { joinPieces, type Pieces } from '../rpc/rpc.ts';
import { countOf, elementsOf } from '../structure/elements.ts';
import type { Value } from '../structure/value.ts';

/** One of several values. Undefined: dead. */
export type Slot = Value | undefined;

const format = 'a message of values';
const tableHead = new Layout(format, { count: 'u32', zero: 'u32' });
const valueHead = new Layout(format, { status: 'u8', code: 'u8', rank: 'u16', zero: 'u32', bytes: 'f53' });
const dimension = new Layout(format, { length: 'f53' });
const [isValue, isDead] = [0, 1];
const stringCode = 255;
const countMax = 1_000_000;
const noBytes = new Uint8Array(0);
const zeros = new Uint8Array(8);

interface Encoded {
  readonly status: number;
  readonly code: number;
  readonly shape: readonly number[];
  readonly bytes: Uint8Array;
}

/** The elements are not copied: pieces refer to them. */
export function encodeSlots(slots: readonly Slot[]): Pieces {
  const encoded = slots.map(encode);
  const writer = new ByteWriter();
  writer.record(tableHead, { count: slots.length });
  for (const { status, code, shape, bytes } of encoded) {
    writer.record(valueHead, { status, code, rank: shape.length, bytes: bytes.byteLength });
    for (const length of shape) writer.record(dimension, { length });
  }
  for (const { bytes } of encoded) {
    if (bytes.byteLength > 0) writer.lend(bytes);
    writer.put(zeros.subarray(0, -bytes.byteLength & 7));
  }
  return writer.pieces;
}

function encode(slot: Slot): Encoded {
  if (slot === undefined) return { status: isDead, code: 0, shape: [], bytes: noBytes };
  const value = slot instanceof Reference ? slot.read() : slot;
  const { dtype, shape } = value;
  if (dtype === 'string')
    return { status: isValue, code: stringCode, shape, bytes: Buffer.from(JSON.stringify((value as { data?: unknown }).data)) };
  const elements = elementsOf(value);
  const bytes = new Uint8Array(elements.buffer, elements.byteOffset, elements.byteLength);
  return { status: isValue, code: dtypeInfo(dtype as DType).code, shape, bytes };
}

/** @param body at an address that is a multiple of 8; the values are views of it.
 *  @throws ShoalError `protocol` for anything that `encodeSlots` does not make. */
export function decodeSlots(body: Uint8Array): Slot[] {
  const reader = new ByteReader(body, format);
  const { count } = reader.record(tableHead);
  if (count > countMax) throw reader.malformed(`${count} values`);
  const heads: { status: number; code: number; shape: number[]; bytes: number }[] = [];
  for (let k = 0; k < count; k++) {
    const { status, code, rank, bytes } = reader.record(valueHead);
    if (rank > dimensionsMax) throw reader.malformed(`a value of ${rank} dimensions`);
    heads.push({ status, code, bytes, shape: Array.from({ length: rank }, () => reader.record(dimension).length) });
  }
  return heads.map(({ status, code, shape, bytes }) => {
    const elements = reader.bytes(bytes);
    reader.bytes(-bytes & 7);
    if (status === isDead) return undefined;
    if (status !== isValue) throw reader.malformed(`status ${status}`);
    if (code === stringCode) return { dtype: 'string', shape, data: strings(elements, countOf(shape), reader) };
    const [info, length] = [dtypes[code], countOf(shape)];
    if (info === undefined || !Number.isSafeInteger(length) || length * info.bytes !== bytes)
      throw reader.malformed(`${bytes} bytes for a value of shape [${shape.join(', ')}]`);
    // A body whose reader did not align it.
    const own = elements.byteOffset % 8 === 0 ? elements : joinPieces([elements]);
    return { dtype: info.name, shape, data: info.view(own.buffer, own.byteOffset, length) };
  });
}

function strings(bytes: Uint8Array, count: number, reader: ByteReader): readonly string[] {
  try {
    const list: unknown = JSON.parse(textOf(bytes));
    if (Array.isArray(list) && list.length === count && list.every((each) => typeof each === 'string')) return list;
  } catch {
    // The error below says so.
  }
  throw reader.malformed('strings are none');
}
