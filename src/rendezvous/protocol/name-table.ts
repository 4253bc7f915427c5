/** A receiver's cache of one sender's tensors: the number of each name on the wire, the tensor's last metadata, and its largest size of
 *  late. Beyond a bound the oldest entry is forgotten, and its next request costs as much as a first one. */
import { ShoalError } from '../../base/errors.ts';
import { parseRendezvousKey } from '../table/rendezvous-key.ts';
import type { TensorMetadata } from '../value/tensor-metadata.ts';
import type { Outbox } from './outbox.ts';
import type { ByteWriter } from '../../base/bytes.ts';
import { nameBytesMax, RecordType } from './records.ts';

/** The part of a key behind its last semicolon. */
export interface KeySuffix {
  readonly frame: number;
  readonly iteration: number;
}

/** A key, as requests have it. */
export interface FoundName {
  readonly name: TensorName;
  readonly suffix: KeySuffix;
}

/** After twice as many receives, a size that has not come again is forgotten. */
const receivesOfOneLargest = 64;

export class TensorName {
  /** The key up to its frame. */
  readonly text: string;
  readonly index: number;
  /** The metadata of the last receive. */
  metadata: TensorMetadata | undefined;
  isTold = false;
  /** The last request that asked for it, by number. */
  request = 0;
  /** Bytes of the largest tensor among the last receives, and among as many before them. */
  #largest = 0;
  #largestBefore = 0;
  #receives = 0;

  constructor(text: string, index: number) {
    this.text = text;
    this.index = index;
  }

  /** Bytes of a place for the next tensor: sizes alternate, and one that does not fit costs a round trip. */
  get room(): number {
    return Math.max(this.#largest, this.#largestBefore, this.metadata?.bytes ?? 0);
  }

  /** A tensor has come. */
  received(bytes: number): void {
    if (this.#receives++ % receivesOfOneLargest === 0) {
      this.#largestBefore = this.#largest;
      this.#largest = 0;
    }
    this.#largest = Math.max(this.#largest, bytes);
  }

  writeKey(writer: ByteWriter, { frame, iteration }: KeySuffix): void {
    writer.u32(this.index);
    writer.varint(frame);
    writer.varint(iteration);
  }
}

export class NameTable {
  readonly #options: { readonly namesMax: number; readonly outbox: Outbox };
  /** Names in the order in which they were added. */
  readonly #names = new Map<string, TensorName>();
  #request = 0;

  constructor(options: { readonly namesMax: number; readonly outbox: Outbox }) {
    this.#options = options;
  }

  /** Finds the name for a request of one tensor. @throws ShoalError `protocol` for what is no key, `usage` for one that is too long. */
  find(key: string): FoundName {
    this.#request++;
    return this.#find(key);
  }

  /** Finds the names for a request of several tensors: none of them is forgotten for another. @throws ShoalError as `find`; `usage` for too
   *  many. */
  findAll(keys: readonly string[]): readonly FoundName[] {
    this.#request++;
    return keys.map((key) => this.#find(key));
  }

  #find(key: string): FoundName {
    const end = key.lastIndexOf(';');
    const text = key.slice(0, end);
    const found = this.#names.get(text);
    if (found !== undefined) found.request = this.#request;
    if (found !== undefined && key.endsWith(';0:0')) return { name: found, suffix: outsideLoops };
    const { frame, iteration } = parseRendezvousKey(key);
    return { name: found ?? this.#add(text), suffix: { frame, iteration } };
  }

  /** On the wire, before the first request that has it. */
  tell(name: TensorName): void {
    if (name.isTold) return;
    name.isTold = true;
    const writer = this.#options.outbox.record(RecordType.Name);
    writer.u32(name.index);
    writer.text(name.text);
  }

  #add(text: string): TensorName {
    if (Buffer.byteLength(text) > nameBytesMax)
      throw new ShoalError('usage', `the key of a tensor has ${Buffer.byteLength(text)} bytes; at most ${nameBytesMax} are allowed`);
    let index = this.#names.size;
    if (index >= this.#options.namesMax) {
      // Its number is told anew: requests that came before are resolved already.
      const oldest = this.#oldest();
      this.#names.delete(oldest.text);
      ({ index } = oldest);
    }
    const name = new TensorName(text, index);
    name.request = this.#request;
    this.#names.set(text, name);
    return name;
  }

  /** The oldest name that the present request has not found. */
  #oldest(): TensorName {
    for (const name of this.#names.values()) if (name.request !== this.#request) return name;
    throw new ShoalError('usage', `a fused receive can have at most ${this.#options.namesMax} names`);
  }
}

const outsideLoops: KeySuffix = { frame: 0, iteration: 0 };
