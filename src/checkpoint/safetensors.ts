/** The safetensors format: a length, a header in JSON, then the tensors without gaps. Pure; files are in snapshot-file.ts.
 *
 *    bytes   0          8                  8 + n
 *            │ n, u64 LE │ header, n bytes │ data of the tensors, little-endian, row-major │
 *            └───────────┴─────────────────┴───────────────────────────────────────────────┘
 *    header  {"__metadata__":{"text":"text"},"name":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},…}
 *
 *  Offsets count from the first byte of data. Every byte of data belongs to exactly one tensor. A header that is written begins
 *  with { and is padded with spaces to a multiple of 8, so that data is aligned; wider elements come first, for the same reason.
 *  Like the reference implementation, a reader takes white space before the {.
 *  Source: Hugging Face, safetensors, format description and limits of the reference implementation. */
import { areCounts, dataViewOf } from '../base/bytes.ts';
import { messageOf, ShoalError } from '../base/errors.ts';
import { dtypeInfo, dtypes, type DType } from '../memory/dtype.ts';
import { countOf } from '../memory/tensor.ts';
import { repeatedKey } from './repeated-key.ts';
import type { Snapshot, SnapshotTensor } from './snapshot.ts';

/** A tensor of a file, as the header describes it. */
export interface TensorEntry {
  readonly name: string;
  /** The format's name, such as F32; `ownDType` has Shoal's. */
  readonly dtype: string;
  readonly shape: readonly number[];
  /** Offset from the first byte of data. */
  readonly from: number;
  readonly to: number;
}

export interface SafetensorsHeader {
  /** Tensors in the order of their data. */
  readonly entries: readonly TensorEntry[];
  readonly metadata: Readonly<Record<string, string>>;
}

/** Bytes before the header. */
export const lengthBytes = 8;
/** Largest header, in bytes: the reference implementation reads no larger one. */
export const headerBytesMax = 100_000_000;
const metadataKey = '__metadata__';

/** The format's name of one of our dtypes, as F32 of float32, U8 of uint8 and BF16 of bfloat16. */
const formatName = (dtype: DType): string => dtype.toUpperCase().replace('FLOAT', 'F').replace('INT', 'I').replace('UI', 'U');
const dtypesByName = new Map(dtypes.map(({ name }) => [formatName(name), name]));
/** Bits of an element, for all dtypes of the format: tensors of those that Shoal does not have can be listed, and their bytes read. */
const bitsByName = new Map([
  ...dtypes.map(({ name, bytes }) => [formatName(name), 8 * bytes] as const),
  ...['C64', 'U64'].map((name) => [name, 64] as const),
  ...['F8_E4M3', 'F8_E5M2', 'F8_E8M0', 'F8_E4M3FNUZ', 'F8_E5M2FNUZ'].map((name) => [name, 8] as const),
  ...['F6_E2M3', 'F6_E3M2'].map((name) => [name, 6] as const),
  ['F4', 4],
]);

/** Makes the bytes before the data, and the tensors in the order in which their data follows. `last` are tensors of bytes that
 *  come after all others.
 *  @throws ShoalError `usage` for a tensor whose data does not have its shape, `unsupported` for a header beyond the limit. */
export function encodeHeader(
  snapshot: Snapshot,
  last: readonly (readonly [name: string, tensor: SnapshotTensor])[] = [],
): { readonly prefix: Uint8Array; readonly tensors: readonly SnapshotTensor[] } {
  const ordered = [...snapshot.tensors].sort(
    ([a, x], [b, y]) => dtypeInfo(y.dtype).bytes - dtypeInfo(x.dtype).bytes || (a < b ? -1 : a > b ? 1 : 0),
  );
  for (const [name, tensor] of last) {
    if (snapshot.tensors.has(name)) throw new ShoalError('usage', `a tensor cannot be called ${name}; that name is kept for another`);
    ordered.push([name, tensor]);
  }
  // The text is put together by hand: an object would lose a tensor called __proto__, and reorder tensors called by numbers.
  const members = [`${JSON.stringify(metadataKey)}:${JSON.stringify(snapshot.metadata)}`];
  let at = 0;
  for (const [name, { dtype, shape, data }] of ordered) {
    if (name === metadataKey) throw new ShoalError('usage', `a tensor cannot be called ${metadataKey}; the format keeps that name`);
    const bytes = countOf(shape) * dtypeInfo(dtype).bytes;
    if (data.byteLength !== bytes) {
      throw new ShoalError('usage', `tensor '${name}' ${dtype}[${shape.join(', ')}] has ${bytes} bytes, not ${data.byteLength}`);
    }
    members.push(`${JSON.stringify(name)}:${JSON.stringify({ dtype: formatName(dtype), shape, data_offsets: [at, at + bytes] })}`);
    at += bytes;
  }
  const text = new TextEncoder().encode(`{${members.join(',')}}`);
  const headerBytes = Math.ceil(text.length / 8) * 8;
  if (headerBytes > headerBytesMax) {
    throw new ShoalError('unsupported', `${ordered.length} tensors need a header of ${headerBytes} bytes, more than ${headerBytesMax}`);
  }
  const prefix = new Uint8Array(lengthBytes + headerBytes).fill(0x20);
  new DataView(prefix.buffer).setBigUint64(0, BigInt(headerBytes), true);
  prefix.set(text, lengthBytes);
  return { prefix, tensors: ordered.map(([, tensor]) => tensor) };
}

/** Length of a file's header. @throws ShoalError `protocol`. */
export function decodeHeaderLength(prefix: Uint8Array, fileBytes: number): number {
  if (prefix.length < lengthBytes || fileBytes < lengthBytes) throw damaged(`${fileBytes} bytes are too few for a header`);
  const length = dataViewOf(prefix).getBigUint64(0, true);
  if (length > BigInt(Math.min(headerBytesMax, fileBytes - lengthBytes))) {
    throw damaged(`a header of ${length} bytes in a file of ${fileBytes}, at most ${headerBytesMax}`);
  }
  return Number(length);
}

/** @param dataBytes number of bytes that follow the header in the file.
 *  @throws ShoalError `protocol` for anything but a header of exactly that much data, `unsupported` for a dtype that is not the
 *  format's. */
export function decodeHeader(header: Uint8Array, dataBytes: number): SafetensorsHeader {
  const members = parseObject(header);
  let metadata: Record<string, string> = {};
  const entries: TensorEntry[] = [];
  for (const [name, value] of members) {
    if (name === metadataKey) metadata = decodeMetadata(value);
    else entries.push(decodeEntry(name, value));
  }
  // Empty tensors lie between others: the one that ends first comes first.
  entries.sort((a, b) => a.from - b.from || a.to - b.to);
  let end = 0;
  for (const { name, from, to } of entries) {
    if (from !== end)
      throw damaged(`data of tensor '${name}' begins at ${from}, ${from < end ? 'inside another' : 'after a gap'} at ${end}`);
    end = to;
  }
  if (end !== dataBytes) throw damaged(`the tensors have ${end} bytes of data, the file has ${dataBytes}`);
  return { entries, metadata };
}

function parseObject(header: Uint8Array): [string, unknown][] {
  let parsed: unknown;
  let text: string;
  try {
    text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(header);
    parsed = JSON.parse(text);
  } catch (error) {
    throw damaged(`the header is not JSON: ${messageOf(error).slice(0, 200)}`);
  }
  if (!isObject(parsed)) throw damaged('the header is not a JSON object');
  const repeated = repeatedKey(text);
  if (repeated !== undefined) throw damaged(`the header names '${repeated}' twice`);
  return Object.entries(parsed);
}

function decodeMetadata(value: unknown): Record<string, string> {
  if (!isObject(value)) throw damaged(`${metadataKey} is not an object`);
  const entries = Object.entries(value);
  const wrong = entries.find(([, text]) => typeof text !== 'string');
  if (wrong !== undefined) throw damaged(`${metadataKey} '${wrong[0]}' is not text`);
  return Object.fromEntries(entries) as Record<string, string>;
}

function decodeEntry(name: string, value: unknown): TensorEntry {
  if (!isObject(value)) throw damaged(`tensor '${name}' is not described by an object`);
  const { dtype, shape, data_offsets: offsets } = value;
  if (typeof dtype !== 'string') throw damaged(`tensor '${name}' has no dtype`);
  const bits = bitsByName.get(dtype);
  if (bits === undefined) throw unsupported({ name, dtype });
  if (!areCounts(shape)) throw damaged(`tensor '${name}' has no valid shape`);
  if (!areCounts(offsets) || offsets.length !== 2 || offsets[0] > offsets[1]) throw damaged(`tensor '${name}' has no valid data_offsets`);
  const [from, to] = offsets;
  const bytes = shape.reduce((product, dimension) => product * dimension, bits) / 8;
  if (to - from !== bytes) throw damaged(`tensor '${name}' ${dtype}[${shape.join(', ')}] has ${to - from} bytes of data`);
  return { name, dtype, shape, from, to };
}

/** The dtype of a tensor whose elements Shoal can work with. @throws ShoalError `unsupported` for all others. */
export function ownDType(entry: TensorEntry): DType {
  const found = dtypesByName.get(entry.dtype);
  if (found === undefined) throw unsupported(entry);
  return found;
}

function unsupported({ name, dtype }: Pick<TensorEntry, 'name' | 'dtype'>): ShoalError {
  const known = [...dtypesByName.keys()].join(', ');
  return new ShoalError('unsupported', `safetensors: tensor '${name}' has dtype '${dtype}'; supported are ${known}`);
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function damaged(what: string): ShoalError {
  return new ShoalError('protocol', `safetensors: ${what}`);
}
