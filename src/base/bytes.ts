/** Bytes of messages and files, read and written in one way, little-endian: fixed records as tables of fields (`layout`), everything else
 *  by a reader that never leaves its bytes and a writer that grows. Text is UTF-8. Whoever reads gets a `ShoalError` `protocol` that names
 *  the format for bytes that are missing, too many, or no such number. Numbers that are written must be in range: they are our own. */
import { assert } from './assert.ts';
import { ShoalError } from './errors.ts';

/** The same bytes, for reading and writing numbers at offsets. */
export function dataViewOf(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

/** True for a whole number from 0 that a double holds exactly: a number, a length, an offset. */
export function isCount(value: number): boolean;
export function isCount(value: unknown): value is number;
export function isCount(value: unknown): boolean {
  return Number.isSafeInteger(value) && (value as number) >= 0 && !Object.is(value, -0);
}

export function areCounts(value: unknown): value is number[] {
  return Array.isArray(value) && value.every(isCount);
}

/** The same memory, as bytes. */
export function bytesOf({ buffer, byteOffset, byteLength }: ArrayBufferView): Uint8Array {
  return new Uint8Array(buffer, byteOffset, byteLength);
}

/** The UTF-8 text that bytes are. */
export function textOf({ buffer, byteOffset, byteLength }: Uint8Array): string {
  return Buffer.from(buffer, byteOffset, byteLength).toString();
}

/** Plain data as bytes. */
export function encodeJson(value: unknown): Uint8Array {
  return Buffer.from(JSON.stringify(value));
}

export function decodeJson(bytes: Uint8Array): unknown {
  return JSON.parse(textOf(bytes));
}

// ── fixed records ───────────────────────────────────────────────────────────────────────────────────────────────────

interface Kind<T> {
  readonly bytes: number;
  /** @param what names the format in errors. */
  get(view: DataView, at: number, what: string): T;
  set(view: DataView, at: number, value: T): void;
}

const twoTo32 = 0x1_0000_0000;

/** u53 and i53 are whole numbers within ±2⁵³ in the place of an integer of 64 bits, f53 one from 0 in that of a double. */
const numbers = {
  u8: { bytes: 1, get: (view, at) => view.getUint8(at), set: (view, at, value) => view.setUint8(at, value) },
  u16: { bytes: 2, get: (view, at) => view.getUint16(at, true), set: (view, at, value) => view.setUint16(at, value, true) },
  u32: { bytes: 4, get: (view, at) => view.getUint32(at, true), set: (view, at, value) => view.setUint32(at, value, true) },
  i32: { bytes: 4, get: (view, at) => view.getInt32(at, true), set: (view, at, value) => view.setInt32(at, value, true) },
  f64: { bytes: 8, get: (view, at) => view.getFloat64(at, true), set: (view, at, value) => view.setFloat64(at, value, true) },
  f53: {
    bytes: 8,
    get: (view, at, what) => count(view.getFloat64(at, true), what),
    set: (view, at, value) => view.setFloat64(at, value, true),
  },
  u48: { bytes: 6, get: getU48, set: setU48 },
  u53: { bytes: 8, get: getU53, set: setWhole },
  i53: { bytes: 8, get: getI53, set: setWhole },
} satisfies Record<string, Kind<number>>;

const u64: Kind<bigint> = {
  bytes: 8,
  get: (view, at) => view.getBigUint64(at, true),
  set: (view, at, value) => view.setBigUint64(at, value, true),
};

/** A field of so many bytes, which are taken as they are. */
function bytesKind(bytes: number): Kind<Uint8Array> {
  const span = (view: DataView, at: number): Uint8Array => new Uint8Array(view.buffer, view.byteOffset + at, bytes);
  return { bytes, get: span, set: (view, at, value) => span(view, at).set(value) };
}

export function getU48(view: DataView, at: number): number {
  return view.getUint16(at + 4, true) * twoTo32 + view.getUint32(at, true);
}

export function setU48(view: DataView, at: number, value: number): void {
  view.setUint32(at, value >>> 0, true);
  view.setUint16(at + 4, Math.floor(value / twoTo32), true);
}

/** A whole number below 2⁵³. */
export function getU53(view: DataView, at: number, what: string): number {
  return whole(view.getUint32(at + 4, true) * twoTo32 + view.getUint32(at, true), what);
}

/** A whole number within ±2⁵³. */
export function getI53(view: DataView, at: number, what: string): number {
  return whole(view.getInt32(at + 4, true) * twoTo32 + view.getUint32(at, true), what);
}

/** A number for either. */
export function setWhole(view: DataView, at: number, value: number): void {
  view.setUint32(at, value >>> 0, true);
  view.setUint32(at + 4, Math.floor(value / twoTo32), true);
}

function whole(value: number, what: string): number {
  if (!Number.isSafeInteger(value)) throw new ShoalError('protocol', `${what} has a number that is not whole or beyond ±2^53`);
  return value;
}

function count(value: number, what: string): number {
  return isCount(value) ? value : whole(NaN, what);
}

/** A number as the kind of a field: that many bytes; fewer may be written, and those behind them stay. */
type FieldKinds = Readonly<Record<string, keyof typeof numbers | 'u64' | number>>;
type ValueOf<K> = K extends number ? Uint8Array : K extends 'u64' ? bigint : number;
/** Fields whose names begin with `zero` are reserved. */
type ValuesOf<T> = { -readonly [N in keyof T as N extends `zero${string}` ? never : N]: ValueOf<T[N]> };

interface FieldPlace extends Kind<unknown> {
  readonly name: string;
  readonly offset: number;
  readonly what: string;
}

/** A fixed record: fields without gaps, in their order. A record takes a tenth of a microsecond; where that counts, code reads and writes
 *  numbers at `offsets`. */
export class Layout<T extends FieldKinds> {
  readonly bytes: number;
  /** Offsets of the fields within the record. */
  readonly offsets: { readonly [N in keyof T]: number };
  readonly #what: string;
  readonly #fields: FieldPlace[] = [];

  /** @param what names the format in errors, like `a frame header`. */
  constructor(what: string, table: T) {
    this.#what = what;
    let bytes = 0;
    const offsets: Record<string, number> = {};
    for (const [name, given] of Object.entries(table)) {
      const kind = (typeof given === 'number' ? bytesKind(given) : given === 'u64' ? u64 : numbers[given]) as Kind<unknown>;
      offsets[name] = bytes;
      if (!name.startsWith('zero')) this.#fields.push({ ...kind, name, offset: bytes, what: `${what} (${name})` });
      bytes += kind.bytes;
    }
    this.bytes = bytes;
    this.offsets = offsets as typeof this.offsets;
  }

  /** A record in bytes of its own, with `more` behind it. Reserved fields are zeros. */
  encode(values: ValuesOf<T>, more?: Uint8Array): Uint8Array {
    const encoded = new Uint8Array(this.bytes + (more?.length ?? 0));
    this.write(dataViewOf(encoded), 0, values);
    if (more !== undefined) encoded.set(more, this.bytes);
    return encoded;
  }

  /** A view of bytes that begin with such a record. */
  viewOf(bytes: Uint8Array): DataView {
    if (this.bytes > bytes.byteLength) throw cutOff(this.#what, bytes.byteLength, 0, this.bytes);
    return dataViewOf(bytes);
  }

  /** The fields of the record at the beginning of `bytes`. */
  decode(bytes: Uint8Array): ValuesOf<T> {
    return this.read(this.viewOf(bytes), 0);
  }

  /** The fields of the record at `at`, which the caller knows to be there. */
  read(view: DataView, at: number): ValuesOf<T> {
    const values: Record<string, unknown> = {};
    for (const { name, offset, what, get } of this.#fields) values[name] = get(view, at + offset, what);
    return values as ValuesOf<T>;
  }

  /** Reserved fields stay as they are. */
  write(view: DataView, at: number, values: ValuesOf<T>): void {
    for (const { name, offset, set } of this.#fields) set(view, at + offset, (values as Record<string, unknown>)[name]);
  }
}

// ── anything else ───────────────────────────────────────────────────────────────────────────────────────────────────

const varintBytesMax = 8;

/** Reads bytes from the first to the last, and none beyond. */
export class ByteReader {
  readonly #bytes: Buffer;
  readonly #view: DataView;
  readonly #what: string;
  #at = 0;

  /** @param what names the format in errors, like `a store message`. */
  constructor(bytes: Uint8Array, what: string) {
    this.#bytes = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.#view = dataViewOf(bytes);
    this.#what = what;
  }

  get left(): number {
    return this.#bytes.length - this.#at;
  }

  get done(): boolean {
    return this.left === 0;
  }

  u8(): number {
    return this.#view.getUint8(this.#advance(1));
  }

  u16(): number {
    return this.#view.getUint16(this.#advance(2), true);
  }

  u32(): number {
    return this.#view.getUint32(this.#advance(4), true);
  }

  record<T extends FieldKinds>(layout: Layout<T>): ValuesOf<T> {
    return layout.read(this.#view, this.#advance(layout.bytes));
  }

  u64(): bigint {
    return this.#view.getBigUint64(this.#advance(8), true);
  }

  /** A number from 0, 7 bits in each byte: the small ones are short. */
  varint(): number {
    let value = 0;
    let factor = 1;
    for (let k = 0; k < varintBytesMax; k++) {
      const byte = this.u8();
      value += (byte & 0x7f) * factor;
      if (byte < 0x80) return count(value, this.#what);
      factor *= 0x80;
    }
    throw this.malformed('a number has more than 8 bytes');
  }

  /** Text behind its length in two bytes. */
  text(bytesMax = 0xffff): string {
    const bytes = this.u16();
    if (bytes > bytesMax) throw this.malformed(`a text has ${bytes} bytes; at most ${bytesMax} are allowed`);
    const at = this.#advance(bytes);
    return this.#bytes.toString('utf8', at, at + bytes);
  }

  /** A view of the next bytes. */
  bytes(count: number): Buffer {
    const at = this.#advance(count);
    return this.#bytes.subarray(at, at + count);
  }

  end(): void {
    if (!this.done) throw this.malformed(`${this.left} bytes are too many`);
  }

  /** The error for bytes that are there and cannot be. */
  malformed(why: string): ShoalError {
    return new ShoalError('protocol', `${this.#what} is malformed at byte ${this.#at} of ${this.#bytes.length}: ${why}`);
  }

  #advance(bytes: number): number {
    const at = this.#at;
    if (bytes > this.left) throw cutOff(this.#what, this.#bytes.length, at, bytes);
    this.#at += bytes;
    return at;
  }
}

function cutOff(what: string, length: number, at: number, bytes: number): ShoalError {
  return new ShoalError('protocol', `${what} of ${length} bytes is cut off: at byte ${at} it needs ${bytes}`);
}

/** Writes bytes one behind the other, in memory that grows with them and can be used again. */
export class ByteWriter {
  #bytes: Buffer;
  #view: DataView;
  #length = 0;
  /** Full pieces, before `#from`. */
  readonly #pieces: Uint8Array[] = [];
  #from = 0;

  constructor(capacity = 64) {
    this.#bytes = Buffer.alloc(capacity);
    this.#view = dataViewOf(this.#bytes);
  }

  get length(): number {
    return this.#length;
  }

  /** All that is written, nothing lent; valid until the next write. */
  get bytes(): Uint8Array {
    return this.#bytes.subarray(0, this.#length);
  }

  /** All that is written and lent, for a writer that is not used again. */
  get pieces(): Uint8Array[] {
    this.#seal();
    return this.#pieces;
  }

  /** Forgets everything behind `length`. */
  truncate(length: number): void {
    this.#length = length;
  }

  u8(value: number): void {
    const at = this.#advance(1);
    this.#view.setUint8(at, value);
  }

  u16(value: number): void {
    const at = this.#advance(2);
    this.#view.setUint16(at, value, true);
  }

  u32(value: number): void {
    const at = this.#advance(4);
    this.#view.setUint32(at, value, true);
  }

  record<T extends FieldKinds>(layout: Layout<T>, values: ValuesOf<T>): void {
    const at = this.#advance(layout.bytes);
    this.#bytes.fill(0, at, this.#length);
    layout.write(this.#view, at, values);
  }

  u64(value: bigint): void {
    const at = this.#advance(8);
    this.#view.setBigUint64(at, value, true);
  }

  varint(value: number): void {
    let left = value;
    for (; left >= 0x80; left = Math.floor(left / 0x80)) this.u8((left % 0x80) | 0x80);
    this.u8(left);
  }

  /** Writes text of at most 65,535 bytes of UTF-8 behind its length in two bytes; the caller has checked the length. */
  text(value: string): void {
    const bytes = Buffer.byteLength(value);
    assert(bytes <= 0xffff, () => `a text of ${bytes} bytes`);
    this.u16(bytes);
    const at = this.#advance(bytes);
    this.#bytes.write(value, at);
  }

  put(bytes: Uint8Array): void {
    const at = this.#advance(bytes.length);
    this.#bytes.set(bytes, at);
  }

  /** Bytes that are not copied: they must not change before the pieces are used. */
  lend(bytes: Uint8Array): void {
    this.#seal();
    this.#pieces.push(bytes);
  }

  #seal(): void {
    if (this.#from < this.#length) this.#pieces.push(this.#bytes.subarray(this.#from, this.#length));
    this.#from = this.#length;
  }

  /** Makes room, and returns where it begins. */
  #advance(bytes: number): number {
    const at = this.#length;
    this.#length += bytes;
    if (this.#length > this.#bytes.length) {
      const grown = Buffer.alloc(Math.max(this.#bytes.length * 2, this.#length));
      this.#bytes.copy(grown, 0, 0, at);
      this.#bytes = grown;
      this.#view = dataViewOf(grown);
    }
    return at;
  }
}
