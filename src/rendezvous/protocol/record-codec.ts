/** Bytes of control messages: numbers, text and metadata, little-endian, bounds-checked. Whole numbers that are mostly small are varints
 *  of 7 bits per byte, up to 2^53 − 1. */
import { ShoalError } from '../../base/errors.ts';
import { dtypes } from '../../memory/dtype.ts';
import { checkMetadata, type TensorMetadata } from '../value/tensor-metadata.ts';
import { dimensionsMax } from '../../memory/tensor.ts';

/** On the wire; those of memory come first, by their codes. */
const stringCode = 64;
const noMetadataCode = 255;
const varintBytesMax = 8;

/** Grows as needed, up to a bound that its owner keeps. */
export class RecordWriter {
  #bytes: Buffer;
  #view: DataView;
  #length = 0;

  constructor(capacity: number) {
    this.#bytes = Buffer.alloc(capacity);
    this.#view = new DataView(this.#bytes.buffer, this.#bytes.byteOffset);
  }

  get length(): number {
    return this.#length;
  }

  /** Valid until the next write. */
  get bytes(): Uint8Array {
    return this.#bytes.subarray(0, this.#length);
  }

  /** Forgets everything behind `length`. */
  truncate(length: number): void {
    this.#length = length;
  }

  u8(value: number): void {
    this.#reserve(1);
    this.#bytes[this.#length++] = value;
  }

  u16(value: number): void {
    this.#reserve(2);
    this.#view.setUint16(this.#length, value, true);
    this.#length += 2;
  }

  u32(value: number): void {
    this.#reserve(4);
    this.#view.setUint32(this.#length, value, true);
    this.#length += 4;
  }

  u64(value: bigint): void {
    this.#reserve(8);
    this.#view.setBigUint64(this.#length, value, true);
    this.#length += 8;
  }

  varint(value: number): void {
    this.#reserve(varintBytesMax);
    let left = value;
    for (; left >= 0x80; left = Math.floor(left / 0x80)) this.#bytes[this.#length++] = (left % 0x80) | 0x80;
    this.#bytes[this.#length++] = left;
  }

  /** At most 65,535 bytes of UTF-8; the caller has checked. */
  text(value: string): void {
    const length = Buffer.byteLength(value);
    this.#reserve(2 + length);
    this.u16(length);
    this.#length += this.#bytes.write(value, this.#length, 'utf8');
  }

  metadata(metadata: TensorMetadata | undefined): void {
    if (metadata === undefined) return this.u8(noMetadataCode);
    this.u8(metadata.dtype === 'string' ? stringCode : dtypes.find(({ name }) => name === metadata.dtype)!.code);
    this.u8(metadata.shape.length);
    for (const dimension of metadata.shape) this.varint(dimension);
    this.varint(metadata.bytes);
  }

  #reserve(bytes: number): void {
    if (this.#length + bytes <= this.#bytes.length) return;
    const grown = Buffer.alloc(Math.max(this.#bytes.length * 2, this.#length + bytes));
    this.#bytes.copy(grown, 0, 0, this.#length);
    this.#bytes = grown;
    this.#view = new DataView(grown.buffer, grown.byteOffset);
  }
}

/** Every method throws ShoalError `protocol` for bytes that are not there or not valid. */
export class RecordReader {
  readonly #bytes: Buffer;
  readonly #view: DataView;
  #at = 0;

  constructor(message: Uint8Array) {
    this.#bytes = Buffer.from(message.buffer, message.byteOffset, message.byteLength);
    this.#view = new DataView(message.buffer, message.byteOffset, message.byteLength);
  }

  get done(): boolean {
    return this.#at === this.#bytes.length;
  }

  u8(): number {
    return this.#bytes[this.#advance(1)];
  }

  u16(): number {
    return this.#view.getUint16(this.#advance(2), true);
  }

  u32(): number {
    return this.#view.getUint32(this.#advance(4), true);
  }

  u64(): bigint {
    return this.#view.getBigUint64(this.#advance(8), true);
  }

  varint(): number {
    let value = 0;
    let factor = 1;
    for (let k = 0; k < varintBytesMax; k++) {
      const byte = this.u8();
      value += (byte & 0x7f) * factor;
      if (byte < 0x80) {
        if (!Number.isSafeInteger(value)) break;
        return value;
      }
      factor *= 0x80;
    }
    throw new ShoalError('protocol', 'a control message has a number above 2^53 − 1');
  }

  text(bytesMax: number): string {
    const length = this.u16();
    if (length > bytesMax)
      throw new ShoalError('protocol', `a control message has a text of ${length} bytes; at most ${bytesMax} are allowed`);
    const at = this.#advance(length);
    return this.#bytes.toString('utf8', at, at + length);
  }

  metadata(): TensorMetadata | undefined {
    const code = this.u8();
    if (code === noMetadataCode) return undefined;
    const dtype = code === stringCode ? 'string' : dtypes[code]?.name;
    if (dtype === undefined) throw new ShoalError('protocol', `a control message has dtype code ${code}, which no dtype has`);
    const rank = this.u8();
    if (rank > dimensionsMax) throw new ShoalError('protocol', `a tensor has ${rank} dimensions; at most ${dimensionsMax} are allowed`);
    const shape: number[] = [];
    for (let axis = 0; axis < rank; axis++) shape.push(this.varint());
    return checkMetadata(dtype, shape, this.varint());
  }

  #advance(bytes: number): number {
    const at = this.#at;
    if (bytes > this.#bytes.length - at)
      throw new ShoalError('protocol', `a control message of ${this.#bytes.length} bytes ends in the middle of a record`);
    this.#at += bytes;
    return at;
  }
}
