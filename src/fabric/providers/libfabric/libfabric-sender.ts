/** The sending half of a connection over libfabric: messages and writes in their order, as many as the peer's credits and the endpoint's
 *  slots allow for; control messages go before them.
 *
 *      post ─▶ queue ── credit, slot ──▶ endpoint ── transmitted ──▶ resolved
 *
 *  Bounds. A message or announcement takes one of the credits that the peer has given, which come back when it was delivered: a
 *  slot is posted for each. If the peer does not deliver, senders wait here. It must not know the phases of a connection. */
import { ShoalError } from '../../../base/errors.ts';
import { Fifo } from '../../../base/collections/fifo.ts';
import type { RemoteSpan, Span } from '../../fabric.ts';
import type { InFlight } from '../../limits.ts';
import { checkRange } from '../../region-table.ts';
import { WriteAccess } from './libfabric-access.ts';
import type { LibfabricConnectionOptions } from './libfabric-connection-options.ts';
import { mustWait, slotBytes, type LibfabricEndpoint } from './libfabric-endpoint.ts';
import { encodeMessageHeader, encodeSequenced, messageHeaderBytes, MessageKind } from './libfabric-message.ts';

const partBytes = slotBytes - messageHeaderBytes;

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

export interface SenderOwner {
  /** Called when there is something new to post. */
  onQueued(): void;
  /** Called when something was posted, and when the endpoint takes nothing now: the peer may have to poll first. */
  onPosted(): void;
  /** The error of an operation that the endpoint refuses. */
  failed(error: number): ShoalError;
}

export class LibfabricSender {
  readonly access: WriteAccess;
  /** Number of deliveries that were sent. */
  nextSequence = 0;
  /** True while the endpoint takes nothing: it has to be polled first. */
  isStalled = false;
  readonly #endpoint: LibfabricEndpoint;
  readonly #options: LibfabricConnectionOptions;
  readonly #owner: SenderOwner;
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
  #owed = 0;
  #peerToken: Uint8Array | undefined;

  constructor(endpoint: LibfabricEndpoint, options: LibfabricConnectionOptions, owner: SenderOwner) {
    this.#endpoint = endpoint;
    this.#options = options;
    this.#owner = owner;
    this.access = new WriteAccess(options, (kind, rkey, payload) => this.say(kind, rkey, payload));
  }

  /** Operations that are not done. `messageBytes` are those of messages alone, which are copies. */
  get inFlight(): InFlight & { messageBytes: number } {
    return { operations: this.#pending.size, bytes: this.#pendingBytes, messageBytes: this.#messageBytes };
  }

  get isIdle(): boolean {
    return this.#pending.size === 0 && this.#control.length === 0;
  }

  /** True once the peer's token is known. */
  get hasMet(): boolean {
    return this.#peerToken !== undefined;
  }

  /** @param token with which the peer wants messages to begin. */
  meet(token: Uint8Array, credits: number): void {
    this.#peerToken = token;
    this.#credits = this.#peerCredits = credits;
  }

  /** Queues an operation. Resolves when its source may change. */
  post(
    kind: Operation['kind'],
    { message, source, target, immediate, bytes }: Partial<Operation> & { readonly bytes: number },
  ): Promise<void> {
    return new Promise((resolve, reject) => {
      const operation = { kind, message, source, target, immediate, bytes, posted: 0, underWay: 0, complete: false, resolve, reject };
      this.#queue.push(operation);
      this.#pending.add(operation);
      this.#pendingBytes += bytes;
      if (kind === 'message') this.#messageBytes += bytes;
      this.#owner.onQueued();
    });
  }

  /** Queues a control message. */
  say(kind: number, rkey: number, payload?: Uint8Array): void {
    this.#control.push({ kind, rkey, payload });
    this.#owner.onQueued();
  }

  /** Sends control messages; false when some are left. */
  sendControl(): boolean {
    if (this.#peerToken === undefined || !this.#endpoint.open) return false;
    this.isStalled = false;
    for (let next = this.#control.peek(); next !== undefined; next = this.#control.peek()) {
      if (!this.#message(next.kind, next.rkey, 0, next.payload)) return false;
      this.#control.shift();
    }
    return true;
  }

  /** Sends what is queued, as far as possible, and gives credits back. */
  sendQueued(): void {
    for (let next = this.#queue.peek(); next !== undefined; next = this.#queue.peek()) {
      if (!this.#advance(next)) break;
      this.#queue.shift();
      next.complete = true;
      this.#settleDone(next);
    }
    if (this.#owed > this.#options.credits / 4) this.#message(MessageKind.Credit, 0, 0, undefined);
  }

  /** Credits have come back. @throws ShoalError `protocol` for more than were taken. */
  onCredits(count: number): void {
    this.#credits += count;
    if (this.#credits > this.#peerCredits) throw new ShoalError('protocol', `${count} credits that were not taken`);
  }

  /** A delivery of the peer is done: its credit goes back with the next message. */
  owe(): void {
    this.#owed++;
  }

  onTransmitted(slot: number): void {
    const operation = this.#operationOfSlot[slot];
    this.#operationOfSlot[slot] = undefined;
    if (operation === undefined) return;
    this.access.onWritten(slot);
    operation.underWay--;
    this.#settleDone(operation);
  }

  onFailed(slot: number): void {
    this.#operationOfSlot[slot] = undefined;
  }

  /** Rejects everything that is not done. */
  end(error: ShoalError): void {
    for (const operation of this.#pending) operation.reject(error);
    this.#pending.clear();
  }

  /** Posts as much of the operation as is possible now; true when all is posted. */
  #advance(operation: Operation): boolean {
    const { kind, bytes, immediate } = operation;
    const isFenced = this.#options.order === 'fenced';
    if (kind === 'write' && operation.posted < bytes && !this.#postWrite(operation)) return false;
    if (kind === 'write' && (immediate === undefined || (bytes > 0 && !isFenced))) return true;
    if (isFenced && this.access.underWay > 0) return false;
    if (kind === 'message') return this.#postMessage(operation);
    return kind === 'write'
      ? this.#message(MessageKind.Immediate, immediate!, 0, undefined)
      : this.#message(MessageKind.Last, 0, 0, undefined);
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
    const grant = this.access.grantFor(rkey);
    if (grant === undefined) return false;
    checkRange(rkey, grant.bytes, target.offset, bytes);
    const { source: view, registration } = sourceOf(source.region);
    const request = { source: view, registration, address: grant.address, key: grant.key };
    while (operation.posted < bytes) {
      const at = operation.posted;
      const part = Math.min(maxWriteBytes, bytes - at);
      const to = target.offset + at;
      const last = at + part === bytes;
      if (order !== 'ordered' && this.access.overlaps(rkey, to, to + part)) return false;
      const announces = order === 'sequenced' || (order === 'ordered' && last && immediate !== undefined);
      if (announces && this.#credits === 0) return false;
      const slot = this.#endpoint.takeSlot();
      if (slot === undefined) return false;
      const data = !announces ? -1 : order === 'ordered' ? immediate! : encodeSequenced(this.nextSequence, last ? immediate : undefined);
      const delivered = order !== 'ordered';
      const status = this.#endpoint.write(slot, request, { from: source.offset + at, bytes: part, to, data, delivered });
      if (!this.#posted(slot, status, operation)) return false;
      if (announces) this.#count();
      this.access.onWriting(slot, { rkey, from: to, until: to + part });
      operation.underWay++;
      operation.posted += part;
    }
    return true;
  }

  /** Sends one message; false when there is no credit or no slot for it now. */
  #message(kind: number, a: number, b: number, payload: Uint8Array | undefined): boolean {
    const endpoint = this.#endpoint;
    const counts = kind !== MessageKind.Credit;
    if (counts && this.#credits === 0) return false;
    const slot = endpoint.takeSlot();
    if (slot === undefined) return false;
    const at = slot * slotBytes;
    const header = { kind, credits: this.#owed, sequence: this.nextSequence, a, b };
    encodeMessageHeader(endpoint.sendingView, at, header, this.#peerToken!);
    if (payload !== undefined) endpoint.sending.set(payload, at + messageHeaderBytes);
    if (!this.#posted(slot, endpoint.send(slot, messageHeaderBytes + (payload?.length ?? 0)), undefined)) return false;
    this.#owed = 0;
    if (counts) this.#count();
    return true;
  }

  #count(): void {
    this.#credits--;
    this.nextSequence = (this.nextSequence + 1) >>> 0;
  }

  #posted(slot: number, status: number, operation: Operation | undefined): boolean {
    if (status === 0) this.#operationOfSlot[slot] = operation;
    else {
      this.#endpoint.giveBack(slot);
      if (!mustWait(status)) throw this.#owner.failed(-status);
      this.isStalled = true;
    }
    this.#owner.onPosted();
    return status === 0;
  }

  #settleDone(operation: Operation): void {
    if (!operation.complete || operation.underWay > 0 || !this.#pending.delete(operation)) return;
    this.#pendingBytes -= operation.bytes;
    if (operation.kind === 'message') this.#messageBytes -= operation.bytes;
    operation.resolve();
  }
}
