/** A packet that arrives part by part, bounded by what a message may be. */
import { ShoalError } from '../../base/errors.ts';

const partsMost = 70_000;

export class IncomingPacket {
  readonly #bytesMost: number;
  #parts: Uint8Array[] = [];
  #bytes = 0;

  constructor(bytesMost: number) {
    this.#bytesMost = bytesMost;
  }

  /** Most bytes that its next part may have. */
  get room(): number {
    return this.#bytesMost - this.#bytes;
  }

  /** @returns the parts of the packet, with its last one; then the next packet begins. @throws ShoalError `protocol` for more than any
   *  packet has. */
  add(part: Uint8Array, isLast: boolean): Uint8Array[] | undefined {
    const parts = this.#parts;
    parts.push(part);
    this.#bytes += part.byteLength;
    if (parts.length > partsMost || this.#bytes > this.#bytesMost) {
      const message = `peer sent a packet of ${parts.length} parts with ${this.#bytes} bytes, more than a message may have`;
      throw new ShoalError('protocol', message);
    }
    if (!isLast) return undefined;
    this.#parts = [];
    this.#bytes = 0;
    return parts;
  }
}
