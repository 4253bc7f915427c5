/** The sending half of a framed socket: frames in order, gathered with writev from where their bytes are. It must not
 *  know what frames mean.
 *
 *    push ─▶ queue ───────────▶ handed ───────▶ kernel
 *            references only    ≤ 256 frames, about 2 MiB: what Node's socket holds
 *
 *  Headers live in a ring of 256 slots. A slot is free again when its frame left `handed`, which is in order. */
import type net from 'node:net';
import type { ShoalError } from '../../base/errors.ts';
import { Fifo } from '../../base/fifo.ts';
import { encodeHeader, FrameType, headerBytes, type FrameHeader } from './frame.ts';
import type { InFlight } from '../limits.ts';
import type { StreamCounters } from './stream-counters.ts';
import type { WireTap } from './wire-tap.ts';

/** Frames handed to Node's socket and not yet taken by the kernel: enough to keep it busy. */
const handedFrames = 256;
const handedBytesMax = 2 * 1024 * 1024;

export interface FrameSenderOptions {
  readonly maxQueuedBytes: number;
  readonly counters: StreamCounters;
  readonly wire?: WireTap;
  /** Called when the wire tap has cut a frame: half of it is sent. */
  readonly onCut: () => void;
}

/** A frame on its way. */
export interface OutgoingFrame extends FrameHeader {
  readonly payload: Uint8Array | undefined;
  /** Instead of a payload: room for the header, and the payload behind it. */
  readonly joined?: Buffer;
  /** Behind the payload. */
  readonly more?: readonly Uint8Array[] | undefined;
  /** Of all. */
  readonly payloadBytes: number;
  /** The kernel has it: the payload may change. */
  resolve(): void;
  reject(error: ShoalError): void;
}

export class FrameSender {
  readonly #socket: net.Socket;
  readonly #options: FrameSenderOptions;
  readonly #handedBytesLimit: number;
  readonly #queue = new Fifo<OutgoingFrame>();
  readonly #handed = new Fifo<OutgoingFrame>();
  readonly #slots = Buffer.alloc(handedFrames * headerBytes);
  readonly #slotsView = new DataView(this.#slots.buffer, this.#slots.byteOffset, this.#slots.length);
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

  /** What is not yet the kernel's. `messageBytes` are those of messages alone, which are copies. */
  get inFlight(): InFlight & { messageBytes: number } {
    return { operations: this.#queue.length + this.#handed.length, bytes: this.#pendingBytes, messageBytes: this.#messageBytes };
  }

  push(frame: OutgoingFrame): void {
    this.#queue.push(frame);
    this.#pendingBytes += frame.payloadBytes;
    if (frame.type === FrameType.Message) this.#messageBytes += frame.payloadBytes;
    if (this.#pumpScheduled) return;
    this.#pumpScheduled = true;
    // One writev for all that is posted in this turn.
    queueMicrotask(this.#onTurn);
  }

  /** Hands nothing over any more; every frame that the kernel does not have yet is rejected. */
  stop(error: ShoalError): void {
    this.#stopped = true;
    for (const queue of [this.#handed, this.#queue]) {
      for (let frame = queue.shift(); frame !== undefined; frame = queue.shift()) {
        this.#forget(frame);
        frame.reject(error);
      }
    }
  }

  readonly #onTurn = (): void => {
    this.#pumpScheduled = false;
    this.#pump();
  };

  /** Hands frames to the socket, up to the limits. */
  #pump(): void {
    if (this.#stopped || this.#queue.length === 0) return;
    const { counters, wire } = this.#options;
    this.#socket.cork();
    while (this.#queue.length > 0 && this.#handed.length < handedFrames && this.#handedBytes < this.#handedBytesLimit) {
      const frame = this.#queue.shift()!;
      this.#handed.push(frame);
      this.#handedBytes += frame.payloadBytes;
      counters.framesSent++;
      const header = this.#encode(frame);
      if (wire?.onHeader(header, frame) === 'cut') {
        this.#cut(header, frame.joined?.subarray(headerBytes) ?? frame.payload);
        break;
      }
      if (frame.joined !== undefined) {
        frame.joined.set(header);
        this.#socket.write(frame.joined, this.#onWritten);
      } else if (frame.payloadBytes === 0) {
        this.#socket.write(header, this.#onWritten);
      } else {
        this.#socket.write(header);
        const { payload, more = [] } = frame;
        for (let k = -1; k < more.length - 1; k++) this.#socket.write(k < 0 ? payload! : more[k]);
        this.#socket.write(more.at(-1) ?? payload!, this.#onWritten);
      }
    }
    this.#socket.uncork();
  }

  #encode(frame: OutgoingFrame): Buffer {
    const at = this.#nextSlot * headerBytes;
    this.#nextSlot = (this.#nextSlot + 1) % handedFrames;
    encodeHeader(this.#slotsView, at, frame);
    return this.#slots.subarray(at, at + headerBytes);
  }

  /** The kernel has the frame: callbacks come in the order of the writes. Errors are told by the socket's end. */
  readonly #onWritten = (error?: Error | null): void => {
    const frame = error ? undefined : this.#handed.shift();
    if (frame === undefined) return;
    this.#handedBytes -= frame.payloadBytes;
    this.#forget(frame);
    frame.resolve();
    // Refill in batches: a writev of one frame per completion would cost a system call each.
    if (this.#handed.length <= handedFrames / 2 && this.#handedBytes <= handedBytesMax / 2) this.#pump();
  };

  /** Half a frame, then the end: what a crash in the middle of a write leaves on the wire. */
  #cut(header: Buffer, payload: Uint8Array | undefined): void {
    const { onCut } = this.#options;
    if (payload === undefined || payload.length === 0) {
      this.#socket.write(header.subarray(0, headerBytes / 2), onCut);
    } else {
      this.#socket.write(header);
      this.#socket.write(payload.subarray(0, payload.length >> 1), onCut);
    }
    this.#stopped = true;
  }

  #forget(frame: OutgoingFrame): void {
    this.#pendingBytes -= frame.payloadBytes;
    if (frame.type === FrameType.Message) this.#messageBytes -= frame.payloadBytes;
  }
}
