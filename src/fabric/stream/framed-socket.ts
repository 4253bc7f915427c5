/** An authenticated stream of frames over one socket (TCP or Unix), receiving straight into memory that its owner names. It must
 *  not know regions or rkeys; its owner decides where a payload goes and what a frame means. Between hosts the frames travel in encrypted
 *  records (base/secure/records.ts).
 *
 *  Here are the handshake, the phases and the end; frames come in by frame-reader.ts, and go out by frame-sender.ts.
 *
 *     opening ──authenticate──▶ held ──start──▶ open ──close──▶ closing ──▶ closed
 *                                │                │ refuse(): ERROR frame, then what still comes is drained unread
 *                                └── fail() ──────┴──────────────▶ closed */
import type net from 'node:net';
import { handshakeBytesMax, type Handshake } from '../../base/auth.ts';
import { assert } from '../../base/assert.ts';
import { textOf } from '../../base/bytes.ts';
import type { Clock, Timer } from '../../base/clock.ts';
import { messageOf, ShoalError } from '../../base/errors.ts';
import { exhaustion } from '../../base/exhaustion.ts';
import type { LinkEnds } from '../../base/secure/link.ts';
import { settled } from '../../base/microtask.ts';
import type { PeerIdentity } from '../fabric.ts';
import { FrameSender, type FrameSenderOptions, type FrameParts } from './frame-sender.ts';
import { FrameReader, type FrameReaderOptions } from './frame-reader.ts';
import { emptyHeader, errorFrame, errorTextBytes, FrameType, headerBytes, type FrameHeader } from './frame.ts';
import { checkBacklog, connectionClosed, defaultCloseTimeoutMs, peerLost, type InFlight } from '../limits.ts';
import type { StreamCounters } from './stream-counters.ts';

const keepAliveMs = 10_000;

/** Buffer for bytes that nobody reads, shared by all sockets that are closing. */
const dropped = Buffer.allocUnsafeSlow(64 * 1024);

export interface FramedSocketOptions extends FrameSenderOptions, Pick<FrameReaderOptions, 'polling' | 'readAhead'> {
  readonly rank: number;
  /** Description for people: `tcp 10.0.0.4:41234`. */
  readonly description: string;
  readonly clock: Clock;
}

/** The owner of a stream, which decides what to do with frames. Called on the socket's turn, never inside a call to the stream. */
export interface FrameReceiver {
  /** Operations that are lost with the stream, where they are not its frames. */
  readonly inFlight?: InFlight;
  /** The destination of the payload of `header.bytes` > 0, exactly that long. @throws ShoalError to refuse the frame. */
  place(header: Readonly<FrameHeader>): Uint8Array;
  /** The frame is complete; `payload` is the destination that `place` gave, undefined for none. @throws ShoalError to refuse it. */
  onFrame(header: Readonly<FrameHeader>, payload: Uint8Array | undefined): void;
  /** Called once. Undefined after an orderly end. */
  onClose(error: ShoalError | undefined): void;
}

type Phase = 'opening' | 'held' | 'open' | 'closing' | 'refusing' | 'closed';

interface Opening {
  /** Undefined until the socket is connected. */
  handshake: Handshake | undefined;
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
  readonly #reader: FrameReader;

  // Sending.
  readonly #sender: FrameSender;
  #goodbyeSent = false;

  // Closing.
  #closing: Promise<void> | undefined;
  #timer: Timer | undefined;
  /** Resolves when the socket is closed and its descriptor given back. */
  readonly ended: Promise<void>;
  #onEnded!: () => void;

  /** @param makeSocket makes the socket with the given `onread`. */
  constructor(options: FramedSocketOptions, makeSocket: (onread: net.OnReadOpts) => net.Socket) {
    this.#options = options;
    this.ended = new Promise((resolve) => {
      this.#onEnded = resolve;
    });
    this.#socket = makeSocket({ buffer: () => this.#nextBuffer(), callback: (bytes, buffer) => this.#onRead(bytes, buffer) });
    this.#reader = new FrameReader({
      counters: options.counters,
      polling: options.polling,
      readAhead: options.readAhead,
      ciphers: options.ciphers,
      isOpen: () => this.#phase === 'open',
      place: (header) => this.#place(header),
      onFrame: (header, payload) => this.#onFrame(header, payload),
    });
    this.#sender = new FrameSender(this.#socket, options);
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

  get counters(): StreamCounters {
    return this.#options.counters;
  }

  /** True while frames can be posted. */
  get open(): boolean {
    return this.#phase === 'open' || this.#phase === 'held';
  }

  /** Address of this end; undefined for a socket that is not IP. */
  get localAddress(): string | undefined {
    return this.#socket.localAddress;
  }

  /** Descriptor of the socket, for a call about it right now; undefined where it has none. */
  get descriptor(): number | undefined {
    const { fd = -1 } = (this.#socket as unknown as { _handle?: { fd?: number } })._handle ?? {};
    return fd < 0 ? undefined : fd;
  }

  /** The destination being filled now; undefined between payloads. */
  get receivingInto(): Uint8Array | undefined {
    return this.#reader.receivingInto;
  }

  /** Runs the handshake that `handshakeOf` makes for the ends of the connected socket; afterwards the stream is held until `start`. Bounded
   *  by the caller through `fail`.
   *  @throws ShoalError the handshake's error, or `peer-lost` when the socket ends or cannot connect. */
  authenticate(handshakeOf: (ends: LinkEnds) => Handshake, world: string): Promise<number> {
    assert(this.#phase === 'opening' && this.#opening === undefined, () => 'authenticate once');
    return new Promise((resolve, reject) => {
      const onRank = (rank: number): void => {
        this.#peer = { world, rank };
        resolve(rank);
      };
      this.#opening = { handshake: undefined, resolve: onRank, reject };
      const begin = (): void => {
        if (this.#opening === undefined) return;
        const first = (this.#opening.handshake = handshakeOf(this.#socket)).start();
        if (first !== undefined) this.#socket.write(first);
        this.#socket.resume();
      };
      if (this.#socket.connecting) this.#socket.once('connect', begin);
      else begin();
    });
  }

  /** Begins to read frames. */
  start(receiver: FrameReceiver): void {
    assert(this.#phase === 'held', () => `start of a stream that is ${this.#phase}`);
    this.#receiver = receiver;
    this.#phase = 'open';
    if (!this.#reader.isHolding) this.#socket.resume();
  }

  /** Stops delivery after the current frame, until `release`. */
  hold(): void {
    this.#reader.isHolding = true;
  }

  release(): void {
    this.#reader.isHolding = false;
    if (this.#reader.hasKept) void settled.then(() => this.#onKept());
    else if (this.#phase !== 'closed') this.#socket.resume();
  }

  #onKept(): void {
    const { hasKept, isHolding } = this.#reader;
    if (hasKept && !isHolding && this.#onFrameBytes(() => this.#reader.resume())) this.#socket.resume();
  }

  /** Sends a frame after all earlier ones. Resolves when the kernel has taken it: `payload` may change then. It is not
   *  copied here. */
  post(type: number, fields: Partial<FrameHeader>, payload?: Uint8Array, more?: readonly Uint8Array[]): Promise<void> {
    let payloadBytes = payload?.length ?? 0;
    if (more !== undefined) for (const each of more) payloadBytes += each.length;
    return this.#post(type, fields, payloadBytes, { payload, more });
  }

  /** Like `post`, for bytes with room for the header in front of them: they are one piece for the system. */
  postJoined(type: number, joined: Buffer): Promise<void> {
    return this.#post(type, {}, joined.length - headerBytes, { joined });
  }

  /** Like `post`, for frames of our own whose failure is reported by the stream's end anyway. */
  postControl(type: number, fields: Partial<FrameHeader>, payload?: Uint8Array): void {
    this.post(type, fields, payload).catch(() => undefined);
  }

  /** Flushes posted frames, says goodbye and waits for the peer's end; all bounded by `timeoutMs`. Nothing is delivered any more.
   *  Idempotent. */
  close(timeoutMs: number = defaultCloseTimeoutMs): Promise<void> {
    if (this.#closing === undefined) {
      this.#closing = this.ended;
      if (this.#phase === 'open' || this.#phase === 'held') {
        this.#phase = 'closing';
        this.#reader.isHolding = false;
        this.#timer = this.#options.clock.setTimer(timeoutMs, () => this.#finish(undefined), { keepAlive: true });
        const sent = (): void => {
          this.#goodbyeSent = true;
          this.#socket.end();
        };
        this.#sender.push({ ...emptyHeader(), type: FrameType.Goodbye, payloadBytes: 0, resolve: sent, reject: () => undefined });
        this.#socket.resume();
      } else if (this.#phase === 'opening') {
        this.fail(this.#closed());
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
    const message = `rank ${rank} closes its connection to rank ${this.#peer.rank} (${description}): ${thrown.message}`;
    const error = new ShoalError(thrown.code, message, fields);
    this.#phase = 'refusing';
    this.#reader.stop();
    this.#timer = this.#options.clock.setTimer(defaultCloseTimeoutMs, () => this.#socket.destroy());
    this.#settle(error);
    this.#socket.end(this.#sender.sealed(errorFrame(`refused by rank ${rank}: ${thrown.message}`)));
  }

  /** Gives the socket away: `take` duplicates its descriptor, and nothing is read or written here any more. Must be called between frames.
   *  @throws ShoalError `unsupported` where sockets have no descriptors, or only JavaScript can go on with their encryption. */
  giveAway(take: (descriptor: number) => number): number {
    const { descriptor } = this;
    const { description, ciphers } = this.#options;
    const [sealer, opener] = [this.#sender.sealer, this.#reader.opener];
    if (descriptor === undefined || (sealer && !ciphers?.bind))
      throw new ShoalError('unsupported', `${description} cannot be given away: it has no descriptor, or its encryption needs the addon`);
    const taken = take(descriptor);
    if (sealer && opener) ciphers!.bind!(taken, sealer, opener);
    this.#receiver = undefined;
    this.#finish(undefined);
    return taken;
  }

  /** Every frame is made here, by one literal: objects of several shapes cost the senders of pieces a tenth of their time. */
  #post(type: number, fields: Partial<FrameHeader>, payloadBytes: number, parts: FrameParts): Promise<void> {
    if (!this.open) return Promise.reject(this.#closed());
    try {
      checkBacklog(this.#peer, this.#sender.inFlight, this.#options.maxQueuedBytes);
    } catch (error) {
      return Promise.reject(error);
    }
    this.#options.polling?.onPosted();
    const { flags = 0, immediate = 0, rkey = 0, offset = 0, bytes = payloadBytes } = fields;
    const { payload, joined, more } = parts;
    return new Promise((resolve, reject) =>
      this.#sender.push({ type, flags, immediate, rkey, offset, bytes, payload, joined, more, payloadBytes, resolve, reject }),
    );
  }

  // ── receiving ──────────────────────────────────────────────────────────────────────────────────────────────────

  #nextBuffer(): Uint8Array {
    switch (this.#phase) {
      case 'opening': {
        const wanted = this.#opening?.handshake?.bytesWanted ?? 1;
        return this.#scratch.subarray(0, Math.max(1, wanted));
      }
      case 'held':
      case 'open':
        return this.#reader.nextBuffer();
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
        return this.#onFrameBytes(() => this.#reader.onRead(bytes, buffer));
      case 'held':
        throw new Error('assertion failed: a held stream was read');
      default:
        return true;
    }
  }

  #onHandshakeBytes(bytes: Uint8Array): boolean {
    const { handshake, resolve } = this.#opening!;
    assert(handshake !== undefined, () => 'a connected socket has begun its handshake');
    try {
      const { send, done } = handshake.push(bytes);
      if (send !== undefined) this.#socket.write(send);
      if (done === undefined) return true;
      assert(done.rest.length === 0, () => 'the handshake reads no further than its frames');
      this.#phase = 'held';
      this.#opening = undefined;
      if (done.keys) for (const half of [this.#sender, this.#reader]) half.encrypt(done.keys);
      resolve(done.peerRank);
      return false;
    } catch (thrown) {
      this.fail(ShoalError.from(thrown), handshake.refusal);
      return true;
    }
  }

  /** @returns false to stop reading. */
  #onFrameBytes(take: () => void): boolean {
    try {
      take();
    } catch (thrown) {
      if (!(thrown instanceof ShoalError)) throw thrown;
      this.refuse(thrown);
    }
    if (this.#phase === 'closed') return false;
    return this.#phase !== 'open' || !this.#reader.isHolding;
  }

  #place(header: Readonly<FrameHeader>): Uint8Array {
    if (header.type !== FrameType.Error) return this.#receiver!.place(header);
    if (header.bytes > errorTextBytes) throw new ShoalError('protocol', `error frame of ${header.bytes} bytes`);
    return Buffer.alloc(header.bytes);
  }

  #onFrame(header: Readonly<FrameHeader>, payload: Uint8Array | undefined): void {
    switch (header.type) {
      case FrameType.Goodbye:
        this.#finish(undefined);
        break;
      case FrameType.Error:
        this.#onRefused(payload);
        break;
      default:
        this.#receiver!.onFrame(header, payload);
    }
  }

  /** The peer has refused a frame of this end, and says why. */
  #onRefused(reason: Uint8Array | undefined): void {
    if (reason === undefined) throw new ShoalError('protocol', 'error frame without text');
    const text = textOf(reason).replace(/[^\x20-\x7e]/g, '?');
    const { rank, description } = this.#options;
    const peer = this.#peer.rank;
    this.#finish(new ShoalError('protocol', `rank ${peer} (${description}) closed the connection: ${text}`, { rank, peer }));
  }

  #onStreamEnd(): void {
    if (this.#phase === 'closed') return;
    const orderly = this.#phase === 'closing' && this.#goodbyeSent;
    this.#finish(orderly ? undefined : this.#lost());
  }

  // ── the end ────────────────────────────────────────────────────────────────────────────────────────────────────

  #lost(): ShoalError {
    const { rank, description } = this.#options;
    const inFlight = this.#receiver?.inFlight ?? this.#sender.inFlight;
    if (this.#exhausted) return this.#exhausted;
    if (this.#phase === 'opening')
      return new ShoalError('peer-lost', `rank ${rank}, ${description}, handshake: ${this.#reason}`, { rank, cause: this.#socket.errored });
    return peerLost({ rank, peer: this.#peer.rank, description, inFlight, reason: this.#reason });
  }

  #closed(): ShoalError {
    return connectionClosed(this.#options.rank, this.#peer.rank);
  }

  #finish(error: ShoalError | undefined): void {
    if (this.#phase === 'closed') return;
    const settled = this.#phase === 'refusing';
    this.#phase = 'closed';
    this.#reader.stop();
    this.#timer?.cancel();
    if (!settled) this.#settle(error);
    this.#socket.destroy();
  }

  /** Ends all waits; the socket may still be sending its goodbye. */
  #settle(error: ShoalError | undefined): void {
    this.#opening?.reject(error ?? this.#closed());
    this.#opening = undefined;
    this.#sender.stop(() => error ?? this.#closed());
    const receiver = this.#receiver;
    this.#receiver = undefined;
    if (receiver !== undefined) queueMicrotask(() => receiver.onClose(error));
  }
}
