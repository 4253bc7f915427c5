/** What store clients and servers say to each other, and what the file store writes: requests and results as bytes.
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
 *
 *    key   │bytes u16│UTF-8 …│      value │bytes u32│…│      keys │count u32│key…│      values │count u32│value…│ */
import { assert } from '../base/assert.ts';
import { ShoalError, type ErrorCode } from '../base/errors.ts';
import type { StoreLimits } from './store-limits.ts';

export type StoreRequest =
  | { readonly op: 'set'; readonly key: string; readonly value: Uint8Array }
  | { readonly op: 'get'; readonly key: string }
  | { readonly op: 'delete'; readonly key: string }
  | { readonly op: 'add'; readonly key: string; readonly amount: number }
  | { readonly op: 'wait'; readonly keys: readonly string[] }
  | { readonly op: 'check'; readonly keys: readonly string[] }
  | { readonly op: 'compareSet'; readonly key: string; readonly expected: Uint8Array; readonly desired: Uint8Array }
  | { readonly op: 'count' }
  | { readonly op: 'cancel'; readonly target: number }
  | { readonly op: 'multiGet'; readonly keys: readonly string[] };

export type StoreResult =
  | { readonly kind: 'done' }
  | { readonly kind: 'bytes'; readonly bytes: Uint8Array }
  | { readonly kind: 'integer'; readonly integer: number }
  | { readonly kind: 'flag'; readonly flag: boolean }
  | { readonly kind: 'missing'; readonly keys: readonly string[] }
  | { readonly kind: 'error'; readonly code: ErrorCode; readonly message: string }
  | { readonly kind: 'list'; readonly values: readonly Uint8Array[] };

type FieldType = 'key' | 'keys' | 'value' | 'values' | 'integer' | 'uint32' | 'flag' | 'code' | 'text';
type Fields = Readonly<Record<string, FieldType>>;

export interface Decoded<T> {
  readonly id: number;
  readonly message: T;
}

export const wireVersion = 1;
/** Bytes before the body. */
export const frameHeaderBytes = 10;

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
} as const satisfies Record<StoreRequest['op'], Fields>;

/** From `firstResult`. */
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
const errorCodes: readonly ErrorCode[] = ['usage', 'out-of-memory', 'closed', 'protocol', 'system'];

/** The longest frame either side accepts, length field included: a compareSet with two full values, or a full list of keys. */
export function maxFrameBytes(limits: StoreLimits): number {
  const lists = limits.maxKeysPerCall * (limits.maxKeyBytes + 2);
  return frameHeaderBytes + 64 + limits.maxKeyBytes + Math.max(2 * limits.maxValueBytes, lists);
}

/** The whole frame in pieces; values are not copied: they must not change before the pieces are sent. */
export function encodeRequest(id: number, request: StoreRequest): Uint8Array[] {
  const { op, ...fields } = request;
  return encodeFrame(firstRequest + Object.keys(requests).indexOf(op), id, bodyOf(requests[op], fields));
}

/** As `encodeRequest`. */
export function encodeResult(id: number, result: StoreResult): Uint8Array[] {
  const { kind, ...fields } = result;
  return encodeFrame(firstResult + Object.keys(results).indexOf(kind), id, bodyOf(results[kind], fields));
}

/** `frame` is everything after the length field. Values are views of it.
 *  @throws ShoalError `protocol`. */
export function decodeRequest(frame: Uint8Array, limits: StoreLimits): Decoded<StoreRequest> {
  const { id, name, fields } = decodeFrame(frame, { of: requests, first: firstRequest, what: 'request', limits });
  return { id, message: { op: name, ...fields } as StoreRequest };
}

/** As `decodeRequest`. */
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
    while (this.#buffered >= 4) {
      const needed = 4 + this.#peekLength();
      if (this.#buffered < needed) return;
      const joined = this.#chunks.length === 1 ? this.#chunks[0] : Buffer.concat(this.#chunks);
      const rest = joined.subarray(needed);
      this.#chunks = rest.length > 0 ? [rest] : [];
      this.#buffered = rest.length;
      onFrame(joined.subarray(4, needed));
    }
  }

  #peekLength(): number {
    if (this.#chunks[0].length < 4) this.#chunks = [Buffer.concat(this.#chunks)];
    const length = viewOf(this.#chunks[0]).readUInt32LE(0);
    if (length < frameHeaderBytes - 4 || length > this.#maxBytes - 4) throw wireError(`frame of ${length} bytes`);
    return length;
  }
}

function encodeFrame(kind: number, id: number, body: readonly Uint8Array[]): Uint8Array[] {
  const header = Buffer.allocUnsafe(frameHeaderBytes);
  const bodyBytes = body.reduce((sum, piece) => sum + piece.byteLength, 0);
  header.writeUInt32LE(frameHeaderBytes - 4 + bodyBytes, 0);
  header[4] = wireVersion;
  header[5] = kind;
  header.writeUInt32LE(id, 6);
  return [header, ...body];
}

/** A message has the fields that its table names. */
function bodyOf(types: Fields, fields: object): Uint8Array[] {
  return Object.entries(types).flatMap(([name, type]) => fieldOf(type, (fields as Record<string, unknown>)[name]));
}

function fieldOf(type: FieldType, value: unknown): Uint8Array[] {
  switch (type) {
    case 'key':
    case 'code':
      return [keyField(value as string)];
    case 'text':
      return [keyField((value as string).slice(0, 4096))];
    case 'keys':
      return [keysField(value as readonly string[])];
    case 'value':
      return valueField(value as Uint8Array);
    case 'values':
      return [uint32Field((value as readonly Uint8Array[]).length), ...(value as readonly Uint8Array[]).flatMap(valueField)];
    case 'integer':
      return [integerField(value as number)];
    case 'uint32':
      return [uint32Field(value as number)];
    case 'flag':
      return [Uint8Array.of(value === true ? 1 : 0)];
  }
}

function decodeFrame(
  frame: Uint8Array,
  { of, first, what, limits }: { of: Readonly<Record<string, Fields>>; first: number; what: string; limits: StoreLimits },
): { id: number; name: string; fields: Record<string, unknown> } {
  const reader = new FieldReader(frame, limits);
  const { kind, id } = reader.header();
  const [name, types] = Object.entries(of)[kind - first] ?? [];
  if (name === undefined || types === undefined) throw wireError(`unknown ${what} kind ${kind}`);
  const fields = Object.fromEntries(Object.entries(types).map(([field, type]) => [field, reader[type]()]));
  reader.end();
  return { id, name, fields };
}

function keyField(key: string): Uint8Array {
  const text = Buffer.from(key);
  assert(text.length <= 0xffff, () => `text of ${text.length} bytes`);
  return Buffer.concat([Uint8Array.of(text.length & 0xff, text.length >> 8), text]);
}

function keysField(keys: readonly string[]): Uint8Array {
  return Buffer.concat([uint32Field(keys.length), ...keys.map(keyField)]);
}

function valueField(value: Uint8Array): Uint8Array[] {
  return [uint32Field(value.byteLength), value];
}

function uint32Field(value: number): Uint8Array {
  const field = Buffer.allocUnsafe(4);
  field.writeUInt32LE(value);
  return field;
}

function integerField(value: number): Uint8Array {
  const field = Buffer.allocUnsafe(8);
  field.writeBigInt64LE(BigInt(value));
  return field;
}

class FieldReader {
  readonly #bytes: Buffer;
  readonly #limits: StoreLimits;
  #at = 0;

  constructor(frame: Uint8Array, limits: StoreLimits) {
    this.#bytes = viewOf(frame);
    this.#limits = limits;
  }

  header(): { kind: number; id: number } {
    const version = this.#take(1)[0];
    if (version !== wireVersion) throw wireError(`version ${version} where ${wireVersion} is spoken here`);
    return { kind: this.#take(1)[0], id: this.uint32() };
  }

  uint32(): number {
    return this.#take(4).readUInt32LE(0);
  }

  integer(): number {
    const integer = Number(this.#take(8).readBigInt64LE(0));
    if (!Number.isSafeInteger(integer)) throw wireError('an integer beyond ±2^53');
    return integer;
  }

  flag(): boolean {
    const byte = this.#take(1)[0];
    if (byte > 1) throw wireError(`flag ${byte}`);
    return byte === 1;
  }

  key(): string {
    return this.#take(this.#take(2).readUInt16LE(0)).toString('utf8');
  }

  text(): string {
    return this.key();
  }

  code(): ErrorCode {
    const code = this.key() as ErrorCode;
    return errorCodes.includes(code) ? code : 'protocol';
  }

  value(): Uint8Array {
    return this.#take(this.uint32());
  }

  keys(): string[] {
    return this.#list(() => this.key());
  }

  values(): Uint8Array[] {
    return this.#list(() => this.value());
  }

  #list<T>(read: () => T): T[] {
    const count = this.uint32();
    if (count > this.#limits.maxKeysPerCall) throw wireError(`${count} keys in one message`);
    const list: T[] = [];
    for (let i = 0; i < count; i++) list.push(read());
    return list;
  }

  end(): void {
    if (this.#at !== this.#bytes.length) throw wireError(`${this.#bytes.length - this.#at} bytes too many`);
  }

  #take(bytes: number): Buffer {
    const end = this.#at + bytes;
    if (end > this.#bytes.length) throw wireError(`a field of ${bytes} bytes where ${this.#bytes.length - this.#at} are left`);
    const taken = this.#bytes.subarray(this.#at, end);
    this.#at = end;
    return taken;
  }
}

function viewOf(bytes: Uint8Array): Buffer {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

function wireError(what: string): ShoalError {
  return new ShoalError('protocol', `malformed store message: ${what}`);
}
