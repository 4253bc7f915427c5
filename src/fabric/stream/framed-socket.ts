/** An authenticated stream of frames over one socket (TCP or Unix), receiving straight into memory that its owner names. It must
 *  not know regions or rkeys; its owner decides where a payload goes and what a frame means.
 *
 *  Node's sockets ask for the next buffer before every read (`onread.buffer`). This one is asked for
 *
 *     handshake bytes still missing │ 32 header bytes │ exactly the payload, at its destination │ 32 header bytes │ …
 *
 *  so that no byte of a write passes through a buffer of ours. The kernel's copy is the only one. Where no writes come, but
 *  messages, which stay in buffers of ours anyway, small frames are read ahead: a header and the bytes behind it are one read,
 *  and are copied from there. Sending is frame-sender.ts.
 *
 *     opening ──authenticate──▶ held ──start──▶ open ──close──▶ closing ──▶ closed
 *                                │                │ refuse(): ERROR frame, then what still comes is drained unread
 *                                └── fail() ──────┴──────────────▶ closed */
import type net from 'node:net';
import { handshakeBytesMax, type Handshake } from '../../base/auth.ts';
import { assert } from '../../base/assert.ts';
import type { Clock, Timer } from '../../base/clock.ts';
import { messageOf, ShoalError } from '../../base/errors.ts';
import { exhaustion } from '../../base/exhaustion.ts';
import type { PeerIdentity } from '../fabric.ts';
import type { EventPolling } from '../event-polling.ts';
import { FrameSender, type OutgoingFrame } from './frame-sender.ts';
import { decodeHeader, emptyHeader, encodeHeader, FrameType, headerBytes, type FrameHeader } from './frame.ts';
import { checkBacklog, connectionClosed, defaultCloseTimeoutMs, peerLost, type InFlight } from '../limits.ts';
import type { StreamCounters } from './stream-counters.ts';
import type { WireTap } from './wire-tap.ts';

const errorTextBytes = 512;
const keepAliveMs = 10_000;
/** After this many frames without a write among them, no write is expected. */
const othersInRow = 16;

/** A resolved promise: its `then` is a microtask, whereas node's `queueMicrotask` makes an `AsyncResource` each time. */
const settled = Promise.resolve();
/** Buffer for bytes that nobody reads, shared by all sockets that are closing. */
const dropped = Buffer.allocUnsafeSlow(64 * 1024);
/** Buffer to read ahead into where no write is expected, shared by all sockets: it is parsed before anything else is read. */
const usualAhead = Buffer.allocUnsafeSlow(headerBytes + 288);

export interface FramedSocketOptions {
  readonly rank: number;
  /** Description for people: `tcp 10.0.0.4:41234`. */
  readonly description: string;
  readonly clock: Clock;
  readonly maxQueuedBytes: number;
  readonly counters: StreamCounters;
  readonly wire?: WireTap;
  readonly polling?: EventPolling;
  /** Buffer to read ahead into from the first frame on, for a stream that is known to have small frames only. Several sockets may
   *  share it. Default: frames are read to their destinations until some in a row have not been writes. */
  readonly readAhead?: Buffer;
  /** Further operations that are lost with the stream, besides its frames. */
  readonly inFlight?: () => InFlight;
}

/** The owner of a stream, which decides what to do with frames. Called on the socket's turn, never inside a call to the stream. */
export interface FrameReceiver {
  /** The destination of the payload of `header.bytes` > 0, exactly that long. @throws ShoalError to refuse the frame. */
  place(header: Readonly<FrameHeader>): Uint8Array;
  /** The frame is complete; `payload` is the destination that `place` gave, undefined for none. @throws ShoalError to refuse it. */
  onFrame(header: Readonly<FrameHeader>, payload: Uint8Array | undefined): void;
  /** Called once. Undefined after an orderly end. */
  onClose(error: ShoalError | undefined): void;
}

type Phase = 'opening' | 'held' | 'open' | 'closing' | 'refusing' | 'closed';

interface Opening {
  readonly handshake: Handshake;
  resolve(peerRank: number): void;
  reject(error: ShoalError): void;
}

export class FramedSocket {
  readonly #options: FramedSocketOptions;
  readonly #socket: net.Socket;
  #phase: Phase = 'opening';
  #peer: PeerIdentity = { world: '', rank: -1 };
  #opening: Opening | undefined;
  #receiver: FrameReceiver | undefined;
  #reason = 'the peer ended without a goodbye';
  /** The error that this process cannot have the socket, as a resource is used up. */
  #exhausted: ShoalError | undefined;

  // Receiving.
  readonly #scratch = Buffer.allocUnsafe(handshakeBytesMax);
  readonly #headerBuffer = Buffer.allocUnsafe(headerBytes);
  readonly #headerView = new DataView(this.#headerBuffer.buffer, this.#headerBuffer.byteOffset, headerBytes);
  readonly #header = emptyHeader();
  #headerFilled = 0;
  #payload: Uint8Array | undefined;
  #payloadFilled = 0;
  #othersInRow = 0;
  #holding = false;
  /** Bytes that were already read ahead when the stream was held. */
  #kept: Buffer | undefined;

  // Sending.
  readonly #sender: FrameSender;
  #goodbyeSent = false;

  // Closing.
  #closing: Promise<void> | undefined;
  #timer: Timer | undefined;
  readonly #ended: Promise<void>;
  #onEnded!: () => void;

  /** @param makeSocket makes the socket with the given `onread`. */
  constructor(options: FramedSocketOptions, makeSocket: (onread: net.OnReadOpts) => net.Socket) {
    this.#options = options;
    this.#ended = new Promise((resolve) => {
      this.#onEnded = resolve;
    });
    this.#socket = makeSocket({ buffer: () => this.#nextBuffer(), callback: (bytes, buffer) => this.#onRead(bytes, buffer) });
    const { maxQueuedBytes, counters, wire } = options;
    this.#sender = new FrameSender(this.#socket, { maxQueuedBytes, counters, onCut: () => this.abort(), wire });
    this.#socket.setNoDelay(true);
    this.#socket.setKeepAlive(true, keepAliveMs);
    this.#socket.on('error', (error) => {
      this.#reason = messageOf(error);
      if (this.#phase === 'opening') this.#exhausted = exhaustion(`rank ${options.rank}`, error, 'opening a connection');
    });
    this.#socket.on('end', () => this.#onStreamEnd());
    this.#socket.on('close', () => {
      this.#onStreamEnd();
      this.#onEnded();
    });
  }

  get peer(): PeerIdentity {
    return this.#peer;
  }

  get description(): string {
    return this.#options.description;
  }

  get rank(): number {
    return this.#options.rank;
  }

  /** True while frames can be posted. */
  get open(): boolean {
    return this.#phase === 'open' || this.#phase === 'held';
  }

  get inFlight(): InFlight {
    return this.#options.inFlight?.() ?? this.#sender.inFlight;
  }

  /** Address of this end; undefined for a socket that is not IP. */
  get localAddress(): string | undefined {
    return this.#socket.localAddress;
  }

  /** Resolves when the socket is closed and its descriptor given back. */
  get ended(): Promise<void> {
    return this.#ended;
  }

  /** Descriptor of the socket, for a call about it right now; undefined where it has none. */
  get descriptor(): number | undefined {
    const { fd = -1 } = (this.#socket as unknown as { _handle?: { fd?: number } })._handle ?? {};
    return fd < 0 ? undefined : fd;
  }

  /** The destination being filled now; undefined between payloads. */
  get receivingInto(): Uint8Array | undefined {
    return this.#payload;
  }

  /** Runs the handshake; afterwards the stream is held until `start`. Bounded by the caller through `fail`.
   *  @throws ShoalError the handshake's error, or `peer-lost` when the socket ends or cannot connect. */
  authenticate(handshake: Handshake, world: string): Promise<number> {
    assert(this.#phase === 'opening' && this.#opening === undefined, () => 'authenticate once');
    return new Promise((resolve, reject) => {
      this.#opening = {
        handshake,
        resolve: (rank) => {
          this.#peer = { world, rank };
          resolve(rank);
        },
        reject,
      };
      const first = handshake.start();
      if (first !== undefined) this.#socket.write(first);
      this.#socket.resume();
    });
  }

  /** Begins to read frames. */
  start(receiver: FrameReceiver): void {
    assert(this.#phase === 'held', () => `start of a stream that is ${this.#phase}`);
    this.#receiver = receiver;
    this.#phase = 'open';
    if (!this.#holding) this.#socket.resume();
  }

  /** Stops delivery after the current frame, until `release`. */
  hold(): void {
    this.#holding = true;
  }

  release(): void {
    this.#holding = false;
    if (this.#kept !== undefined) void settled.then(() => this.#onKept());
    else if (this.#phase !== 'closed') this.#socket.resume();
  }

  #onKept(): void {
    const kept = this.#kept;
    if (kept === undefined || this.#holding) return;
    this.#kept = undefined;
    if (this.#onAhead(kept, kept.length) && this.#phase !== 'closed') this.#socket.resume();
  }

  /** Sends a frame after all earlier ones. Resolves when the kernel has taken it: `payload` may change then. It is not
   *  copied here. */
  post(type: number, fields: Partial<FrameHeader>, payload?: Uint8Array, more?: readonly Uint8Array[]): Promise<void> {
    let payloadBytes = payload?.length ?? 0;
    if (more !== undefined) for (const each of more) payloadBytes += each.length;
    const { flags = 0, immediate = 0, rkey = 0, offset = 0, bytes = payloadBytes } = fields;
    return this.#post({ type, flags, immediate, rkey, offset, bytes, payload, more, payloadBytes });
  }

  /** Like `post`, for bytes with room for the header in front of them: they are one piece for the system. */
  postJoined(type: number, joined: Buffer): Promise<void> {
    return this.#post({
      ...emptyHeader(),
      type,
      bytes: joined.length - headerBytes,
      joined,
      payload: undefined,
      payloadBytes: joined.length - headerBytes,
    });
  }

  /** Like `post`, for frames of our own whose failure is reported by the stream's end anyway. */
  postControl(type: number, fields: Partial<FrameHeader>, payload?: Uint8Array): void {
    this.post(type, fields, payload).catch(() => undefined);
  }

  /** Flushes posted frames, says goodbye and waits for the peer's end; all bounded by `timeoutMs`. Nothing is delivered any more.
   *  Idempotent. */
  close(timeoutMs: number = defaultCloseTimeoutMs): Promise<void> {
    if (this.#closing === undefined) {
      this.#closing = this.#ended;
      if (this.#phase === 'open' || this.#phase === 'held') {
        this.#phase = 'closing';
        this.#holding = false;
        this.#timer = this.#options.clock.setTimer(timeoutMs, () => this.#finish(undefined), { keepAlive: true });
        const sent = (): void => {
          this.#goodbyeSent = true;
          this.#socket.end();
        };
        this.#sender.push({
          ...emptyHeader(),
          type: FrameType.Goodbye,
          payload: undefined,
          payloadBytes: 0,
          resolve: sent,
          reject: () => undefined,
        });
        this.#socket.resume();
      } else if (this.#phase === 'opening') {
        this.fail(connectionClosed(this.#options.rank, this.#peer.rank));
      }
    }
    return this.#closing;
  }

  /** Breaks the connection at once; the peer sees `peer-lost`. */
  abort(): void {
    this.#reason = 'the connection was aborted here';
    this.fail(this.#lost());
  }

  /** Ends the stream here and now with `error`. During the handshake, `lastWords` are still sent. */
  fail(error: ShoalError, lastWords?: Uint8Array): void {
    if (lastWords !== undefined && this.#phase === 'opening') {
      this.#phase = 'refusing';
      this.#timer = this.#options.clock.setTimer(defaultCloseTimeoutMs, () => this.#socket.destroy());
      this.#settle(error);
      this.#socket.end(lastWords);
    } else {
      this.#finish(error);
    }
  }

  /** Ends the stream because of a frame of the peer: the peer is told why, and its frames under way are read and dropped, so that
   *  the reason reaches it before the reset. */
  refuse(thrown: ShoalError): void {
    if (this.#phase !== 'open') return;
    const { rank, description } = this.#options;
    const fields = { rank, peer: this.#peer.rank, cause: thrown };
    const error = new ShoalError(
      thrown.code,
      `rank ${rank} closes its connection to rank ${this.#peer.rank} (${description}): ${thrown.message}`,
      fields,
    );
    const text = Buffer.from(`refused by rank ${rank}: ${thrown.message}`).subarray(0, errorTextBytes);
    const frame = Buffer.alloc(headerBytes + text.length);
    encodeHeader(new DataView(frame.buffer, frame.byteOffset), 0, { ...emptyHeader(), type: FrameType.Error, bytes: text.length });
    text.copy(frame, headerBytes);
    this.#phase = 'refusing';
    this.#payload = undefined;
    this.#timer = this.#options.clock.setTimer(defaultCloseTimeoutMs, () => this.#socket.destroy());
    this.#settle(error);
    this.#socket.end(frame);
  }

  /** Gives the socket away: `take` duplicates its descriptor, and nothing is read or written here any more. Must be called between frames.
   *  @throws ShoalError `unsupported` where sockets have no descriptors. */
  giveAway(take: (descriptor: number) => number): number {
    const { fd = -1 } = (this.#socket as unknown as { _handle?: { fd?: number } })._handle ?? {};
    if (fd < 0) throw new ShoalError('unsupported', `${this.#options.description} has no descriptor that could be given away`);
    const taken = take(fd);
    this.#receiver = undefined;
    this.#finish(undefined);
    return taken;
  }

  #post(frame: Omit<OutgoingFrame, 'resolve' | 'reject'>): Promise<void> {
    const { rank, maxQueuedBytes } = this.#options;
    if (!this.open) return Promise.reject(connectionClosed(rank, this.#peer.rank));
    try {
      checkBacklog(this.#peer, this.#sender.inFlight, maxQueuedBytes);
    } catch (error) {
      return Promise.reject(error);
    }
    this.#options.polling?.onPosted();
    return new Promise((resolve, reject) => this.#sender.push({ ...frame, resolve, reject }));
  }

  // ── receiving ──────────────────────────────────────────────────────────────────────────────────────────────────

  #nextBuffer(): Uint8Array {
    switch (this.#phase) {
      case 'opening': {
        const wanted = this.#opening?.handshake.bytesWanted ?? 1;
        return this.#scratch.subarray(0, Math.max(1, wanted));
      }
      case 'held':
      case 'open': {
        const ahead = this.#ahead;
        if (ahead !== undefined && this.#missingBytes < ahead.length) return ahead;
        if (this.#payload === undefined)
          return this.#headerFilled === 0 ? this.#headerBuffer : this.#headerBuffer.subarray(this.#headerFilled);
        return this.#payloadFilled === 0 ? this.#payload : this.#payload.subarray(this.#payloadFilled);
      }
      default:
        return dropped;
    }
  }

  /** @returns false to stop reading. */
  #onRead(bytes: number, buffer: Uint8Array): boolean {
    switch (this.#phase) {
      case 'opening':
        return this.#onHandshakeBytes(buffer.subarray(0, bytes));
      case 'open':
        return buffer === usualAhead || buffer === this.#options.readAhead
          ? this.#onAhead(buffer, bytes)
          : this.#onFrameBytes(bytes, buffer);
      case 'held':
        throw new Error('assertion failed: a held stream was read');
      default:
        return true;
    }
  }

  #onHandshakeBytes(bytes: Uint8Array): boolean {
    const { handshake, resolve } = this.#opening!;
    try {
      const { send, done } = handshake.push(bytes);
      if (send !== undefined) this.#socket.write(send);
      if (done === undefined) return true;
      assert(done.rest.length === 0, () => 'the handshake reads no further than its frames');
      this.#phase = 'held';
      this.#opening = undefined;
      resolve(done.peerRank);
      return false;
    } catch (thrown) {
      this.fail(ShoalError.from(thrown), handshake.refusal);
      return true;
    }
  }

  get #ahead(): Buffer | undefined {
    return this.#options.readAhead ?? (this.#othersInRow < othersInRow ? undefined : usualAhead);
  }

  /** Bytes still missing of the header or payload that is being received. */
  get #missingBytes(): number {
    return this.#payload === undefined ? headerBytes - this.#headerFilled : this.#payload.length - this.#payloadFilled;
  }

  /** Handles bytes that were read ahead as if each part had been read by itself. @returns false to stop reading. */
  #onAhead(ahead: Uint8Array, bytes: number): boolean {
    let reads = true;
    for (let at = 0; at < bytes && this.#phase === 'open';) {
      if (this.#holding) {
        this.#kept = Buffer.from(ahead.subarray(at, bytes));
        return false;
      }
      const taken = Math.min(this.#missingBytes, bytes - at);
      const filled = this.#payload === undefined ? this.#headerFilled : this.#payloadFilled;
      (this.#payload ?? this.#headerBuffer).set(ahead.subarray(at, at + taken), filled);
      reads = this.#onFrameBytes(taken, ahead);
      at += taken;
    }
    return reads;
  }

  #onFrameBytes(bytes: number, buffer: Uint8Array): boolean {
    try {
      if (this.#payload === undefined) {
        this.#headerFilled += bytes;
        if (this.#headerFilled === headerBytes) {
          this.#headerFilled = 0;
          this.#onHeader();
        }
      } else {
        this.#payloadFilled += bytes;
        const { counters } = this.#options;
        if (this.#header.type === FrameType.Write) {
          // Compares with the buffer that the kernel was really given, not with the one that was intended.
          if (buffer.buffer === this.#payload.buffer) counters.bytesReceivedInPlace += bytes;
          else counters.bytesCopied += bytes;
        }
        if (this.#payloadFilled === this.#payload.length) this.#onPayload(this.#payload);
      }
    } catch (thrown) {
      if (!(thrown instanceof ShoalError)) throw thrown;
      this.refuse(thrown);
    }
    if (this.#phase === 'closed') return false;
    return this.#phase !== 'open' || !this.#holding;
  }

  #onHeader(): void {
    const header = this.#header;
    decodeHeader(this.#headerView, 0, header);
    this.#options.counters.framesReceived++;
    this.#options.polling?.onFrame();
    this.#othersInRow = header.type === FrameType.Write ? 0 : this.#othersInRow + 1;
    if (header.type === FrameType.Goodbye) {
      this.#finish(undefined);
    } else if (header.bytes > 0 && header.type !== FrameType.Written) {
      if (header.type === FrameType.Error && header.bytes > errorTextBytes)
        throw new ShoalError('protocol', `error frame of ${header.bytes} bytes`);
      const destination = header.type === FrameType.Error ? Buffer.alloc(header.bytes) : this.#receiver!.place(header);
      assert(destination.length === header.bytes, () => `destination of ${destination.length} bytes for a payload of ${header.bytes}`);
      this.#payload = destination;
      this.#payloadFilled = 0;
    } else {
      if (header.type === FrameType.Error) throw new ShoalError('protocol', 'error frame without text');
      this.#receiver!.onFrame(header, undefined);
    }
  }

  #onPayload(payload: Uint8Array): void {
    this.#payload = undefined;
    if (this.#header.type === FrameType.Error) {
      const text = Buffer.from(payload)
        .toString('utf8')
        .replace(/[^\x20-\x7e]/g, '?');
      const fields = { rank: this.#options.rank, peer: this.#peer.rank };
      this.#finish(
        new ShoalError('protocol', `rank ${this.#peer.rank} (${this.#options.description}) closed the connection: ${text}`, fields),
      );
    } else {
      this.#receiver!.onFrame(this.#header, payload);
    }
  }

  #onStreamEnd(): void {
    if (this.#phase === 'closed') return;
    const orderly = this.#phase === 'closing' && this.#goodbyeSent;
    this.#finish(orderly ? undefined : this.#lost());
  }

  // ── the end ────────────────────────────────────────────────────────────────────────────────────────────────────

  #lost(): ShoalError {
    const { rank, description } = this.#options;
    if (this.#exhausted) return this.#exhausted;
    if (this.#phase === 'opening') return new ShoalError('peer-lost', `rank ${rank}, ${description}, handshake: ${this.#reason}`, { rank });
    return peerLost({ rank, peer: this.#peer.rank, description, inFlight: this.inFlight, reason: this.#reason });
  }

  #closed(): ShoalError {
    return connectionClosed(this.#options.rank, this.#peer.rank);
  }

  #finish(error: ShoalError | undefined): void {
    if (this.#phase === 'closed') return;
    const settled = this.#phase === 'refusing';
    this.#phase = 'closed';
    this.#payload = undefined;
    this.#timer?.cancel();
    if (!settled) this.#settle(error);
    this.#socket.destroy();
  }

  /** Ends all waits; the socket may still be sending its last words. */
  #settle(error: ShoalError | undefined): void {
    this.#opening?.reject(error ?? this.#closed());
    this.#opening = undefined;
    this.#sender.stop(() => error ?? this.#closed());
    const receiver = this.#receiver;
    this.#receiver = undefined;
    if (receiver !== undefined) queueMicrotask(() => receiver.onClose(error));
  }
}
