/** Checksums of a snapshot's file, as the last tensor in it, so that the file is written in one go and any reader of the format
 *  can still read it.
 *
 *    data      │ tensor 0 │ tensor 1 │ … │ checksums, U8 [16 · (tensors + 1)]      │
 *    checksums                           │ of tensor 0 │ of tensor 1 │ … │ of all │     each SHA-256, its first 16 bytes
 *
 *  The last one covers the header with its length and all checksums before it: no bit of a file is outside. */
import { createHash, type Hash } from 'node:crypto';
import { ShoalError } from '../base/errors.ts';

/** Name of the tensor that holds the checksums. */
export const checksumsName = 'checksums';
const checksumBytes = 16;

/** Bytes of the checksums of this many tensors. */
export function checksumsBytes(tensors: number): number {
  return checksumBytes * (tensors + 1);
}

/** Makes checksums of data that is given in the order of the file, while that is written or read. */
export class Checksums {
  /** The checksums as the file has them; complete when all data has been given. */
  readonly bytes: Uint8Array;
  readonly #whole: Hash;
  #tensor = newHash();
  #count = 0;

  /** @param header with its length before it. */
  constructor(header: readonly Uint8Array[], tensors: number) {
    this.bytes = new Uint8Array(checksumsBytes(tensors));
    this.#whole = newHash();
    for (const part of header) this.#whole.update(part);
    this.#endWhole();
  }

  /** Adds data of the present tensor. */
  update(data: Uint8Array): void {
    this.#tensor.update(data);
  }

  /** Ends the present tensor. After the last one all checksums are there. */
  endTensor(): void {
    this.#put(this.#tensor);
    this.#tensor = newHash();
    this.#endWhole();
  }

  #endWhole(): void {
    if (checksumsBytes(this.#count) < this.bytes.length) return;
    this.#whole.update(this.bytes.subarray(0, -checksumBytes));
    this.#put(this.#whole);
  }

  #put(hash: Hash): void {
    this.bytes.set(hash.digest().subarray(0, checksumBytes), this.#count * checksumBytes);
    this.#count++;
  }
}

/** Compares checksums. @param names of the tensors, in the order of their data. @throws ShoalError `protocol` naming the damaged tensor. */
export function checkChecksums(made: Uint8Array, found: Uint8Array, names: readonly string[]): void {
  const differs = (k: number): boolean => {
    const part = (bytes: Uint8Array): Uint8Array => bytes.subarray(k * checksumBytes, (k + 1) * checksumBytes);
    return Buffer.compare(part(made), part(found)) !== 0;
  };
  const name = names.find((_, k) => differs(k));
  if (name !== undefined) throw damaged(`the data of tensor '${name}' or its checksum has changed`);
  if (differs(names.length)) throw damaged('the header or a checksum has changed');
}

function newHash(): Hash {
  return createHash('sha256');
}

function damaged(what: string): ShoalError {
  return new ShoalError('protocol', `damaged: ${what} since it was saved`);
}
