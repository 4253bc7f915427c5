/** One direction between two threads: a ring of bytes in a SharedArrayBuffer, one writer, one reader, no locks. Whole
 *  packets go in and come out; a packet larger than the ring passes through it in pieces. Knows no threads and no wakes.
 *
 *    Int32 index 0       16       32         48
 *          │written │read    │asleep    │thirsty  │ …        one cache line each
 *           bytes    bytes    reader     writer
 *           mod 2³²  mod 2³²  sleeps     waits for room
 *
 *    record, aligned to 8, never wraps:   │piece bytes u32 │flags u32 │part bytes u32 │0 │ piece …
 *    flags: 1 last piece of its part, 2 last part of its packet, 4 the part is references: slot, offset, bytes (f64 each) */

const lineWords = 16;
export const ringHeaderBytes: number = 4 * lineWords * 4;
const recordHeaderBytes = 16;
const flag = { lastPiece: 1, lastPart: 2, references: 4 } as const;

/** Bytes of the ring's data, a power of two. */
export const ringDataBytes: number = 256 * 1024;
export const ringBytes: number = ringHeaderBytes + ringDataBytes;

/** A packet being written; `part` and `offset` say how far. */
interface Outgoing {
  readonly parts: readonly Uint8Array[];
  /** The last part. */
  readonly references: boolean;
  part: number;
  offset: number;
}

const written = 0;
const read = lineWords;
const asleep = 2 * lineWords;
const thirsty = 3 * lineWords;

class RingEnd {
  protected readonly words: Int32Array;
  protected readonly bytes: Uint8Array;
  protected readonly view: DataView;

  constructor(memory: SharedArrayBuffer, offset: number) {
    this.words = new Int32Array(memory, offset, ringHeaderBytes / 4);
    this.bytes = new Uint8Array(memory, offset + ringHeaderBytes, ringDataBytes);
    this.view = new DataView(memory, offset + ringHeaderBytes, ringDataBytes);
  }
}

export class RingWriter extends RingEnd {
  #written = 0;
  #outgoing: Outgoing | undefined;

  /** Begins a packet; the one before must be finished. `references`: three words per pointer. */
  begin(parts: readonly Uint8Array[], references: readonly number[]): void {
    const all = references.length === 0 ? parts : [...parts, new Uint8Array(Float64Array.from(references).buffer)];
    this.#outgoing = { parts: all, references: all !== parts, part: 0, offset: 0 };
  }

  /** Writes as much as there is room for. @returns the packet is finished. */
  continue(): boolean {
    const out = this.#outgoing;
    if (out === undefined) return true;
    const { parts, references } = out;
    let published = this.#written;
    let full = false;
    while (!full && out.part < parts.length) {
      const part = parts[out.part];
      const room = this.#room();
      if (room < recordHeaderBytes) {
        full = true;
        break;
      }
      const piece = Math.min(part.byteLength - out.offset, room - recordHeaderBytes);
      const last = out.offset + piece === part.byteLength;
      const lastPart = out.part === parts.length - 1;
      const flags = (last ? flag.lastPiece : 0) + (lastPart ? flag.lastPart + (references ? flag.references : 0) : 0);
      const at = this.#header(piece, flags, part.byteLength);
      this.bytes.set(piece === part.byteLength ? part : part.subarray(out.offset, out.offset + piece), at);
      this.#written = (this.#written + recordHeaderBytes + ((piece + 7) & ~7)) >>> 0;
      out.offset += piece;
      if (last) {
        out.part++;
        out.offset = 0;
      }
      // The reader may begin with a large packet while it is still being written.
      if (this.#written - published > ringDataBytes / 4) Atomics.store(this.words, written, (published = this.#written) | 0);
    }
    if (this.#written !== published) {
      Atomics.store(this.words, written, this.#written | 0);
    }
    if (full) return false;
    this.#outgoing = undefined;
    return true;
  }

  /** The reader sleeps and must be woken; asks once per sleep. */
  get mustWake(): boolean {
    return Atomics.load(this.words, asleep) === 1 && Atomics.exchange(this.words, asleep, 0) === 1;
  }

  /** The next time the reader takes something, it wakes us. @returns there is room already. */
  waitForRoom(): boolean {
    Atomics.store(this.words, thirsty, 1);
    return this.#room() > 0;
  }

  /** Contiguous bytes that may be written. */
  #room(): number {
    const used = (this.#written - (Atomics.load(this.words, read) >>> 0)) >>> 0;
    const toEnd = ringDataBytes - (this.#written & (ringDataBytes - 1));
    const free = ringDataBytes - used;
    const room = Math.min(free, toEnd);
    // The rest before the end is too little for a record: skip it, as the reader does.
    if (toEnd < recordHeaderBytes + 8 && free >= toEnd + recordHeaderBytes) {
      this.#written = (this.#written + toEnd) >>> 0;
      return Math.min(free - toEnd, ringDataBytes);
    }
    return room < recordHeaderBytes + 8 ? 0 : room;
  }

  #header(piece: number, flags: number, total: number): number {
    const at = this.#written & (ringDataBytes - 1);
    this.view.setUint32(at, piece, true);
    this.view.setUint32(at + 4, flags, true);
    this.view.setUint32(at + 8, total, true);
    return at + recordHeaderBytes;
  }
}

/** A packet as it came out. */
export interface RingPacket {
  readonly parts: Uint8Array[];
  readonly references: readonly number[];
}

export class RingReader extends RingEnd {
  #read = 0;
  #parts: Uint8Array[] = [];
  #part: Uint8Array | undefined;
  #filled = 0;

  /** Something is there. */
  get ready(): boolean {
    return Atomics.load(this.words, written) >>> 0 !== this.#read;
  }

  /** Spins for at most `loads`. @returns something is there. */
  spin(loads: number): boolean {
    for (let k = 0; k < loads; k++) if (this.ready) return true;
    return false;
  }

  /** The next whole packet, or undefined. */
  next(): RingPacket | undefined {
    const limit = Atomics.load(this.words, written) >>> 0;
    let packet: RingPacket | undefined;
    while (packet === undefined && this.#read !== limit) packet = this.#record(limit);
    Atomics.store(this.words, read, this.#read | 0);
    return packet;
  }

  /** The writer waits for room and must be woken; asks once. */
  get mustWake(): boolean {
    return Atomics.load(this.words, thirsty) === 1 && Atomics.exchange(this.words, thirsty, 0) === 1;
  }

  /** Makes the writer wake us. @returns true when nothing has come meanwhile. */
  sleep(): boolean {
    Atomics.store(this.words, asleep, 1);
    if (!this.ready) return true;
    Atomics.store(this.words, asleep, 0);
    return false;
  }

  /** We look by ourselves for now: the writer need not wake us. */
  wake(): void {
    if (Atomics.load(this.words, asleep) !== 0) Atomics.store(this.words, asleep, 0);
  }

  #record(limit: number): RingPacket | undefined {
    let at = this.#read & (ringDataBytes - 1);
    const toEnd = ringDataBytes - at;
    if (toEnd < recordHeaderBytes + 8) {
      this.#read = (this.#read + toEnd) >>> 0;
      if (this.#read === limit) return undefined;
      at = 0;
    }
    const piece = this.view.getUint32(at, true);
    const flags = this.view.getUint32(at + 4, true);
    const total = this.view.getUint32(at + 8, true);
    const start = at + recordHeaderBytes;
    this.#read = (this.#read + recordHeaderBytes + ((piece + 7) & ~7)) >>> 0;
    this.#part ??= new Uint8Array(total);
    this.#part.set(this.bytes.subarray(start, start + piece), this.#filled);
    this.#filled += piece;
    if ((flags & flag.lastPiece) === 0) return undefined;
    const part = this.#part;
    this.#part = undefined;
    this.#filled = 0;
    const references = (flags & flag.references) !== 0;
    if (!references) this.#parts.push(part);
    if ((flags & flag.lastPart) === 0) return undefined;
    const parts = this.#parts;
    this.#parts = [];
    return { parts, references: references ? [...new Float64Array(part.buffer)] : [] };
  }
}
