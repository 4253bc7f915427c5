/** Bytes of an encrypted connection: records of the Noise Protocol Framework, each its length and one transport message. The number of a
 *  record is its nonce, so that a record which was changed, lost, repeated or moved opens to nothing. Pure: bytes in, bytes out.
 *
 *    byte 0       2                              u16 big-endian: bytes that follow, 17 … 65,535
 *         │length │ciphertext … │tag (16)│       the key changes every 2²⁰ records
 *
 *  The JavaScript twin of native/records.cc is here. */
import { assert } from '../assert.ts';
import { ShoalError } from '../errors.ts';
import { decrypt, encrypt, nextKey, noiseMessageBytesMax, tagBytes, type Aead, type Sealing } from './noise.ts';

export const lengthBytes = 2;
export const recordPlainBytesMax: number = noiseMessageBytesMax - tagBytes;
/** Records with one key: far below what either cipher allows. */
export const recordsPerKey = 2 ** 20;
/** Smaller parts of what is sealed are brought together in a record. */
const joinedBytesMax = 4096;
const nothing = new Uint8Array(0);

/** Keys of both directions of a connection. */
export interface LinkKeys {
  readonly aead: Aead;
  readonly send: Uint8Array;
  readonly receive: Uint8Array;
}

export interface RecordSealer {
  /** Writes records with all of `source` into `target` from `at` on. @returns their end. */
  seal(source: Uint8Array, target: Uint8Array, at: number): number;
}

export interface RecordOpener {
  /** Opens the next record, without its length, into a target that is exactly as long as its plaintext. False: nothing was opened. */
  open(sealed: Uint8Array, target: Uint8Array): boolean;
}

export interface RecordCiphers {
  sealer(aead: Aead, key: Uint8Array): RecordSealer;
  opener(aead: Aead, key: Uint8Array): RecordOpener;
  /** Hands the records of a socket to native code, which goes on with them. Absent: it cannot. */
  bind?(descriptor: number, sealer: RecordSealer, opener: RecordOpener): void;
}

/** The ciphers of node:crypto. */
export const scriptCiphers: RecordCiphers = { sealer: (...of) => new ScriptCipher(...of), opener: (...of) => new ScriptCipher(...of) };

class ScriptCipher implements RecordSealer, RecordOpener {
  readonly #aead: Aead;
  #key: Uint8Array;
  #records = 0;

  constructor(aead: Aead, key: Uint8Array) {
    this.#aead = aead;
    this.#key = key;
  }

  seal(source: Uint8Array, target: Uint8Array, at: number): number {
    let end = at;
    for (let done = 0; done < source.length; done += recordPlainBytesMax) {
      const sealed = encrypt(this.#next(), nothing, source.subarray(done, done + recordPlainBytesMax));
      target[end] = sealed.length >> 8;
      target[end + 1] = sealed.length & 0xff;
      target.set(sealed, end + lengthBytes);
      end += lengthBytes + sealed.length;
    }
    return end;
  }

  open(sealed: Uint8Array, target: Uint8Array): boolean {
    const plaintext = decrypt(this.#next(), nothing, sealed);
    if (plaintext === undefined) return false;
    target.set(plaintext);
    return true;
  }

  #next(): Sealing {
    assert(Number.isSafeInteger(this.#records), () => 'the numbers of records have no end');
    if (this.#records > 0 && this.#records % recordsPerKey === 0) this.#key = nextKey(this.#aead, this.#key);
    return { aead: this.#aead, key: this.#key, counter: BigInt(this.#records++) };
  }
}

/** Bytes of the records of so many bytes. */
export function sealedBytes(bytes: number): number {
  return bytes + Math.ceil(bytes / recordPlainBytesMax) * (lengthBytes + tagBytes);
}

/** All parts in records, in their order. @param allocate gives memory of at least so many bytes. */
export function sealParts(
  sealer: RecordSealer,
  parts: readonly Uint8Array[],
  allocate: (bytes: number) => Buffer = (bytes) => Buffer.allocUnsafe(bytes),
): Buffer {
  const runs: Uint8Array[] = [];
  let small: Uint8Array[] = [];
  const join = (): void => {
    if (small.length > 0) runs.push(small.length === 1 ? small[0] : Buffer.concat(small));
    small = [];
  };
  for (const part of parts) {
    if (part.length < joinedBytesMax) small.push(part);
    else {
      join();
      runs.push(part);
    }
  }
  join();
  const target = allocate(runs.reduce((sum, run) => sum + sealedBytes(run.length), 0));
  let end = 0;
  for (const run of runs) end = sealer.seal(run, target, end);
  return target.subarray(0, end);
}

export interface RecordReaderOptions {
  readonly opener: RecordOpener;
  /** False: what comes is kept. */
  isReady(): boolean;
  /** Memory for the `bytes` of the next record. */
  target(bytes: number): Uint8Array;
  /** A record has come, and is what the other end has sealed. */
  onOpened(target: Uint8Array): void;
}

/** Buffer to read into, shared by all connections of the thread: what is not a whole record is copied out of it before anything else is
 *  read. */
const staging = Buffer.allocUnsafeSlow(4 * (lengthBytes + noiseMessageBytesMax));

/** Takes records out of a stream of bytes. */
export class RecordReader {
  readonly #options: RecordReaderOptions;
  /** Bytes at its beginning are no whole record yet, or are not wanted yet. */
  #kept = Buffer.alloc(0);
  #keptBytes = 0;

  constructor(options: RecordReaderOptions) {
    this.#options = options;
  }

  /** Bytes have come that were not opened. */
  get hasKept(): boolean {
    return this.#keptBytes > 0;
  }

  /** Buffer for the next read, of which `onRead` then gives the number of bytes. */
  nextBuffer(): Uint8Array {
    const room = this.#keptBytes < staging.length ? staging : Buffer.allocUnsafe(2 * this.#keptBytes);
    return room.subarray(this.#keptBytes);
  }

  /** @throws ShoalError `protocol`, and errors of the owner's callbacks. */
  onRead(bytes: number, buffer: Uint8Array): void {
    // Others may have read into the place before since it was given.
    const all = Buffer.from(buffer.buffer, buffer.byteOffset - this.#keptBytes, this.#keptBytes + bytes);
    all.set(this.#kept.subarray(0, this.#keptBytes));
    this.#openAll(all);
  }

  /** Like `onRead`, for bytes that lie anywhere. */
  push(chunk: Uint8Array): void {
    this.#openAll(this.#keptBytes === 0 ? chunk : Buffer.concat([this.#kept.subarray(0, this.#keptBytes), chunk]));
  }

  /** Goes on with what was kept. */
  resume(): void {
    this.#openAll(this.#kept.subarray(0, this.#keptBytes));
  }

  #openAll(bytes: Uint8Array): void {
    const { opener, isReady, target: targetOf, onOpened } = this.#options;
    let at = 0;
    try {
      while (bytes.length - at >= lengthBytes && isReady()) {
        const sealed = bytes[at] * 256 + bytes[at + 1];
        if (sealed <= tagBytes) throw damaged();
        if (bytes.length - at < lengthBytes + sealed) break;
        at += lengthBytes;
        const target = targetOf(sealed - tagBytes);
        if (!opener.open(bytes.subarray(at, at + sealed), target)) throw damaged();
        at += sealed;
        onOpened(target);
      }
    } finally {
      this.#keep(bytes.subarray(at));
    }
  }

  #keep(rest: Uint8Array): void {
    this.#keptBytes = rest.length;
    if (this.#kept.length < rest.length) this.#kept = Buffer.from(rest);
    else this.#kept.set(rest);
  }
}

function damaged(): ShoalError {
  return new ShoalError('protocol', 'an encrypted record was changed, lost, repeated or moved on its way');
}
