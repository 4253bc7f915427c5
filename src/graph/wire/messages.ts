/** Messages between tasks, and files of graphs and of variables: fields as JSON, and values beside them. Of several values there is a table
 *  of fixed heads, then the elements, each at a multiple of 8, so that who receives them makes views and no copies. Strings are a JSON
 *  list.
 *
 *      u32 bytes │ u32 – │ JSON │ values
 *                values   u32 count │ u32 – │ per value: u8 – │ u8 dtype │ u16 rank │ u32 – │ f64 bytes │ f64 × rank dimensions │ … elements */
import { ByteReader, ByteWriter, Layout, textOf } from '../../base/bytes.ts';
import { ShoalError } from '../../base/errors.ts';
import { dtypeInfo, dtypes, type DType } from '../../memory/dtype.ts';
import { dimensionsMax } from '../../memory/tensor.ts';
import { Reference } from '../execute/variable-store.ts';
import { joinPieces, type Pieces } from '../rpc/rpc.ts';
import { countOf, elementsOf } from '../structure/elements.ts';
import type { Value } from '../structure/value.ts';

/** A request or an answer with values beside it. */
export interface Message {
  readonly fields: unknown;
  readonly values: readonly Value[];
}

const format = 'a message of a task';
const messageHead = new Layout(format, { bytes: 'u32', zero: 'u32' });
const tableHead = new Layout(format, { count: 'u32', zero: 'u32' });
const valueHead = new Layout(format, { zeroFirst: 'u8', code: 'u8', rank: 'u16', zero: 'u32', bytes: 'f53' });
const dimension = new Layout(format, { length: 'f53' });
const stringCode = 255;
const countMax = 1_000_000;
const zeros = new Uint8Array(8);

/** The elements are not copied: pieces refer to them. */
export function encodeMessage(fields: unknown, values: readonly Value[] = []): Pieces {
  const json = Buffer.from(JSON.stringify(fields));
  const head = messageHead.encode({ bytes: json.byteLength });
  return [head, json, paddingOf(json.byteLength), ...(values.length === 0 ? [] : encodeValues(values))];
}

/** @param body at an address that is a multiple of 8; the values are views of it. @throws ShoalError `protocol`. */
export function decodeMessage(body: Uint8Array): Message {
  const reader = new ByteReader(body, format);
  const { bytes } = reader.record(messageHead);
  const json = reader.bytes(bytes);
  reader.bytes(-bytes & 7);
  let fields: unknown;
  try {
    fields = JSON.parse(textOf(json));
  } catch (cause) {
    throw malformed('no JSON', cause);
  }
  return { fields, values: reader.done ? [] : readValues(reader) };
}

/** The error of a message that is none. */
export function malformed(why: string, cause?: unknown): ShoalError {
  return new ShoalError('protocol', `${format} is not well formed: ${why}`, { cause });
}

function encodeValues(values: readonly Value[]): Pieces {
  const encoded = values.map(encode);
  const writer = new ByteWriter();
  writer.record(tableHead, { count: values.length });
  for (const { code, shape, bytes } of encoded) {
    writer.record(valueHead, { code, rank: shape.length, bytes: bytes.byteLength });
    for (const length of shape) writer.record(dimension, { length });
  }
  for (const { bytes } of encoded) {
    if (bytes.byteLength > 0) writer.lend(bytes);
    writer.put(paddingOf(bytes.byteLength));
  }
  return writer.pieces;
}

function encode(given: Value): { readonly code: number; readonly shape: readonly number[]; readonly bytes: Uint8Array } {
  const value = given instanceof Reference ? given.read() : given;
  const { dtype, shape } = value;
  if (dtype === 'string') return { code: stringCode, shape, bytes: Buffer.from(JSON.stringify(value.data)) };
  const { buffer, byteOffset, byteLength } = elementsOf(value);
  return { code: dtypeInfo(dtype as DType).code, shape, bytes: new Uint8Array(buffer, byteOffset, byteLength) };
}

function readValues(reader: ByteReader): Value[] {
  const { count } = reader.record(tableHead);
  if (count > countMax) throw reader.malformed(`${count} values`);
  const heads = Array.from({ length: count }, () => {
    const { code, rank, bytes } = reader.record(valueHead);
    if (rank > dimensionsMax) throw reader.malformed(`a value of ${rank} dimensions`);
    return { code, bytes, shape: Array.from({ length: rank }, () => reader.record(dimension).length) };
  });
  return heads.map(({ code, shape, bytes }) => {
    const elements = reader.bytes(bytes);
    reader.bytes(-bytes & 7);
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

function paddingOf(bytes: number): Uint8Array {
  return zeros.subarray(0, -bytes & 7);
}
