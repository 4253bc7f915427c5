/** Requests and results as bytes: the messages of store clients and servers, and the records of the file store.
 *  Every field is checked against the bytes that are there before it is read; integers are little-endian.
 *
 *    frame     0        4         5      6       10
 *              │length  │version 1│kind  │id u32 │body (length − 6 bytes)          length counts from byte 4
 *
 *    request   kind                                  result    kind
 *    1 set         key, value                        128 done
 *    2 get         key                               129 bytes      value
 *    3 add         key, amount i64                   130 integer    i64
 *    4 wait        keys                              131 flag       u8
 *    5 compareSet  key, expected, desired            132 missing    keys          a wait or get that was cancelled
 *    6 delete      key                               133 error      code, text    both as `key`
 *    7 check       keys
 *    8 count
 *    9 cancel      id u32 of a wait or get           134 list       values
 *    10 multiGet   keys
 *    11 append     key, value
 *    12 queuePush  key, value
 *    13 queuePop   key
 *    14 queueLen   key
 *    15 listKeys   prefix, as `key`
 *
 *    key   │bytes u16│UTF-8 …│      value │bytes u32│…│      keys │count u32│key…│      values │count u32│value…│ */
import { ByteReader, ByteWriter, dataViewOf, Layout } from '../base/bytes.ts';
import type { ErrorCode } from '../base/errors.ts';
import type { StoreLimits } from './store-limits.ts';
import type { StoreOperation, StoreResult } from './store.ts';

export type StoreRequest = StoreOperation | { readonly op: 'cancel'; readonly target: number };

type Fields = Readonly<Record<string, keyof typeof fieldTypes>>;

export interface Decoded<T> {
  readonly id: number;
  readonly message: T;
}

const format = 'a store message';
const header = new Layout(format, { length: 'u32', version: 'u8', kind: 'u8', id: 'u32' });
/** Bytes of the length. */
const lengthBytes = header.offsets.version;
const errorCodes: readonly ErrorCode[] = ['usage', 'out-of-memory', 'closed', 'protocol', 'system'];
const integer = new Layout(format, { value: 'i53' });
export const wireVersion = 1;

interface FieldType<Written, Read = Written> {
  write(writer: ByteWriter, value: Written): void;
  read(reader: ByteReader, limits: StoreLimits): Read;
}

const keyType: FieldType<string> = { write: (writer, key) => writer.text(key), read: (reader) => reader.text() };
const valueType: FieldType<Uint8Array> = {
  write: (writer, value) => {
    writer.u32(value.byteLength);
    writer.lend(value);
  },
  read: (reader) => reader.bytes(reader.u32()),
};

const fieldTypes = {
  key: keyType,
  keys: listOf(keyType),
  value: valueType,
  values: listOf(valueType),
  text: { write: (writer, text: string) => writer.text(text.slice(0, 4096)), read: keyType.read },
  code: {
    write: keyType.write,
    read: (reader) => {
      const code = reader.text() as ErrorCode;
      return errorCodes.includes(code) ? code : 'protocol';
    },
  },
  integer: { write: (writer, value: number) => writer.record(integer, { value }), read: (reader) => reader.record(integer).value },
  uint32: { write: (writer, value: number) => writer.u32(value), read: (reader) => reader.u32() },
  flag: {
    write: (writer, flag: boolean) => writer.u8(flag ? 1 : 0),
    read: (reader) => {
      const byte = reader.u8();
      if (byte > 1) throw reader.malformed(`flag ${byte}`);
      return byte === 1;
    },
  },
} satisfies Record<string, FieldType<never, unknown>>;

function listOf<T>({ write, read }: FieldType<T>): FieldType<readonly T[]> {
  return {
    write: (writer, list) => {
      writer.u32(list.length);
      for (const each of list) write(writer, each);
    },
    read: (reader, limits) => {
      const count = reader.u32();
      if (count > limits.maxKeysPerCall) throw reader.malformed(`${count} keys in one message`);
      return Array.from({ length: count }, () => read(reader, limits));
    },
  };
}

/** The fields of each message, in their order. A kind's number is its place, from 1. */
const requests = {
  set: { key: 'key', value: 'value' },
  get: { key: 'key' },
  add: { key: 'key', amount: 'integer' },
  wait: { keys: 'keys' },
  compareSet: { key: 'key', expected: 'value', desired: 'value' },
  delete: { key: 'key' },
  check: { keys: 'keys' },
  count: {},
  cancel: { target: 'uint32' },
  multiGet: { keys: 'keys' },
  append: { key: 'key', value: 'value' },
  queuePush: { key: 'key', value: 'value' },
  queuePop: { key: 'key' },
  queueLen: { key: 'key' },
  listKeys: { prefix: 'key' },
} as const satisfies Record<StoreRequest['op'], Fields>;

/** Results; their kinds are numbered from `firstResult`. */
const results = {
  done: {},
  bytes: { bytes: 'value' },
  integer: { integer: 'integer' },
  flag: { flag: 'flag' },
  missing: { keys: 'keys' },
  error: { code: 'code', message: 'text' },
  list: { values: 'values' },
} as const satisfies Record<StoreResult['kind'], Fields>;

const firstRequest = 1;
const firstResult = 128;

/** The longest frame either side accepts, length field included: a compareSet with two full values, or a full list of keys. */
export function maxFrameBytes(limits: StoreLimits): number {
  const lists = limits.maxKeysPerCall * (limits.maxKeyBytes + 2);
  return header.bytes + 64 + limits.maxKeyBytes + Math.max(2 * limits.maxValueBytes, lists);
}

/** The whole frame in pieces; values are not copied: they must not change before the pieces are sent. */
export function encodeRequest(id: number, request: StoreRequest): Uint8Array[] {
  const { op, ...fields } = request;
  return encodeFrame(firstRequest + Object.keys(requests).indexOf(op), id, requests[op], fields);
}

/** The frame of a result, in the same form as `encodeRequest`. */
export function encodeResult(id: number, result: StoreResult): Uint8Array[] {
  const { kind, ...fields } = result;
  return encodeFrame(firstResult + Object.keys(results).indexOf(kind), id, results[kind], fields);
}

/** `frame` is everything after the length field. Values are views of it.
 *  @throws ShoalError `protocol`. */
export function decodeRequest(frame: Uint8Array, limits: StoreLimits): Decoded<StoreRequest> {
  const { id, name, fields } = decodeFrame(frame, { of: requests, first: firstRequest, what: 'request', limits });
  return { id, message: { op: name, ...fields } as StoreRequest };
}

/** Reads a result with the checks of `decodeRequest`. */
export function decodeResult(frame: Uint8Array, limits: StoreLimits): Decoded<StoreResult> {
  const { id, name, fields } = decodeFrame(frame, { of: results, first: firstResult, what: 'result', limits });
  return { id, message: { kind: name, ...fields } as StoreResult };
}

/** Cuts a byte stream into frames; holds at most one incomplete frame, whose length was checked first. */
export class FrameReader {
  readonly #maxBytes: number;
  #chunks: Uint8Array[] = [];
  #buffered = 0;

  constructor(limits: StoreLimits) {
    this.#maxBytes = maxFrameBytes(limits);
  }

  /** Calls `onFrame` for every frame that is complete, without its length field; valid during the call only.
   *  @throws ShoalError `protocol` on a length out of bounds. */
  push(chunk: Uint8Array, onFrame: (frame: Uint8Array) => void): void {
    this.#chunks.push(chunk);
    this.#buffered += chunk.length;
    while (this.#buffered >= lengthBytes) {
      const needed = lengthBytes + this.#peekLength();
      if (this.#buffered < needed) return;
      const joined = this.#chunks.length === 1 ? this.#chunks[0] : Buffer.concat(this.#chunks);
      const rest = joined.subarray(needed);
      this.#chunks = rest.length > 0 ? [rest] : [];
      this.#buffered = rest.length;
      onFrame(joined.subarray(lengthBytes, needed));
    }
  }

  #peekLength(): number {
    if (this.#chunks[0].length < lengthBytes) this.#chunks = [Buffer.concat(this.#chunks)];
    const reader = new ByteReader(this.#chunks[0], format);
    const length = reader.u32();
    if (length < header.bytes - lengthBytes || length > this.#maxBytes - lengthBytes) throw reader.malformed(`its length is ${length}`);
    return length;
  }
}

function encodeFrame(kind: number, id: number, types: Fields, fields: object): Uint8Array[] {
  const writer = new ByteWriter();
  writer.record(header, { length: 0, version: wireVersion, kind, id });
  for (const [name, type] of Object.entries(types)) {
    (fieldTypes[type] as FieldType<unknown>).write(writer, (fields as Record<string, unknown>)[name]);
  }
  const { pieces } = writer;
  const bytes = pieces.reduce((sum, piece) => sum + piece.byteLength, 0);
  dataViewOf(pieces[0]).setUint32(header.offsets.length, bytes - lengthBytes, true);
  return pieces;
}

function decodeFrame(
  frame: Uint8Array,
  { of, first, what, limits }: { of: Readonly<Record<string, Fields>>; first: number; what: string; limits: StoreLimits },
): { id: number; name: string; fields: Record<string, unknown> } {
  const reader = new ByteReader(frame, format);
  const version = reader.u8();
  if (version !== wireVersion) throw reader.malformed(`version ${version} where ${wireVersion} is spoken here`);
  const kind = reader.u8();
  const id = reader.u32();
  const [name, types] = Object.entries(of)[kind - first] ?? [];
  if (name === undefined || types === undefined) throw reader.malformed(`unknown ${what} kind ${kind}`);
  const fields = Object.fromEntries(Object.entries(types).map(([field, type]) => [field, fieldTypes[type].read(reader, limits)]));
  reader.end();
  return { id, name, fields };
}
