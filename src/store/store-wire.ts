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

export interface Decoded<T> {
  readonly id: number;
  readonly message: T;
}

export const wireVersion = 1;
/** Bytes before the body. */
export const frameHeaderBytes = 10;

const requestKinds: readonly StoreRequest['op'][] = [
  'set',
  'get',
  'add',
  'wait',
  'compareSet',
  'delete',
  'check',
  'count',
  'cancel',
  'multiGet',
];
const resultKinds: readonly StoreResult['kind'][] = ['done', 'bytes', 'integer', 'flag', 'missing', 'error', 'list'];
const firstResult = 128;
const errorCodes: readonly ErrorCode[] = ['usage', 'out-of-memory', 'closed', 'protocol', 'system'];

/** The longest frame either side accepts, length field included: a compareSet with two full values, or a full list of keys. */
export function maxFrameBytes(limits: StoreLimits): number {
  const lists = limits.maxKeysPerCall * (limits.maxKeyBytes + 2);
  return frameHeaderBytes + 64 + limits.maxKeyBytes + Math.max(2 * limits.maxValueBytes, lists);
}

/** The whole frame in pieces; values are not copied: they must not change before the pieces are sent. */
export function encodeRequest(id: number, request: StoreRequest): Uint8Array[] {
  return encodeFrame(requestKinds.indexOf(request.op) + 1, id, requestBody(request));
}

/** As `encodeRequest`. */
export function encodeResult(id: number, result: StoreResult): Uint8Array[] {
  return encodeFrame(resultKinds.indexOf(result.kind) + firstResult, id, resultBody(result));
}

/** `frame` is everything after the length field. Values are views of it.
 *  @throws ShoalError `protocol`. */
export function decodeRequest(frame: Uint8Array, limits: StoreLimits): Decoded<StoreRequest> {
  const reader = new FieldReader(frame);
  const { kind, id } = reader.header();
  const op = requestKinds[kind - 1];
  if (op === undefined) throw wireError(`unknown request kind ${kind}`);
  const message = readRequest(op, reader, limits);
  reader.end();
  return { id, message };
}

/** As `decodeRequest`. */
export function decodeResult(frame: Uint8Array, limits: StoreLimits): Decoded<StoreResult> {
  const reader = new FieldReader(frame);
  const { kind, id } = reader.header();
  const name = resultKinds[kind - firstResult];
  if (name === undefined) throw wireError(`unknown result kind ${kind}`);
  const message = readResult(name, reader, limits);
  reader.end();
  return { id, message };
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

function requestBody(request: StoreRequest): Uint8Array[] {
  switch (request.op) {
    case 'set':
      return [keyField(request.key), ...valueField(request.value)];
    case 'get':
    case 'delete':
      return [keyField(request.key)];
    case 'add':
      return [keyField(request.key), integerField(request.amount)];
    case 'wait':
    case 'multiGet':
    case 'check':
      return [keysField(request.keys)];
    case 'compareSet':
      return [keyField(request.key), ...valueField(request.expected), ...valueField(request.desired)];
    case 'count':
      return [];
    case 'cancel':
      return [uint32Field(request.target)];
  }
}

function resultBody(result: StoreResult): Uint8Array[] {
  switch (result.kind) {
    case 'done':
      return [];
    case 'bytes':
      return valueField(result.bytes);
    case 'integer':
      return [integerField(result.integer)];
    case 'flag':
      return [Uint8Array.of(result.flag ? 1 : 0)];
    case 'missing':
      return [keysField(result.keys)];
    case 'error':
      return [keyField(result.code), keyField(result.message.slice(0, 4096))];
    case 'list':
      return [uint32Field(result.values.length), ...result.values.flatMap(valueField)];
  }
}

function readRequest(op: StoreRequest['op'], reader: FieldReader, limits: StoreLimits): StoreRequest {
  switch (op) {
    case 'set':
      return { op, key: reader.key(), value: reader.value() };
    case 'get':
    case 'delete':
      return { op, key: reader.key() };
    case 'add':
      return { op, key: reader.key(), amount: reader.integer() };
    case 'wait':
    case 'multiGet':
    case 'check':
      return { op, keys: reader.keys(limits) };
    case 'compareSet':
      return { op, key: reader.key(), expected: reader.value(), desired: reader.value() };
    case 'count':
      return { op };
    case 'cancel':
      return { op, target: reader.uint32() };
  }
}

function readResult(kind: StoreResult['kind'], reader: FieldReader, limits: StoreLimits): StoreResult {
  switch (kind) {
    case 'done':
      return { kind };
    case 'bytes':
      return { kind, bytes: reader.value() };
    case 'integer':
      return { kind, integer: reader.integer() };
    case 'flag':
      return { kind, flag: reader.flag() };
    case 'missing':
      return { kind, keys: reader.keys(limits) };
    case 'error': {
      const code = reader.key() as ErrorCode;
      return { kind, code: errorCodes.includes(code) ? code : 'protocol', message: reader.key() };
    }
    case 'list':
      return { kind, values: reader.values(limits) };
  }
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
  #at = 0;

  constructor(frame: Uint8Array) {
    this.#bytes = viewOf(frame);
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

  value(): Uint8Array {
    return this.#take(this.uint32());
  }

  keys(limits: StoreLimits): string[] {
    return this.#list(limits, () => this.key());
  }

  values(limits: StoreLimits): Uint8Array[] {
    return this.#list(limits, () => this.value());
  }

  #list<T>(limits: StoreLimits, read: () => T): T[] {
    const count = this.uint32();
    if (count > limits.maxKeysPerCall) throw wireError(`${count} keys in one message`);
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
