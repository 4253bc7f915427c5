/** One connection over libfabric: an endpoint for it alone, and the authenticated stream that made it (libfabric.ts), whose end
 *  is the peer's. Messages and writes go over the endpoint, once both ends have proved themselves on the stream. Sending is
 *  libfabric-sender.ts, and who may write where libfabric-access.ts; here are the phases, the deliveries and the end.
 *
 *  Order. Every delivery has a number: messages and the announcements of writes.
 *   ordered     the provider keeps the order of sends and writes; fi_writedata announces. A missing number is an error.
 *   sequenced   it does not, but carries 8 bytes with a write: the number travels with the immediate, and early deliveries wait.
 *   fenced      it does neither: a write is complete at the target before anything after it is sent; immediates are messages.
 *
 *  Sleep. Where no descriptor tells of events (shm), an end that waits for nothing says on the stream that it stops polling, and
 *  how many events it has seen; the other end wakes it when it posts, or had posted more. */
import { isShoalError, ShoalError } from '../../../base/errors.ts';
import type { RemoteSpan, Span } from '../../fabric.ts';
import { checkBacklog, checkMessage, checkSource, connectionClosed, defaultCloseTimeoutMs, peerLost, type InFlight } from '../../limits.ts';
import { FrameType, type FrameHeader } from '../../stream/frame.ts';
import type { FramedSocket } from '../../stream/framed-socket.ts';
import { StreamConnection, unexpected } from '../../stream/stream-connection.ts';
import type { LibfabricConnectionOptions } from './libfabric-connection-options.ts';
import { slotBytes, type EndpointListener, type LibfabricEndpoint } from './libfabric-endpoint.ts';
import {
  Assembly,
  decodeMessageHeader,
  decodeSequenced,
  messageHeaderBytes,
  MessageKind,
  parseProbe,
  probeText,
  probeTextBytes,
  protocolVersion,
  type MessageHeader,
} from './libfabric-message.ts';
import { LibfabricSender } from './libfabric-sender.ts';

/** Time for a goodbye to a peer that does not take the posted operations. */
const goodbyeMs = 100;
/** FI_EKEYREJECTED and other errors that providers report for a key or range that the target refuses. */
const refusals: readonly number[] = [13, 14, 22, 34, 129, 266];

type Delivery = { readonly slot: number; readonly bytes: number } | { readonly immediate: number | undefined };

/** Opening: each end's probe on the stream → hello of the dialer → hello of the acceptor → held until the handlers are set. */
type Phase = 'opening' | 'held' | 'open' | 'closing' | 'closed';

export class LibfabricConnection extends StreamConnection implements EndpointListener {
  readonly endpoint: LibfabricEndpoint;
  readonly #options: LibfabricConnectionOptions;
  readonly #sender: LibfabricSender;
  #phase: Phase = 'opening';
  /** True once the peer's hello has come. */
  #greeted = false;
  /** The peer has stopped polling until it is woken. */
  #peerSleeps = false;
  #pumpScheduled = false;
  #closing: Promise<void> | undefined;

  // Receiving.
  readonly #probeText = Buffer.alloc(probeTextBytes);
  readonly #header: MessageHeader = { kind: 0, credits: 0, sequence: 0, a: 0, b: 0 };
  #expected = 0;
  /** Deliveries that came before their turn. */
  readonly #early = new Map<number, Delivery>();
  readonly #assembly = new Assembly();

  /** Tells the peer about the endpoint. */
  constructor(stream: FramedSocket, endpoint: LibfabricEndpoint, options: LibfabricConnectionOptions) {
    super(stream, () => options.onEnded());
    this.endpoint = endpoint;
    this.#options = options;
    this.#sender = new LibfabricSender(endpoint, options, {
      onQueued: () => this.#activate(),
      onPosted: () => this.#wakePeer(),
      failed: (error) => this.#failed(error),
    });
    const { dials, provider, token, credits } = options;
    stream.start(this);
    if (dials) stream.postControl(FrameType.Open, {});
    stream.postControl(FrameType.Probe, {}, probeText({ provider, name: endpoint.name, token, credits }));
  }

  override get description(): string {
    return `libfabric ${this.#options.provider}${this.stream.description.slice('libfabric'.length)}`;
  }

  get inFlight(): InFlight {
    return this.#sender.inFlight;
  }

  /** True when the endpoint's descriptor may not tell of all events now, so that it has to be polled as well. */
  get wantsPolling(): boolean {
    return this.#phase === 'opening' || this.#sender.isStalled || (this.endpoint.waitFd < 0 && this.#phase !== 'held');
  }

  protected override onHandlers(): void {
    // The phase may be `closing` or `closed` already.
    if (this.#phase === 'held') this.#phase = 'open';
    this.#options.watch(true);
    this.#activate();
  }

  override async send(message: Uint8Array): Promise<void> {
    checkMessage(message);
    this.#checkOpen();
    return this.#sender.post('message', { message: Uint8Array.from(message), bytes: message.length });
  }

  override async write(source: Span, target: RemoteSpan, immediate?: number): Promise<void> {
    checkSource(source, immediate);
    if (source.bytes === 0 && immediate === undefined) return;
    this.#checkOpen();
    return this.#sender.post('write', { source, target, immediate, bytes: source.bytes });
  }

  /** Says that nothing follows; the peer ends the stream when it has delivered everything. */
  override close(timeoutMs: number = defaultCloseTimeoutMs): Promise<void> {
    this.#closing ??= this.#close(timeoutMs);
    return this.#closing;
  }

  /** Once it returns, nothing is read or written for this connection any more: memory that the peer was writing to may be reused. */
  override abort(): void {
    this.#closeEndpoint();
    super.abort();
  }

  /** Withdraws a region from the peer, and calls `done` once the peer does not write to it any more; false: it never did. */
  withdraw(rkey: number, done: () => void): boolean {
    return this.#phase !== 'closed' && this.#sender.access.withdraw(rkey, done);
  }

  #checkOpen(): void {
    if (this.#phase !== 'open' && this.#phase !== 'held') throw connectionClosed(this.stream.rank, this.peer.rank);
    checkBacklog(this.peer, this.#sender.inFlight, this.#options.maxQueuedBytes);
  }

  #activate(): void {
    if (this.#pumpScheduled) return;
    this.#pumpScheduled = true;
    queueMicrotask(() => {
      this.#pumpScheduled = false;
      if (this.#phase === 'closed') return;
      this.#guarded(() => this.#pump());
      this.#options.onActive();
    });
  }

  #pump(): void {
    if (!this.#sender.sendControl()) return;
    if (this.#phase !== 'opening') this.#sender.sendQueued();
    else if (this.#greeted) this.#becomeReady();
  }

  // ── opening ────────────────────────────────────────────────────────────────────────────────────────────────────

  /** Connects the endpoint to the peer's, and learns the token that the peer's messages begin with. @throws ShoalError `protocol`. */
  #onProbe(text: string): void {
    const { name, token, credits } = parseProbe(text);
    const status = this.endpoint.connect(name);
    if (status !== 0) {
      // The peer has done nothing wrong, so the stream fails with this error, not as `protocol`.
      this.stream.fail(new ShoalError('system', `${this.description}: the address of rank ${this.peer.rank} is not taken (${status})`));
      return;
    }
    this.#sender.meet(token, credits);
    if (this.#options.dials) this.#sender.say(MessageKind.Hello, protocolVersion);
    this.#activate();
  }

  #onHello(version: number): void {
    if (version !== protocolVersion || this.#phase !== 'opening')
      throw new ShoalError('protocol', `libfabric hello of version ${version} is not expected here`);
    this.#greeted = true;
    if (this.#options.dials) this.#becomeReady();
    else this.#sender.say(MessageKind.Hello, protocolVersion);
  }

  /** Stops polling until the handlers are set. */
  #becomeReady(): void {
    this.#phase = 'held';
    this.#options.watch(false);
    this.#options.onReady();
  }

  // ── events of the endpoint ─────────────────────────────────────────────────────────────────────────────────────

  /** Handles the events of the endpoint, and returns their number. Must be called from the event loop only. */
  poll(): number {
    if (this.#phase === 'closed' || this.#phase === 'held') return 0;
    let count = 0;
    this.#guarded(() => {
      count = this.endpoint.poll(this, this.#phase === 'opening' ? 'one' : 'many');
      if (count > 0 || this.#sender.isStalled) this.#pump();
    });
    return count;
  }

  /** Runs `run`; a ShoalError ends the connection, and the peer is told when it is to blame. */
  #guarded(run: () => void): void {
    try {
      run();
    } catch (thrown) {
      if (!isShoalError(thrown)) throw thrown;
      if (thrown.code === 'protocol' && this.stream.open) this.stream.refuse(thrown);
      else this.stream.fail(thrown);
    }
  }

  onTransmitted(slot: number): void {
    this.#sender.onTransmitted(slot);
  }

  onFailed(slot: number | undefined, error: number): void {
    if (slot !== undefined) this.#sender.onFailed(slot);
    if (this.#phase !== 'closing') throw this.#failed(error);
  }

  #failed(error: number): ShoalError {
    const { rank } = this.stream;
    if (refusals.includes(error))
      return new ShoalError('protocol', `the device of rank ${this.peer.rank} refused a write (error ${error})`);
    const reason = `libfabric reports error ${error}`;
    return peerLost({ rank, peer: this.peer.rank, description: this.description, inFlight: this.inFlight, reason });
  }

  onReceived(slot: number, bytes: number): void {
    const header = this.#header;
    if (!decodeMessageHeader(this.endpoint.receivedView, slot * slotBytes, bytes, this.#options.token, header)) {
      this.endpoint.repost(slot);
      const text = `${this.description}: a message of ${bytes} bytes that is not of rank ${this.peer.rank}`;
      this.#options.onStrange(new ShoalError('auth', text));
      return;
    }
    this.#sender.onCredits(header.credits);
    if (header.kind === MessageKind.Credit) this.endpoint.repost(slot);
    else this.#onDelivery(header.sequence, { slot, bytes });
  }

  onRemoteData(data: number): void {
    const { order } = this.#options;
    if (order === 'fenced') throw new ShoalError('protocol', 'data announced with a write where messages do that');
    if (order === 'ordered') {
      this.#onDelivery(this.#expected, { immediate: data >>> 0 });
      return;
    }
    const { sequence, immediate } = decodeSequenced(data, this.#expected);
    this.#onDelivery(sequence, { immediate });
  }

  /** Delivers what has the next number, and what came early and follows it. */
  #onDelivery(sequence: number, delivery: Delivery): void {
    if (sequence !== this.#expected) {
      const { order, credits } = this.#options;
      const lost = order === 'ordered' ? ': the device has lost something' : '';
      if (lost !== '' || (sequence - this.#expected) >>> 0 > credits || this.#early.has(sequence))
        throw new ShoalError('protocol', `message ${sequence} came where ${this.#expected} was expected${lost}`);
      this.#early.set(sequence, delivery);
      return;
    }
    for (let next: Delivery | undefined = delivery; next !== undefined && this.endpoint.open; next = this.#early.get(this.#expected)) {
      if (this.#early.size > 0) this.#early.delete(this.#expected);
      this.#expected = (this.#expected + 1) >>> 0;
      if ('slot' in next) this.#deliver(next.slot, next.bytes);
      else {
        this.#sender.owe();
        this.#announce(next.immediate);
      }
    }
  }

  #announce(immediate: number | undefined): void {
    if (immediate !== undefined && this.#phase === 'open') this.handlers!.onImmediate(immediate);
  }

  #deliver(slot: number, bytes: number): void {
    const { endpoint } = this;
    const at = slot * slotBytes;
    decodeMessageHeader(endpoint.receivedView, at, bytes, this.#options.token, this.#header);
    const { kind, a, b } = this.#header;
    try {
      this.#onMessage(kind, a, b, endpoint.received.subarray(at + messageHeaderBytes, at + bytes));
    } finally {
      this.#sender.owe();
      endpoint.repost(slot);
    }
  }

  #onMessage(kind: number, a: number, b: number, payload: Buffer): void {
    switch (kind) {
      case MessageKind.Data: {
        const message = this.#assembly.add(a, b, payload);
        if (message !== undefined && this.#phase === 'open') this.handlers!.onMessage(message);
        break;
      }
      case MessageKind.Immediate:
        this.#announce(a);
        break;
      case MessageKind.Hello:
        this.#onHello(a);
        break;
      case MessageKind.Last:
        void this.stream.close();
        break;
      default:
        this.#sender.access.onMessage(kind, a, payload);
    }
  }

  // ── sleep ──────────────────────────────────────────────────────────────────────────────────────────────────────

  /** Stops polling if nothing is under way; true when the peer will wake this end. */
  sleep(): boolean {
    if (this.#phase !== 'open') return this.#phase === 'held' || this.#phase === 'closed';
    if (this.endpoint.waitFd >= 0 || !this.#sender.isIdle || this.endpoint.underWay > 0) return false;
    this.stream.postControl(FrameType.Asleep, { offset: this.#expected });
    return true;
  }

  #wakePeer(): void {
    if (!this.#peerSleeps) return;
    this.#peerSleeps = false;
    this.stream.postControl(FrameType.Wake, {});
  }

  // ── frames of the stream ───────────────────────────────────────────────────────────────────────────────────────

  override place(header: Readonly<FrameHeader>): Uint8Array {
    if (header.type !== FrameType.Probe || header.bytes > probeTextBytes || this.#sender.hasMet) throw unexpected(header);
    return this.#probeText.subarray(0, header.bytes);
  }

  override onFrame(header: Readonly<FrameHeader>, payload: Uint8Array | undefined): void {
    const { type, offset } = header;
    const { hasMet, nextSequence, isStalled } = this.#sender;
    if (!hasMet && type === FrameType.Open && !this.#options.dials) return;
    if (!hasMet && type === FrameType.Probe && payload !== undefined) this.#onProbe(Buffer.from(payload).toString('latin1'));
    else if (hasMet && type === FrameType.Wake) this.#options.onActive();
    else if (hasMet && type === FrameType.Asleep) {
      this.#peerSleeps = true;
      if (offset !== nextSequence || this.endpoint.underWay > 0 || isStalled) this.#wakePeer();
    } else throw unexpected(header);
  }

  // ── the end ────────────────────────────────────────────────────────────────────────────────────────────────────

  override onClose(error: ShoalError | undefined): void {
    // Events that arrived before the end are delivered before it.
    const polled = this.#phase === 'open' || this.#phase === 'closing';
    if (polled && error?.code !== 'protocol') while (this.endpoint.open && this.#pollLast() > 0);
    this.#phase = 'closed';
    this.#closeEndpoint();
    const reason = error ?? connectionClosed(this.stream.rank, this.peer.rank);
    this.#options.onFailed(reason);
    this.#sender.end(reason);
    super.onClose(error);
  }

  #closeEndpoint(): void {
    this.endpoint.close();
    this.#sender.access.end();
  }

  #pollLast(): number {
    try {
      return this.endpoint.poll(this, 'many');
    } catch (thrown) {
      if (!isShoalError(thrown)) throw thrown;
      return 0;
    }
  }

  async #close(timeoutMs: number): Promise<void> {
    if (this.#phase !== 'open' && this.#phase !== 'held') {
      if (this.#phase === 'opening') this.stream.abort();
      return this.stream.ended;
    }
    this.#phase = 'closing';
    this.#options.watch(true);
    this.#sender.post('last', { bytes: 0 }).catch(() => undefined);
    const timer = this.#options.clock.setTimer(timeoutMs, () => void this.stream.close(goodbyeMs), { keepAlive: true });
    try {
      await this.stream.ended;
    } finally {
      timer.cancel();
    }
  }
}
