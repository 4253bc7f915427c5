/** Copies of many small values between regions and messages. A view of memory costs more than the copy of 256 bytes
 *  through one, so views of whole regions are made once per message, and short values are copied word by word. */
import type { OwnValues } from './value-space.ts';

const wordsMost = 128;

interface Words {
  readonly bytes: Uint8Array;
  /** The same memory; undefined when it does not begin at a whole word. */
  readonly words: Int32Array | undefined;
}

export class RegionCopies {
  readonly #values: OwnValues;
  readonly #regions = new Map<number, Words>();
  #lastRegion = -1;
  #last: Words | undefined;

  constructor(values: OwnValues) {
    this.#values = values;
  }

  /** Copies from a region into a message. */
  gather(target: Words, at: number, region: number, offset: number, bytes: number): void {
    copyWords(target, at, this.#regionOf(region), offset, bytes);
  }

  /** Copies from a message into a region. */
  scatter(region: number, offset: number, source: Words, at: number, bytes: number): void {
    copyWords(this.#regionOf(region), offset, source, at, bytes);
  }

  #regionOf(region: number): Words {
    if (this.#last !== undefined && this.#lastRegion === region) return this.#last;
    let found = this.#regions.get(region);
    if (found === undefined) {
      found = wordsOf(this.#values.view({ region, offset: 0, bytes: this.#values.bytesOf(region) }));
      this.#regions.set(region, found);
    }
    this.#lastRegion = region;
    this.#last = found;
    return found;
  }
}

export function wordsOf(bytes: Uint8Array): Words {
  const aligned = bytes.byteOffset % 4 === 0;
  return { bytes, words: aligned ? new Int32Array(bytes.buffer, bytes.byteOffset, Math.floor(bytes.byteLength / 4)) : undefined };
}

function copyWords(target: Words, to: number, source: Words, from: number, bytes: number): void {
  if (((to | from | bytes) & 3) === 0 && bytes <= 4 * wordsMost && target.words !== undefined && source.words !== undefined) {
    const { words } = target;
    const { words: read } = source;
    const end = (from + bytes) >>> 2;
    let at = to >>> 2;
    for (let k = from >>> 2; k < end; k++) words[at++] = read[k];
    return;
  }
  target.bytes.set(source.bytes.subarray(from, from + bytes), to);
}
