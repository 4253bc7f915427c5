/** The common part of connections over a framed socket: messages, immediates, handlers, order and the end. A provider adds how
 *  writes are sent and where they are placed. */
import { assert } from '../../base/assert.ts';
import { ShoalError } from '../../base/errors.ts';
import type { Region } from '../../memory/region.ts';
import type { Connection, ConnectionHandlers, PeerIdentity, RemoteRegion, RemoteSpan, Span } from '../fabric.ts';
import { flagSet, FrameType, headerBytes, type FrameHeader } from './frame.ts';
import type { FramedSocket, FrameReceiver } from './framed-socket.ts';
import { checkMessage, maxMessageBytes } from '../limits.ts';

/** Messages up to this size are received into one buffer per connection, which grows to the largest so far; larger ones get their own. */
const smallMessageBytes = 64 * 1024;
const smallMessageLeast = 512;

export abstract class StreamConnection implements Connection, FrameReceiver {
  protected readonly stream: FramedSocket;
  protected handlers: ConnectionHandlers | undefined;
  #ended: { error: ShoalError | undefined } | undefined;
  #onEnded: (() => void) | undefined;
  #small: Buffer | undefined;

  /** @param onEnded called once when the connection is over, before its handlers are. */
  constructor(stream: FramedSocket, onEnded: (connection: StreamConnection) => void) {
    this.stream = stream;
    this.#onEnded = () => onEnded(this);
  }

  get peer(): PeerIdentity {
    return this.stream.peer;
  }

  get description(): string {
    return this.stream.description;
  }

  setHandlers(handlers: ConnectionHandlers): void {
    assert(this.handlers === undefined, () => 'handlers of a connection are set once');
    this.handlers = handlers;
    if (this.#ended === undefined) return this.onHandlers();
    const { error } = this.#ended;
    queueMicrotask(() => handlers.onClose(error));
  }

  /** Deliveries have waited for the handlers. */
  protected onHandlers(): void {
    this.stream.release();
  }

  async send(message: Uint8Array): Promise<void> {
    checkMessage(message);
    this.stream.counters.bytesCopied += message.length;
    const joined = Buffer.allocUnsafe(headerBytes + message.length);
    joined.set(message, headerBytes);
    return this.postMessage(joined);
  }

  abstract write(source: Span, target: RemoteSpan, immediate?: number): Promise<void>;

  map(_remote: RemoteRegion): Region {
    throw new ShoalError('unsupported', `${this.description} cannot map memory of rank ${this.peer.rank}; use write`, {
      peer: this.peer.rank,
    });
  }

  close(timeoutMs?: number): Promise<void> {
    return this.stream.close(timeoutMs);
  }

  /** Breaks the connection as a crash of this process would: nothing is flushed, the peer sees `peer-lost`. */
  abort(): void {
    this.stream.abort();
  }

  /** Called when a region went out of the table: nothing may be received into it any more. */
  onDeregistered(_rkey: number): void {}

  // ── FrameReceiver ──────────────────────────────────────────────────────────────────────────────────────────────

  /** Providers have frames of their own, and leave all others to this. @throws ShoalError `protocol`. */
  place(header: Readonly<FrameHeader>): Uint8Array {
    if (header.type !== FrameType.Message) throw unexpected(header);
    if (header.bytes > maxMessageBytes)
      throw new ShoalError('protocol', `message of ${header.bytes} bytes; at most ${maxMessageBytes} are allowed`);
    if (header.bytes > smallMessageBytes) return Buffer.alloc(header.bytes);
    return this.#smallBuffer(header.bytes).subarray(0, header.bytes);
  }

  #smallBuffer(bytes: number): Buffer {
    if (this.#small !== undefined && this.#small.length >= bytes) return this.#small;
    this.#small = Buffer.allocUnsafe(Math.max(smallMessageLeast, 2 ** Math.ceil(Math.log2(bytes))));
    return this.#small;
  }

  onFrame(header: Readonly<FrameHeader>, payload: Uint8Array | undefined): void {
    switch (header.type) {
      case FrameType.Message:
        this.handlers!.onMessage(payload ?? new Uint8Array(0));
        break;
      case FrameType.Immediate:
        this.handlers!.onImmediate(header.immediate);
        break;
      default:
        throw unexpected(header);
    }
  }

  onClose(error: ShoalError | undefined): void {
    this.#ended = { error };
    this.#onEnded?.();
    this.#onEnded = undefined;
    this.handlers?.onClose(error);
    this.onEnded(error);
  }

  protected onEnded(_error: ShoalError | undefined): void {}

  /** Posts behind everything posted earlier. */
  protected postOrdered(type: number, fields: Partial<FrameHeader>, payload?: Uint8Array): Promise<void> {
    return this.stream.post(type, fields, payload);
  }

  /** Like `postOrdered`. @param joined has room for the header. */
  protected postMessage(joined: Buffer): Promise<void> {
    return this.stream.postJoined(FrameType.Message, joined);
  }

  /** Called when the write of a frame has arrived and is in place. */
  protected deliverImmediate(header: Readonly<FrameHeader>): void {
    if ((header.flags & flagSet) !== 0) this.handlers!.onImmediate(header.immediate);
  }
}

export function unexpected({ type, bytes }: Readonly<FrameHeader>): ShoalError {
  return new ShoalError('protocol', `frame of type ${type} with ${bytes} bytes is not expected here`);
}
