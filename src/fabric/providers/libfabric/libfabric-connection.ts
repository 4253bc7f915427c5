/** One connection over libfabric: an endpoint for it alone, and the authenticated stream that made it (libfabric.ts), whose end
 *  is the peer's. Messages and writes go over the endpoint, once both ends have proved themselves on the stream.
 *
 *  Order. Every delivery has a number: messages and the announcements of writes.
 *   ordered     the provider keeps the order of sends and writes; fi_writedata announces. A missing number is an error.
 *   sequenced   it does not, but carries 8 bytes with a write: the number travels with the immediate, and early deliveries wait.
 *   fenced      it does neither: a write is complete at the target before anything after it is sent; immediates are messages.
 *
 *  Sleep. Where no descriptor tells of events (shm), an end that waits for nothing says on the stream that it stops polling, and
 *  how many events it has seen; the other end wakes it when it posts, or had posted more.
 *
 *  Bounds. A message or announcement takes one of the credits that the peer has given, which come back when it was delivered: a
 *  slot is posted for each. If the peer does not deliver, senders wait here.
 *
 *  Writes. Providers drop a write with a wrong key in silence, and some drop everything behind it. So the first write to an rkey
 *  asks the target for access (claim, grant), and the writer refuses ranges outside; the key is libfabric's own check. */
import { assert } from '../../../base/assert.ts';
import { isShoalError, ShoalError } from '../../../base/errors.ts';
import { Fifo } from '../../../base/fifo.ts';
import type { Region } from '../../../memory/region.ts';
import type { Connection, ConnectionHandlers, PeerIdentity, RemoteRegion, RemoteSpan, Span } from '../../fabric.ts';
import { checkBacklog, checkMessage, checkSource, connectionClosed, defaultCloseTimeoutMs, peerLost, type InFlight } from '../../limits.ts';
import { checkRange } from '../../region-table.ts';
import { FrameType, type FrameHeader } from '../../stream/frame.ts';
import type { FramedSocket, FrameReceiver } from '../../stream/framed-socket.ts';
import type { Grant, LibfabricConnectionOptions, Probe } from './libfabric-connection-options.ts';
import { mustWait, slotBytes, type EndpointListener, type LibfabricEndpoint } from './libfabric-endpoint.ts';
import {
  Assembly,
  decodeMessageHeader,
  decodeSequenced,
  encodeMessageHeader,
  encodeSequenced,
  grantLayout,
  messageHeaderBytes,
  MessageKind,
  protocolVersion,
  type MessageHeader,
} from './libfabric-message.ts';

/** Time for a goodbye to a peer that does not take the posted operations. */
const goodbyeMs = 100;
const partBytes = slotBytes - messageHeaderBytes;
/** FI_EKEYREJECTED and other errors that providers report for a key or range that the target refuses. */
const refusals: readonly number[] = [13, 14, 22, 34, 129, 266];

interface Operation {
  readonly kind: 'message' | 'write' | 'last';
  readonly message: Uint8Array | undefined;
  readonly source: Span | undefined;
  readonly target: RemoteSpan | undefined;
  readonly immediate: number | undefined;
  readonly bytes: number;
  /** Number of its bytes that are posted. */
  posted: number;
  /** Number of its parts that are under way. */
  underWay: number;
  /** True when no part is left to post. */
  complete: boolean;
  resolve(): void;
  reject(error: ShoalError): void;
}

interface Control {
  readonly kind: number;
  readonly rkey: number;
  readonly payload: Uint8Array | undefined;
}

/** A delivery that came before its turn. */
type Early = { readonly slot: number; readonly bytes: number } | { readonly immediate: number | undefined };

/** Opening: hello of the dialer → hello of the acceptor → open. */
type Phase = 'opening' | 'held' | 'open' | 'closing' | 'closed';

export class LibfabricConnection implements Connection, FrameReceiver, EndpointListener {
  readonly stream: FramedSocket;
  readonly endpoint: LibfabricEndpoint;
  readonly #options: LibfabricConnectionOptions;
  readonly #dials: boolean;
  readonly #provider: string;
  #phase: Phase = 'opening';
  /** True once the peer's hello has come. */
  #greeted = false;
  #handlers: ConnectionHandlers | undefined;
  #ended: { error: ShoalError | undefined } | undefined;

  // Sending.
  readonly #queue = new Fifo<Operation>();
  readonly #control = new Fifo<Control>();
  readonly #operationOfSlot: (Operation | undefined)[] = [];
  /** Operations whose promise is pending. */
  readonly #pending = new Set<Operation>();
  #pendingBytes = 0;
  #messageBytes = 0;
  #credits = 0;
  /** Credits that the peer has given at the beginning. */
  #peerCredits = 0;
  #nextSequence = 0;
  #writesUnderWay = 0;
  #stalled = false;
  /** The peer has stopped polling until it is woken. */
  #peerSleeps = false;
  #pumpScheduled = false;
  readonly #grants = new Map<number, Grant>();
  readonly #claimed = new Set<number>();
  readonly #ownToken: Uint8Array;
  #peerToken: Uint8Array | undefined;

  // Receiving.
  readonly #header: MessageHeader = { kind: 0, credits: 0, sequence: 0, a: 0, b: 0 };
  #expected = 0;
  readonly #early = new Map<number, Early>();
  #owed = 0;
  readonly #assembly = new Assembly();
  /** Regions of this end that the peer may write to, each with the callback of the end of its withdrawal, if that has begun. */
  readonly #granted = new Map<number, (() => void) | undefined>();

  // Closing.
  #closing: Promise<void> | undefined;

  constructor(
    stream: FramedSocket,
    endpoint: LibfabricEndpoint,
    { dials, provider, token }: { readonly dials: boolean; readonly provider: string; readonly token: Uint8Array },
    options: LibfabricConnectionOptions,
  ) {
    this.stream = stream;
    this.endpoint = endpoint;
    this.#dials = dials;
    this.#provider = provider;
    this.#ownToken = token;
    this.#options = options;
  }

  get peer(): PeerIdentity {
    return this.stream.peer;
  }

  get description(): string {
    return `libfabric ${this.#provider}${this.stream.description.slice('libfabric'.length)}`;
  }

  /** This end's description for the peer. */
  get probe(): Probe {
    return { provider: this.#provider, name: this.endpoint.name, token: this.#ownToken, credits: this.#options.credits };
  }

  get inFlight(): InFlight {
    return { operations: this.#pending.size, bytes: this.#pendingBytes };
  }

  /** True when the endpoint's descriptor may not tell of all events now, so that it has to be polled as well. */
  get wantsPolling(): boolean {
    return this.#phase === 'opening' || this.#stalled || (this.endpoint.waitFd < 0 && this.#phase !== 'held');
  }

  setHandlers(handlers: ConnectionHandlers): void {
    assert(this.#handlers === undefined, () => 'handlers of a connection are set once');
    this.#handlers = handlers;
    if (this.#ended !== undefined) {
      const { error } = this.#ended;
      queueMicrotask(() => handlers.onClose(error));
      return;
    }
    // The phase may be `closing` or `closed` already.
    if (this.#phase === 'held') this.#phase = 'open';
    this.#options.watch(true);
    this.#activate();
  }

  async send(message: Uint8Array): Promise<void> {
    checkMessage(message);
    return this.#post('message', { message: Uint8Array.from(message), bytes: message.length });
  }

  async write(source: Span, target: RemoteSpan, immediate?: number): Promise<void> {
    checkSource(source, immediate);
    if (source.bytes === 0 && immediate === undefined) return;
    return this.#post('write', { source, target, immediate, bytes: source.bytes });
  }

  map(_remote: RemoteRegion): Region {
    throw new ShoalError('unsupported', `${this.description} cannot map memory of rank ${this.peer.rank}; use write`, {
      peer: this.peer.rank,
    });
  }

  /** Says that nothing follows; the peer ends the stream when it has delivered everything. */
  close(timeoutMs: number = defaultCloseTimeoutMs): Promise<void> {
    this.#closing ??= this.#close(timeoutMs);
    return this.#closing;
  }

  /** Once it returns, nothing is read or written for this connection any more: memory that the peer was writing to may be reused. */
  abort(): void {
    this.#closeEndpoint();
    this.stream.abort();
  }

  // ── opening ────────────────────────────────────────────────────────────────────────────────────────────────────

  /** Connects the endpoint to the peer's, and learns the token that the peer's messages begin with. @throws ShoalError. */
  meet({ name, token, credits }: Pick<Probe, 'name' | 'token' | 'credits'>): void {
    const status = this.endpoint.connect(name);
    if (status !== 0) throw new ShoalError('system', `${this.description}: the address of rank ${this.peer.rank} is not taken (${status})`);
    this.#peerToken = token;
    this.#credits = this.#peerCredits = credits;
    if (this.#dials) this.#controlMessage(MessageKind.Hello, protocolVersion);
    this.#activate();
  }

  #onHello(version: number): void {
    if (version !== protocolVersion || this.#phase !== 'opening')
      throw new ShoalError('protocol', `libfabric hello of version ${version} is not expected here`);
    this.#greeted = true;
    if (this.#dials) this.#becomeReady();
    else this.#controlMessage(MessageKind.Hello, protocolVersion);
  }

  /** Stops polling until the handlers are set. */
  #becomeReady(): void {
    this.#phase = 'held';
    this.#options.watch(false);
    this.#options.onReady();
  }

  // ── sending ────────────────────────────────────────────────────────────────────────────────────────────────────

  #post(kind: Operation['kind'], what: Partial<Operation> & { readonly bytes: number }): Promise<void> {
    const { maxQueuedBytes } = this.#options;
    if (this.#phase !== 'open' && this.#phase !== 'held') throw connectionClosed(this.stream.rank, this.peer.rank);
    checkBacklog(this.peer, { ...this.inFlight, messageBytes: this.#messageBytes }, maxQueuedBytes);
    return this.#enqueue(kind, what);
  }

  #enqueue(kind: Operation['kind'], { message, source, target, immediate, bytes = 0 }: Partial<Operation>): Promise<void> {
    return new Promise((resolve, reject) => {
      const operation = { kind, message, source, target, immediate, bytes, posted: 0, underWay: 0, complete: false, resolve, reject };
      this.#queue.push(operation);
      this.#pending.add(operation);
      this.#pendingBytes += bytes;
      if (kind === 'message') this.#messageBytes += bytes;
      this.#activate();
    });
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
    if (this.#peerToken === undefined || !this.endpoint.open) return;
    this.#stalled = false;
    for (let next = this.#control.peek(); next !== undefined; next = this.#control.peek()) {
      if (!this.#message(next.kind, next.rkey, 0, next.payload)) return;
      this.#control.shift();
    }
    if (this.#phase === 'opening') {
      if (this.#greeted) this.#becomeReady();
      return;
    }
    for (let next = this.#queue.peek(); next !== undefined; next = this.#queue.peek()) {
      if (!this.#advance(next)) break;
      this.#queue.shift();
      next.complete = true;
      this.#settleDone(next);
    }
    if (this.#owed > this.#options.credits / 4) this.#message(MessageKind.Credit, 0, 0, undefined);
  }

  /** Posts as much of the operation as is possible now; true when all is posted. */
  #advance(operation: Operation): boolean {
    if (operation.kind === 'write' && operation.bytes > 0 && operation.posted < operation.bytes && !this.#postWrite(operation))
      return false;
    if (operation.kind === 'write' && (operation.immediate === undefined || (operation.bytes > 0 && this.#options.order !== 'fenced')))
      return true;
    if (this.#options.order === 'fenced' && this.#writesUnderWay > 0) return false;
    switch (operation.kind) {
      case 'message':
        return this.#postMessage(operation);
      case 'write':
        return this.#message(MessageKind.Immediate, operation.immediate!, 0, undefined);
      default:
        return this.#message(MessageKind.Last, 0, 0, undefined);
    }
  }

  #postMessage(operation: Operation): boolean {
    const message = operation.message!;
    do {
      const part = message.subarray(operation.posted, operation.posted + partBytes);
      if (!this.#message(MessageKind.Data, message.length, operation.posted, part)) return false;
      operation.posted += part.length;
    } while (operation.posted < message.length);
    return true;
  }

  #postWrite(operation: Operation): boolean {
    const { order, maxWriteBytes, sourceOf } = this.#options;
    const { source, target, immediate, bytes } = operation as Operation & { source: Span; target: RemoteSpan };
    const { rkey } = target.region;
    const grant = this.#grants.get(rkey);
    if (grant === undefined) {
      if (!this.#claimed.has(rkey)) {
        this.#claimed.add(rkey);
        this.#controlMessage(MessageKind.Claim, rkey);
        this.#activate();
      }
      return false;
    }
    checkRange(rkey, grant.bytes, target.offset, bytes);
    const { source: view, registration } = sourceOf(source.region);
    const request = { source: view, registration, address: grant.address, key: grant.key };
    while (operation.posted < bytes) {
      const at = operation.posted;
      const part = Math.min(maxWriteBytes, bytes - at);
      const to = target.offset + at;
      const last = at + part === bytes;
      if (order !== 'ordered' && this.#overlaps(rkey, to, part)) return false;
      const announces = order === 'sequenced' || (order === 'ordered' && last && immediate !== undefined);
      if (announces && this.#credits === 0) return false;
      const slot = this.endpoint.takeSlot();
      if (slot === undefined) return false;
      const data = !announces ? -1 : order === 'ordered' ? immediate! : encodeSequenced(this.#nextSequence, last ? immediate : undefined);
      const status = this.endpoint.write(slot, request, {
        from: source.offset + at,
        bytes: part,
        to,
        data,
        delivered: order !== 'ordered',
      });
      if (!this.#posted(slot, status, operation)) return false;
      if (announces) this.#count();
      this.#writesUnderWay++;
      this.#ranges.set(slot, { rkey, from: to, until: to + part });
      operation.underWay++;
      operation.posted += part;
    }
    return true;
  }
  /** Ranges of writes under way, by slot. */
  readonly #ranges = new Map<number, { readonly rkey: number; readonly from: number; readonly until: number }>();

  #overlaps(rkey: number, from: number, bytes: number): boolean {
    for (const range of this.#ranges.values()) if (range.rkey === rkey && range.from < from + bytes && from < range.until) return true;
    return false;
  }

  #controlMessage(kind: number, rkey: number, payload?: Uint8Array): void {
    this.#control.push({ kind, rkey, payload });
  }

  /** Sends one message; false when there is no credit or no slot for it now. */
  #message(kind: number, a: number, b: number, payload: Uint8Array | undefined): boolean {
    const { endpoint } = this;
    const counts = kind !== MessageKind.Credit;
    if (counts && this.#credits === 0) return false;
    const slot = endpoint.takeSlot();
    if (slot === undefined) return false;
    const at = slot * slotBytes;
    const header = { kind, credits: this.#owed, sequence: this.#nextSequence, a, b };
    encodeMessageHeader(endpoint.sendingView, at, header, this.#peerToken!);
    if (payload !== undefined) endpoint.sending.set(payload, at + messageHeaderBytes);
    if (!this.#posted(slot, endpoint.send(slot, messageHeaderBytes + (payload?.length ?? 0)), undefined)) return false;
    this.#owed = 0;
    if (counts) this.#count();
    return true;
  }

  #count(): void {
    this.#credits--;
    this.#nextSequence = (this.#nextSequence + 1) >>> 0;
  }

  #posted(slot: number, status: number, operation: Operation | undefined): boolean {
    if (status === 0) {
      this.#operationOfSlot[slot] = operation;
      this.#wakePeer();
      return true;
    }
    this.endpoint.giveBack(slot);
    if (!mustWait(status)) throw this.#failed(-status);
    // The peer's queue may be full of messages that it has not polled.
    this.#wakePeer();
    this.#stalled = true;
    return false;
  }

  #settleDone(operation: Operation): void {
    if (!operation.complete || operation.underWay > 0 || !this.#pending.delete(operation)) return;
    this.#forget(operation);
    operation.resolve();
  }

  #forget({ kind, bytes }: Operation): void {
    this.#pendingBytes -= bytes;
    if (kind === 'message') this.#messageBytes -= bytes;
  }

  // ── events of the endpoint ─────────────────────────────────────────────────────────────────────────────────────

  /** Handles the events of the endpoint, and returns their number. Must be called from the event loop only. */
  poll(): number {
    if (this.#phase === 'closed' || this.#phase === 'held') return 0;
    let count = 0;
    this.#guarded(() => {
      count = this.endpoint.poll(this, this.#phase === 'opening' ? 'one' : 'many');
      if (count > 0 || this.#stalled) this.#pump();
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
    const operation = this.#operationOfSlot[slot];
    this.#operationOfSlot[slot] = undefined;
    if (operation === undefined) return;
    this.#writesUnderWay--;
    this.#ranges.delete(slot);
    for (const rkey of this.#leaving) this.#acknowledge(rkey);
    operation.underWay--;
    this.#settleDone(operation);
  }

  onFailed(slot: number | undefined, error: number): void {
    if (slot !== undefined) this.#operationOfSlot[slot] = undefined;
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
    if (!decodeMessageHeader(this.endpoint.receivedView, slot * slotBytes, bytes, this.#ownToken, header)) {
      this.endpoint.repost(slot);
      this.#options.onStrange(
        new ShoalError('auth', `${this.description}: a message of ${bytes} bytes that is not of rank ${this.peer.rank}`),
      );
      return;
    }
    this.#credits += header.credits;
    if (this.#credits > this.#peerCredits) throw new ShoalError('protocol', `${header.credits} credits that were not taken`);
    if (header.kind === MessageKind.Credit) this.endpoint.repost(slot);
    else if (header.sequence === this.#expected) this.#inOrder(() => this.#deliver(slot, bytes));
    else this.#tooEarly(header.sequence, { slot, bytes });
  }

  onRemoteData(data: number): void {
    if (this.#options.order === 'ordered') {
      this.#inOrder(() => this.#announce(data >>> 0));
      return;
    }
    if (this.#options.order === 'fenced') throw new ShoalError('protocol', 'data announced with a write where messages do that');
    const { sequence, immediate } = decodeSequenced(data, this.#expected);
    if (sequence === this.#expected) this.#inOrder(() => this.#announce(immediate));
    else this.#tooEarly(sequence, { immediate });
  }

  #tooEarly(sequence: number, early: Early): void {
    if (this.#options.order === 'ordered')
      throw new ShoalError('protocol', `message ${sequence} came where ${this.#expected} was expected: the device has lost something`);
    if ((sequence - this.#expected) >>> 0 > this.#options.credits || this.#early.has(sequence))
      throw new ShoalError('protocol', `message ${sequence} came where ${this.#expected} was expected`);
    this.#early.set(sequence, early);
  }

  #inOrder(deliver: () => void): void {
    this.#expected = (this.#expected + 1) >>> 0;
    deliver();
    while (this.#early.size > 0 && this.endpoint.open) {
      const early = this.#early.get(this.#expected);
      if (early === undefined) return;
      this.#early.delete(this.#expected);
      this.#expected = (this.#expected + 1) >>> 0;
      if ('slot' in early) this.#deliver(early.slot, early.bytes);
      else this.#announce(early.immediate);
    }
  }

  #announce(immediate: number | undefined): void {
    this.#owed++;
    if (immediate !== undefined && this.#phase === 'open') this.#handlers!.onImmediate(immediate);
  }

  #deliver(slot: number, bytes: number): void {
    const { endpoint } = this;
    const at = slot * slotBytes;
    decodeMessageHeader(endpoint.receivedView, at, bytes, this.#ownToken, this.#header);
    const { kind, a, b } = this.#header;
    const payload = endpoint.received.subarray(at + messageHeaderBytes, at + bytes);
    try {
      this.#onMessage(kind, a, b, payload);
    } finally {
      this.#owed++;
      endpoint.repost(slot);
    }
  }

  #onMessage(kind: number, a: number, b: number, payload: Buffer): void {
    switch (kind) {
      case MessageKind.Data:
        this.#onData(a, b, payload);
        break;
      case MessageKind.Immediate:
        if (this.#phase === 'open') this.#handlers!.onImmediate(a);
        break;
      case MessageKind.Hello:
        this.#onHello(a);
        break;
      case MessageKind.Claim:
        this.#onClaim(a);
        break;
      case MessageKind.Grant:
        this.#onGrant(a, payload);
        break;
      case MessageKind.Withdraw:
        this.#grants.delete(a);
        this.#claimed.delete(a);
        this.#acknowledge(a);
        break;
      case MessageKind.Withdrawn:
        this.#granted.get(a)?.();
        this.#granted.delete(a);
        break;
      default:
        void this.stream.close();
    }
  }

  #onData(total: number, offset: number, part: Buffer): void {
    const message = this.#assembly.add(total, offset, part);
    if (message !== undefined && this.#phase === 'open') this.#handlers!.onMessage(message);
  }

  // ── regions ────────────────────────────────────────────────────────────────────────────────────────────────────

  #onClaim(rkey: number): void {
    const grant = this.#options.grantOf(rkey);
    if (grant === undefined) throw new ShoalError('protocol', `write to unknown rkey ${rkey}; was the region deregistered?`);
    this.#granted.set(rkey, undefined);
    this.#controlMessage(MessageKind.Grant, rkey, grantLayout.encode(grant));
    this.#activate();
  }

  #onGrant(rkey: number, payload: Buffer): void {
    if (!this.#claimed.has(rkey)) throw new ShoalError('protocol', `rkey ${rkey} was granted unasked`);
    this.#grants.set(rkey, grantLayout.decode(payload));
  }

  /** Confirms a withdrawal, behind every write to the region: where the provider keeps no order, when those are done. */
  #acknowledge(rkey: number): void {
    if (this.#options.order !== 'ordered' && [...this.#ranges.values()].some((range) => range.rkey === rkey)) {
      this.#leaving.add(rkey);
      return;
    }
    this.#leaving.delete(rkey);
    this.#controlMessage(MessageKind.Withdrawn, rkey);
    this.#activate();
  }
  /** rkeys that the peer has withdrawn while writes to them are under way. */
  readonly #leaving = new Set<number>();

  /** Withdraws a region from the peer, and calls `done` once the peer does not write to it any more; false: it never did. */
  withdraw(rkey: number, done: () => void): boolean {
    if (!this.#granted.has(rkey) || this.#phase === 'closed') return false;
    this.#granted.set(rkey, done);
    this.#controlMessage(MessageKind.Withdraw, rkey);
    this.#activate();
    return true;
  }

  // ── sleep ──────────────────────────────────────────────────────────────────────────────────────────────────────

  /** Stops polling if nothing is under way; true when the peer will wake this end. */
  sleep(): boolean {
    if (this.#phase !== 'open') return this.#phase === 'held' || this.#phase === 'closed';
    if (this.endpoint.waitFd >= 0 || this.#pending.size > 0 || this.#control.length > 0 || this.endpoint.underWay > 0) return false;
    this.stream.postControl(FrameType.Asleep, { offset: this.#expected });
    return true;
  }

  #wakePeer(): void {
    if (!this.#peerSleeps) return;
    this.#peerSleeps = false;
    this.stream.postControl(FrameType.Wake, {});
  }

  // ── frames of the stream ───────────────────────────────────────────────────────────────────────────────────────

  place(header: Readonly<FrameHeader>): Uint8Array {
    throw new ShoalError('protocol', `frame of type ${header.type} with ${header.bytes} bytes is not expected here`);
  }

  onFrame(header: Readonly<FrameHeader>): void {
    if (header.type === FrameType.Wake) {
      this.#options.onActive();
      return;
    }
    if (header.type === FrameType.Asleep) {
      this.#peerSleeps = true;
      if (header.offset !== this.#nextSequence || this.endpoint.underWay > 0 || this.#stalled) this.#wakePeer();
      return;
    }
    throw new ShoalError('protocol', `frame of type ${header.type} is not expected here`);
  }

  onClose(error: ShoalError | undefined): void {
    if (this.#phase === 'closed') return;
    // Events that arrived before the end are delivered before it.
    const polled = this.#phase === 'open' || this.#phase === 'closing';
    if (polled && error?.code !== 'protocol') while (this.endpoint.open && this.#pollLast() > 0);
    this.#phase = 'closed';
    this.#closeEndpoint();
    this.#ended = { error };
    const pendingError = error ?? connectionClosed(this.stream.rank, this.peer.rank);
    for (const operation of this.#pending) operation.reject(pendingError);
    this.#pending.clear();
    this.#options.onEnded();
    this.#handlers?.onClose(error);
  }

  #closeEndpoint(): void {
    this.endpoint.close();
    for (const done of this.#granted.values()) done?.();
    this.#granted.clear();
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
    const { clock } = this.#options;
    this.#enqueue('last', { bytes: 0 }).catch(() => undefined);
    const timer = clock.setTimer(timeoutMs, () => void this.stream.close(goodbyeMs), { keepAlive: true });
    try {
      await this.stream.ended;
    } finally {
      timer.cancel();
    }
  }
}
