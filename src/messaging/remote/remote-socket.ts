/** The socket at the other end, as a dealer or a router knows it: a bounded queue towards it, with or without a pipe under it.
 *  It packs messages into packets and numbers them by a session (session/session.ts), which knows what the peer lacks when a
 *  pipe comes back. It must not know sockets, routes or backends.
 *
 *    send → queue ──pack──▶ session ──pipe──▶ peer          queue: bounded; refuses beyond
 *                                                           session: keeps packets until they are at the peer; sends them again
 *                                                           when the pipe comes back; bounds what the peer has not taken
 *
 *  A *brief* one keeps nothing for a pipe that breaks, because its users repeat themselves what matters: each pipe begins a session, and
 *  the messages of the last one are gone. Counters only bound what the peer has not taken, and say when frames may be changed.
 *
 *  A process that has ended loses what it had received: its successor begins with what had not arrived. */
import type { Clock, Timer } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import { Fifo } from '../../base/collections/fifo.ts';
import { settled } from '../../base/microtask.ts';
import { Session, type Unit } from '../../session/session.ts';
import { formatAddress, type Address } from '../address.ts';
import type { Pipe } from '../backend.ts';
import type { MessagingLimits } from '../limits.ts';
import type { FramePlace, Msg } from '../msg.ts';
import {
  checkMessage,
  encodeControl,
  encodeData,
  encodeGreeting,
  inlineBytes,
  messageCost,
  PacketKind,
  rebaseSequence,
  refreshCounters,
  type Greeting,
  type MessageBounds,
  type Packet,
} from './packet.ts';

/** A packet is closed when it has this much inline, or costs this much with its large frames. */
const packetInlineBytes = 64 * 1024;
const packetCostBytes = 1024 * 1024;
const packetMessages = 1024;
/** Time that a counter may wait for data to travel with. */
const creditDelayMs = 2;
const noPlaces: readonly undefined[] = [];

export interface RemoteSocketOptions {
  /** Random, not 0. */
  readonly session: number;
  /** The address of this end. */
  readonly own: Address;
  /** The address of the other end; for a dealer, whose router has no address, undefined. */
  readonly address: Address | undefined;
  readonly limits: MessagingLimits;
  readonly clock: Clock;
  /** Default: what the peer's greeting says. */
  readonly isBrief?: boolean;
  deliver(from: RemoteSocket, msg: Msg, bytes: number): void;
  /** A message that was accepted cannot be delivered after all. */
  onUndeliverable(msg: Msg, error: ShoalError): void;
}

/** A packet of messages, as the pipe takes it. */
interface DataUnit extends Unit {
  readonly parts: Uint8Array[];
  readonly pointers: Uint8Array[];
  readonly places: readonly (FramePlace | undefined)[];
  readonly messages: readonly Msg[];
}

const nothing = { parts: [], pointers: [], places: [] };

export class RemoteSocket {
  readonly #options: RemoteSocketOptions;
  #pipe: Pipe | undefined;
  readonly #session: Session<DataUnit>;
  /** The peer's bounds as far as we know: it says them when it greets. */
  #peerTakes: MessageBounds;
  #queue = new Fifo<Msg>();
  #isBrief: boolean;
  /** The pipe of a brief one is gone: messages are dropped until there is another. */
  #isCut = false;
  #queueBytes = 0;
  #creditScheduled = false;
  #creditTimer: Timer | undefined;
  /** After all that promises trigger: an answer that was sent at once has told the counters. Then no timer is started;
   *  one that is due soon makes each wait of the event loop set the hardware's. */
  readonly #creditTurn = (): void => {
    this.#creditScheduled = false;
    if (!this.#session.open || !this.#session.untold) return;
    this.#creditTimer = this.#options.clock.setTimer(creditDelayMs, () => {
      this.#creditTimer = undefined;
      if (this.#session.untold) this.#tellCounters();
    });
  };

  #pumping = false;
  /** One packet for everything that is sent in one turn. */
  readonly #pumpTurn = (): void => {
    this.#pumping = false;
    this.#pump();
  };
  #end: ShoalError | undefined;
  #flushWaiters: { resolve(): void; reject(error: ShoalError): void }[] = [];
  #roomWaiters: (() => void)[] = [];

  constructor(options: RemoteSocketOptions) {
    this.#options = options;
    const { windowMessages, windowBytes } = options.limits;
    this.#peerTakes = options.limits;
    this.#isBrief = options.isBrief ?? false;
    this.#session = new Session({
      id: options.session,
      windowMessages,
      windowBytes,
      onReceived: ({ messages }) => {
        for (const msg of messages) msg.markDelivered();
      },
    });
  }

  get address(): Address | undefined {
    return this.#options.address;
  }

  get pipe(): Pipe | undefined {
    return this.#pipe;
  }

  /** The ends have greeted each other: data may flow. */
  get open(): boolean {
    return this.#session.open;
  }

  /** Changes when the peer is another process: what arrived before does not count afterwards. */
  get epoch(): number {
    return this.#session.epoch;
  }

  /** Messages that the peer does not have yet. */
  get pending(): number {
    return this.#queue.length + this.#session.pending;
  }

  /** @throws ShoalError `out-of-memory` when the peer does not take what is queued for it. */
  enqueue(msg: Msg): void {
    const cost = messageCost(msg);
    checkMessage(msg, this.#options.limits, 'here');
    this.#checkPeerTakes(msg);
    // After `room` any message is taken: the bound in bytes may be passed by one of them.
    if (!this.#hasRoom()) throw this.#full(this.pending, this.#queueBytes + this.#session.pendingBytes);
    msg.markSent();
    if (this.#isCut) return;
    this.#queue.push(msg);
    this.#queueBytes += cost;
    this.#schedulePump();
  }

  /** Resolves when the peer's process has everything sent so far: frames may be changed again. Rejects when the socket
   *  ends before. */
  flushed(): Promise<void> {
    if (this.pending === 0) return Promise.resolve();
    return new Promise((resolve, reject) => {
      if (this.#end === undefined) this.#flushWaiters.push({ resolve, reject });
      else reject(this.#end);
    });
  }

  /** Resolves when `enqueue` would take a message, or the socket has ended, which its `send` then says. */
  room(): Promise<void> {
    if (this.#hasRoom() || this.#end !== undefined) return Promise.resolve();
    return new Promise((resolve) => this.#roomWaiters.push(resolve));
  }

  /** The application has taken a message that arrived in `epoch`. */
  taken(epoch: number, bytes: number): void {
    if (!this.#session.taken(epoch, bytes)) return;
    if (this.#session.isDue) this.#tellCounters();
    else this.#scheduleCredit();
  }

  // ── pipe and greeting ──────────────────────────────────────────────────────────────────────────────────────────

  /** @returns the pipe it had. Nothing flows before `greet`. */
  attach(pipe: Pipe): Pipe | undefined {
    const previous = this.#pipe;
    this.#pipe = pipe;
    this.#session.close();
    return previous === pipe ? undefined : previous;
  }

  /** The pipe is gone; what the peer does not have stays here, unless it is brief. */
  detach(): void {
    this.#isCut = this.#isBrief && this.#pipe !== undefined;
    if (this.#isCut) this.#drop();
    this.#pipe = undefined;
    this.#session.close();
    this.#creditTimer?.cancel();
    this.#creditTimer = undefined;
  }

  /** Says who we are. Whatever arrives before the answer is ignored: it will be sent again. */
  sayHello(): void {
    this.#session.close();
    this.#greet('hello');
  }

  /** It is not the process that we have talked to before. */
  isStranger({ session }: Greeting): boolean {
    const { peer } = this.#session;
    return peer !== 0 && peer !== session;
  }

  /** Takes up where the two ends left off; answers a hello. */
  greet(packet: Packet & Greeting): void {
    this.#peerTakes = packet;
    if (packet.kind === PacketKind.hello) this.#isBrief = packet.brief;
    // Messages that waited for the dealer belong to an earlier one.
    if (packet.kind === PacketKind.hello && this.#isBrief) this.#drop();
    this.#isCut = false;
    this.#session.greet(packet, packet);
    if (packet.kind === PacketKind.hello) this.#greet('welcome');
    this.#wake();
    this.#pump();
    this.#scheduleCredit();
  }

  /** Data or counters. @returns 'lost' when messages before these are missing: the ends must greet again. */
  onPacket(packet: Packet): 'ok' | 'lost' {
    if (!this.open) return 'ok';
    if (this.#session.acknowledge(packet)) this.#wake();
    if (packet.kind === PacketKind.data) return this.#onData(packet);
    this.#schedulePump();
    return 'ok';
  }

  /** Says goodbye to the peer; the pipe is then the caller's to close. */
  sayGoodbye(): void {
    this.#pipe?.send([encodeControl('goodbye', this.#session.counters)]);
  }

  /** The peer will not come back: it starts from nothing if it does. */
  forgetPeer(): void {
    this.#session.forgetPeer();
  }

  /** The socket has ended: nobody waits for the peer any longer. */
  end(error: ShoalError): void {
    this.#end ??= error;
    this.detach();
    for (const waiter of this.#flushWaiters.splice(0)) waiter.reject(error);
    for (const waiter of this.#roomWaiters.splice(0)) waiter();
  }

  /** Everything that waits here goes to its destinations over `other` instead, behind what waits there; and so does who
   *  waits for it. */
  moveTo(other: RemoteSocket): void {
    const waiting: Msg[] = [];
    for (let next = this.#queue.shift(); next !== undefined; next = this.#queue.shift()) waiting.push(next);
    this.#queueBytes = 0;
    for (const msg of waiting) {
      msg.markRefused();
      try {
        other.enqueue(msg);
      } catch (thrown) {
        this.#options.onUndeliverable(msg, ShoalError.from(thrown));
      }
    }
    for (const waiter of this.#roomWaiters.splice(0)) void other.room().then(waiter);
    if (this.pending > 0) return;
    for (const waiter of this.#flushWaiters.splice(0)) void other.flushed().then(waiter.resolve, waiter.reject);
  }

  #drop(): void {
    this.#queue = new Fifo();
    this.#queueBytes = 0;
    this.#session.abandon();
    this.#wake();
  }

  // ── towards the peer ───────────────────────────────────────────────────────────────────────────────────────────

  #schedulePump(): void {
    if (this.#pumping || !this.open || (this.#queue.length === 0 && !this.#session.isBehind)) return;
    this.#pumping = true;
    void settled.then(this.#pumpTurn);
  }

  #pump(): void {
    while (this.open && this.#pipe !== undefined) {
      const unit = this.#session.isBehind ? this.#nextAgain() : this.#nextUnit();
      if (unit === undefined) {
        this.#wake();
        return;
      }
      this.#session.send(this.#isBrief ? { ...unit, ...nothing, messages: unit.messages.filter(({ isAwaited }) => isAwaited) } : unit);
      this.#pipe.send(unit.parts, unit.pointers, unit.places);
    }
  }

  /** A unit that a broken pipe may have lost, with its present number. It does not go to its places: the receiver may have had it, only not
   *  said so, and may use that memory for other things. */
  #nextAgain(): DataUnit | undefined {
    const unit = this.#session.again();
    if (unit === undefined) return undefined;
    // The transport may still hold the old buffer; it must not change under it.
    const first = Buffer.from(unit.parts[0]);
    rebaseSequence(first, this.#session.sent);
    refreshCounters(first, this.#session.counters);
    return { ...unit, parts: [first, ...unit.parts.slice(1)], places: noPlaces };
  }

  #nextUnit(): DataUnit | undefined {
    const { roomMessages, roomBytes, idle } = this.#session;
    const messages: Msg[] = [];
    let inline = 0;
    let cost = 0;
    while (messages.length < Math.min(packetMessages, roomMessages) && inline < packetInlineBytes && cost < packetCostBytes) {
      const msg = this.#queue.peek();
      if (msg === undefined) break;
      const bytes = messageCost(msg);
      // A message larger than the window goes alone, when nothing else is on its way.
      if (cost + bytes > roomBytes && (messages.length > 0 || !idle)) break;
      this.#queue.shift();
      this.#queueBytes -= bytes;
      try {
        // The peer may not have been known when it was queued.
        this.#checkPeerTakes(msg);
      } catch (thrown) {
        this.#options.onUndeliverable(msg, ShoalError.from(thrown));
        continue;
      }
      messages.push(msg);
      inline += inlineBytes(msg);
      cost += bytes;
    }
    if (messages.length === 0) return undefined;
    const { parts, pointers, places } = encodeData(messages, this.#session.sent, this.#session.counters);
    return { parts, pointers, places, messages, count: messages.length, cost };
  }

  #wake(): void {
    if (this.pending === 0) for (const waiter of this.#flushWaiters.splice(0)) waiter.resolve();
    if (this.#roomWaiters.length > 0 && this.#hasRoom()) for (const waiter of this.#roomWaiters.splice(0)) waiter();
  }

  // ── from the peer ──────────────────────────────────────────────────────────────────────────────────────────────

  #onData({ sequence, messages, bytes }: Extract<Packet, { kind: 3 }>): 'ok' | 'lost' {
    const known = this.#session.receive(sequence);
    if (known === 'lost') return 'lost';
    for (let k = known; k < messages.length; k++) {
      this.#session.arrived(bytes[k]);
      this.#options.deliver(this, messages[k], bytes[k]);
    }
    this.#scheduleCredit();
    this.#schedulePump();
    return 'ok';
  }

  #scheduleCredit(): void {
    if (this.#creditScheduled || this.#creditTimer !== undefined || !this.open) return;
    this.#creditScheduled = true;
    process.nextTick(this.#creditTurn);
  }

  #tellCounters(): void {
    if (!this.open) return;
    this.#session.noteTold();
    this.#pipe?.send([encodeControl('credit', this.#session.counters)]);
  }

  #greet(kind: 'hello' | 'welcome'): void {
    this.#session.noteTold();
    this.#pipe?.send([encodeGreeting(kind, this.#greeting, this.#session.counters)]);
  }

  get #greeting(): Greeting {
    const { own, limits } = this.#options;
    const { messageBytes, frames } = limits;
    return { ...this.#session.greeting, address: own, messageBytes, frames, brief: this.#isBrief };
  }

  // ── bounds ─────────────────────────────────────────────────────────────────────────────────────────────────────

  #hasRoom(): boolean {
    const { queueMessages, queueBytes } = this.#options.limits;
    return this.pending === 0 || (this.pending < queueMessages && this.#queueBytes + this.#session.pendingBytes < queueBytes);
  }

  #full(messages: number, bytes: number): ShoalError {
    const { address } = this.#options;
    const who = address === undefined ? 'the router' : formatAddress(address);
    const state = this.open ? 'does not take them' : 'is not connected';
    const message = `send: ${messages} messages with ${bytes} bytes wait for ${who}, which ${state}; await writable(), or raise queueMessages and queueBytes`;
    return new ShoalError('out-of-memory', message, { operation: 'send', bytes });
  }

  /** @throws ShoalError `usage`. */
  #checkPeerTakes(msg: Msg): void {
    checkMessage(msg, this.#peerTakes, 'of the receiver');
    const pipe = this.#pipe;
    if (msg.pointers.length === 0 || pipe === undefined || pipe.pointers) return;
    throw new ShoalError('usage', `send: format code p only works between threads, not over ${pipe.description}`, { operation: 'send' });
  }
}
