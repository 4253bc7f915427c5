/** The sending half of a framed socket: frames in order, gathered with writev from where their bytes are. It must not know what
 *  frames mean.
 *
 *    push ─▶ queue ───────────▶ handed ───────▶ kernel
 *            references only    ≤ 256 frames, about 2 MiB: what Node's socket holds
 *
 *  Small frames that follow each other are copied into one run of bytes: a system call costs as much as copying thousands of
 *  them. Payloads of writes are not copied.
 *
 *  On an encrypted stream frames are sealed when they are handed over; a large one piece by piece, into one buffer, while the kernel sends
 *  the piece before.
 *
 *  Headers live in a ring of slots, as many as there have been frames in `handed`. A slot is free again when its frame has left
 *  `handed`, which happens in order. */
import type net from 'node:net';
import type { ShoalError } from '../../base/errors.ts';
import {
  recordPlainBytesMax,
  scriptCiphers,
  sealParts,
  type LinkKeys,
  type RecordCiphers,
  type RecordSealer,
} from '../../base/secure/records.ts';
import { Fifo } from '../../base/collections/fifo.ts';
import { dataViewOf } from '../../base/bytes.ts';
import { settled } from '../../base/microtask.ts';
import { encodeHeader, FrameType, headerBytes, type FrameHeader } from './frame.ts';
import type { InFlight } from '../limits.ts';
import type { StreamCounters } from './stream-counters.ts';

/** Frames handed to Node's socket and not yet taken by the kernel: enough to keep it busy. */
const handedFrames = 256;
/** Slots at first: most connections of a large world never have more frames on their way. */
const firstSlots = 16;
const handedBytesMax = 2 * 1024 * 1024;
/** Most bytes of a run. */
const runBytesMax = 2048;
/** Most bytes that are sealed at once. */
const pieceBytesMax = 4 * recordPlainBytesMax;

export interface FrameSenderOptions {
  readonly maxQueuedBytes: number;
  readonly counters: StreamCounters;
  /** Ciphers of encrypted streams. Default: those of node:crypto. */
  readonly ciphers?: RecordCiphers | undefined;
}

/** The bytes of a frame behind its header. */
export interface FrameParts {
  readonly payload?: Uint8Array | undefined;
  /** One buffer with room for the header, and the payload behind it; it stands for `payload`. */
  readonly joined?: Buffer | undefined;
  /** Further parts, behind the payload. */
  readonly more?: readonly Uint8Array[] | undefined;
}

/** A frame on its way. */
export interface OutgoingFrame extends FrameHeader, FrameParts {
  /** Bytes of the payload and all further parts. */
  readonly payloadBytes: number;
  /** Called when the kernel has the frame: the payload may change. */
  resolve(): void;
  reject(error: ShoalError): void;
}

export class FrameSender {
  readonly #socket: net.Socket;
  readonly #options: FrameSenderOptions;
  readonly #handedBytesLimit: number;
  readonly #queue = new Fifo<OutgoingFrame>();
  readonly #handed = new Fifo<OutgoingFrame>();
  /** Number of frames of each write that has a callback. */
  readonly #written = new Fifo<number>();
  #sealer: RecordSealer | undefined;
  /** The rest of a frame that is sealed piece by piece; no other frame is handed over meanwhile. */
  #pieces: Uint8Array[][] | undefined;
  #piece = Buffer.alloc(0);
  #slots = Buffer.allocUnsafe(firstSlots * headerBytes);
  #slotsView = dataViewOf(this.#slots);
  #slotCount = firstSlots;
  #nextSlot = 0;
  #handedBytes = 0;
  #pendingBytes = 0;
  #messageBytes = 0;
  #pumpScheduled = false;
  #stopped = false;

  constructor(socket: net.Socket, options: FrameSenderOptions) {
    this.#socket = socket;
    this.#options = options;
    this.#handedBytesLimit = Math.min(handedBytesMax, options.maxQueuedBytes);
  }

  /** Frames that the kernel does not have yet. `messageBytes` are those of messages alone, which are copies. */
  get inFlight(): InFlight & { messageBytes: number } {
    return { operations: this.#queue.length + this.#handed.length, bytes: this.#pendingBytes, messageBytes: this.#messageBytes };
  }

  get sealer(): RecordSealer | undefined {
    return this.#sealer;
  }

  /** Everything that is sent after this is sealed. */
  encrypt({ aead, send }: LinkKeys): void {
    const { ciphers = scriptCiphers } = this.#options;
    this.#sealer = ciphers.sealer(aead, send);
  }

  /** Bytes as they go to the socket, behind all that was sealed before. */
  sealed(bytes: Uint8Array): Uint8Array {
    return this.#sealer ? sealParts(this.#sealer, [bytes]) : bytes;
  }

  push(frame: OutgoingFrame): void {
    this.#queue.push(frame);
    this.#pendingBytes += frame.payloadBytes;
    if (frame.type === FrameType.Message) this.#messageBytes += frame.payloadBytes;
    if (this.#pumpScheduled) return;
    this.#pumpScheduled = true;
    // One writev serves all frames that are posted in this turn.
    void settled.then(this.#onTurn);
  }

  /** Stops handing frames over; every frame that the kernel does not have yet is rejected. */
  stop(errorOf: () => ShoalError): void {
    this.#stopped = true;
    let error: ShoalError | undefined;
    for (const queue of [this.#handed, this.#queue]) {
      for (let frame = queue.shift(); frame !== undefined; frame = queue.shift()) {
        this.#forget(frame);
        frame.reject((error ??= errorOf()));
      }
    }
  }

  readonly #onTurn = (): void => {
    this.#pumpScheduled = false;
    this.#pump();
  };

  /** Hands frames to the socket, up to the limits. */
  #pump(): void {
    if (this.#stopped || this.#pieces || this.#queue.length === 0) return;
    const corks = this.#runOf() < this.#queue.length;
    if (corks) this.#socket.cork();
    while (this.#queue.length > 0 && !this.#pieces && this.#handed.length < handedFrames && this.#handedBytes < this.#handedBytesLimit) {
      const run = this.#runOf();
      if (run > 0) {
        this.#handRun(run);
        continue;
      }
      const frame = this.#handNext();
      this.#written.push(1);
      const header = this.#encode(frame);
      if (frame.joined !== undefined) {
        frame.joined.set(header);
        this.#write([frame.joined]);
      } else if (frame.payloadBytes === 0) {
        this.#write([header]);
      } else {
        const { payload, more = [] } = frame;
        this.#write([header, payload!, ...more]);
      }
    }
    if (corks) this.#socket.uncork();
  }

  #write(parts: readonly Uint8Array[]): void {
    if (this.#sealer) {
      const pieces = piecesOf(parts);
      if (pieces.length === 1) this.#socket.write(sealParts(this.#sealer, parts), this.#onWritten);
      else {
        this.#pieces = pieces;
        this.#sealNext();
      }
      return;
    }
    for (let k = 0; k < parts.length - 1; k++) this.#socket.write(parts[k]);
    this.#socket.write(parts[parts.length - 1], this.#onWritten);
  }

  readonly #sealNext = (error?: Error | null): void => {
    if (error || this.#stopped) return;
    const parts = this.#pieces!.shift();
    if (parts === undefined) {
      this.#pieces = undefined;
      this.#onWritten();
      return;
    }
    const sealed = sealParts(this.#sealer!, parts, (bytes) => {
      if (this.#piece.length < bytes) this.#piece = Buffer.allocUnsafeSlow(bytes);
      return this.#piece;
    });
    this.#socket.write(sealed, this.#sealNext);
  };

  #handNext(): OutgoingFrame {
    const frame = this.#queue.shift()!;
    this.#handed.push(frame);
    this.#handedBytes += frame.payloadBytes;
    this.#options.counters.framesSent++;
    return frame;
  }

  /** Number of the next frames that can be sent as one run. */
  #runOf(): number {
    const most = Math.min(this.#queue.length, handedFrames - this.#handed.length);
    let bytes = 0;
    for (let count = 0; count < most; count++) {
      const { type, more, payloadBytes } = this.#queue.at(count)!;
      bytes += headerBytes + payloadBytes;
      if (bytes > runBytesMax || more !== undefined || (type === FrameType.Write && payloadBytes > 0)) return this.#runIfMany(count);
    }
    return this.#runIfMany(most);
  }

  /** Returns 0 for a single frame that is in one piece already: it needs no copy. */
  #runIfMany(count: number): number {
    return count === 1 && this.#queue.at(0)!.joined !== undefined ? 0 : count;
  }

  #handRun(count: number): void {
    let total = 0;
    for (let k = 0; k < count; k++) total += headerBytes + this.#queue.at(k)!.payloadBytes;
    const bytes = Buffer.allocUnsafe(total);
    const view = dataViewOf(bytes);
    let at = 0;
    for (let k = 0; k < count; k++) {
      const frame = this.#handNext();
      encodeHeader(view, at, frame);
      at += headerBytes;
      const payload = frame.joined?.subarray(headerBytes) ?? frame.payload;
      if (payload !== undefined) bytes.set(payload, at);
      at += frame.payloadBytes;
    }
    this.#written.push(count);
    this.#write([bytes]);
  }

  #encode(frame: OutgoingFrame): Buffer {
    if (this.#handed.length > this.#slotCount) this.#addSlots();
    const at = this.#nextSlot * headerBytes;
    this.#nextSlot = (this.#nextSlot + 1) % this.#slotCount;
    encodeHeader(this.#slotsView, at, frame);
    return this.#slots.subarray(at, at + headerBytes);
  }

  /** Doubles the ring of slots. Headers that are on their way stay where they are. */
  #addSlots(): void {
    this.#slotCount *= 2;
    this.#slots = Buffer.allocUnsafe(this.#slotCount * headerBytes);
    this.#slotsView = dataViewOf(this.#slots);
    this.#nextSlot = 0;
  }

  /** The kernel has taken a write: callbacks come in the order of the writes. Errors are reported by the socket's end. */
  readonly #onWritten = (error?: Error | null): void => {
    const frames = error ? undefined : this.#written.shift();
    if (frames === undefined) return;
    for (let k = 0; k < frames; k++) {
      const frame = this.#handed.shift();
      if (frame === undefined) return;
      this.#handedBytes -= frame.payloadBytes;
      this.#forget(frame);
      frame.resolve();
    }
    // Refill in batches: a writev of one frame per completion would cost a system call each.
    if (this.#handed.length <= handedFrames / 2 && this.#handedBytes <= handedBytesMax / 2) this.#pump();
  };

  #forget(frame: OutgoingFrame): void {
    this.#pendingBytes -= frame.payloadBytes;
    if (frame.type === FrameType.Message) this.#messageBytes -= frame.payloadBytes;
  }
}

/** Parts, cut where a piece is full. */
function piecesOf(parts: readonly Uint8Array[]): Uint8Array[][] {
  const pieces: Uint8Array[][] = [[]];
  let room = pieceBytesMax;
  for (const part of parts) {
    for (let at = 0; at < part.length;) {
      if (room === 0) {
        pieces.push([]);
        room = pieceBytesMax;
      }
      const bytes = Math.min(room, part.length - at);
      pieces[pieces.length - 1].push(part.subarray(at, at + bytes));
      at += bytes;
      room -= bytes;
    }
  }
  return pieces;
}
