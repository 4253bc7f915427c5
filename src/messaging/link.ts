/** One direction-pair between a socket and one peer: a bounded queue towards an address, with or without a pipe under it.
 *  It packs messages into packets, keeps them until the peer has them, opens and closes the window, and resumes where it
 *  stopped when a pipe comes back. It must not know sockets, routes or backends.
 *
 *    send → queue ──pack──▶ retained ──pipe──▶ peer          queue: bounded; refuses beyond
 *                             ▲    │ received                retained: sent, not yet at the peer; sent again on resume
 *                 hello/welcome    └─▶ dropped               window: sent, not yet taken by the peer's application
 *
 *  Two ends know each other by a session number each. Greeting, both ways the same:
 *  - Both know the other's session: each says how many messages it has; the rest is sent again, none twice.
 *  - The peer has another session than before, or does not know ours: it is a new process, or has nothing yet. Both
 *    directions count from 0 again, beginning with what we hold. What a dead process had received is gone with it. */
import { assert } from '../base/assert.ts';
import type { Clock, Timer } from '../base/clock.ts';
import { ShoalError } from '../base/errors.ts';
import { Fifo } from '../fabric/fifo.ts';
import { formatAddress, type Address } from './address.ts';
import type { Pipe } from './backend.ts';
import type { MessagingLimits } from './limits.ts';
import type { Msg } from './msg.ts';
import {
  encodeControl,
  encodeData,
  encodeGreeting,
  inlineBytes,
  messageCost,
  rebaseSequence,
  refreshCounters,
  type Counters,
  type Greeting,
  type Packet,
} from './wire.ts';

/** A packet is closed when it has this much inline, or costs this much with its large frames. */
const packetInlineBytes = 64 * 1024;
const packetCostBytes = 1024 * 1024;
const packetMessages = 1024;
/** How long a counter may wait for data to travel with. */
const creditDelayMs = 2;
/** Its `then` is a microtask; node's `queueMicrotask` makes an `AsyncResource` each time. */
const settled = Promise.resolve();

export interface LinkOptions {
  /** Random, not 0. */
  readonly session: number;
  /** Of this end. */
  readonly own: Address;
  /** Of the other end; for a dealer, whose router has no address, undefined. */
  readonly peer: Address | undefined;
  readonly limits: MessagingLimits;
  readonly clock: Clock;
  deliver(link: Link, msg: Msg, bytes: number): void;
  /** A message that was accepted cannot be delivered after all. */
  onUndeliverable(msg: Msg, error: ShoalError): void;
}

interface Retained {
  readonly parts: Uint8Array[];
  readonly pointers: Uint8Array[];
  readonly count: number;
  readonly cost: number;
}

export class Link {
  readonly #options: LinkOptions;
  #pipe: Pipe | undefined;
  /** The peer has answered our greeting, or we its: data may flow. */
  #open = false;
  #peerSession = 0;
  /** Changes with the peer's session: what arrived before does not count afterwards. */
  epoch = 0;

  // Towards the peer; numbers count messages of this session.
  readonly #queue = new Fifo<Msg>();
  #queueBytes = 0;
  #retained = new Fifo<Retained>();
  /** Number of the first message in `#retained`. */
  #retainedFrom = 0;
  #sent = 0;
  #sentBytes = 0;
  #peerConsumed = 0;
  #peerConsumedBytes = 0;
  #windowMessages: number;
  #windowBytes: number;

  // From the peer.
  #received = 0;
  #receivedBytes = 0;
  #consumed = 0;
  #consumedBytes = 0;
  #toldReceived = 0;
  #toldConsumed = 0;
  #toldConsumedBytes = 0;
  #creditScheduled = false;
  #creditTimer: Timer | undefined;
  /** After all that promises trigger: an answer that was sent at once has told the counters. Then no timer is started;
   *  one that is due soon makes each wait of the event loop set the hardware's. */
  readonly #creditTurn = (): void => {
    this.#creditScheduled = false;
    if (!this.#open || !this.#untold) return;
    this.#creditTimer = this.#options.clock.setTimer(creditDelayMs, () => {
      this.#creditTimer = undefined;
      if (this.#untold) this.#tellCounters();
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

  constructor(options: LinkOptions) {
    this.#options = options;
    this.#windowMessages = options.limits.windowMessages;
    this.#windowBytes = options.limits.windowBytes;
  }

  get peer(): Address | undefined {
    return this.#options.peer;
  }

  get pipe(): Pipe | undefined {
    return this.#pipe;
  }

  get open(): boolean {
    return this.#open;
  }

  /** Messages that the peer does not have yet. */
  get pending(): number {
    return this.#queue.length + this.#sent - this.#retainedFrom;
  }

  /** @throws ShoalError `out-of-memory` when the peer does not take what is queued for it. */
  enqueue(msg: Msg): void {
    const { limits } = this.#options;
    const cost = messageCost(msg);
    if (cost > limits.messageBytes || msg.frameCount > limits.frames) {
      throw new ShoalError(
        'usage',
        `message of ${cost} bytes in ${msg.frameCount} frames is beyond the limits (${limits.messageBytes} bytes, ${limits.frames} frames)`,
        { bytes: cost },
      );
    }
    if (msg.pointers.length > 0 && this.#pipe?.pointers === false) throw this.#pointerError();
    // After `room` any message is taken: the bound in bytes may be passed by one of them.
    if (!this.#hasRoom()) throw this.#full(this.pending, this.#queueBytes + this.#retainedBytes());
    msg.markSent();
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
    if (epoch !== this.epoch) return;
    this.#consumed++;
    this.#consumedBytes += bytes;
    const { windowMessages, windowBytes } = this.#options.limits;
    if ((this.#consumed - this.#toldConsumed) * 4 >= windowMessages || (this.#consumedBytes - this.#toldConsumedBytes) * 4 >= windowBytes) {
      this.#tellCounters();
    } else this.#scheduleCredit();
  }

  // ── pipe and greeting ──────────────────────────────────────────────────────────────────────────────────────────

  /** @returns the pipe it had. Nothing flows before `greet`. */
  attach(pipe: Pipe): Pipe | undefined {
    const previous = this.#pipe;
    this.#pipe = pipe;
    this.#open = false;
    return previous === pipe ? undefined : previous;
  }

  /** The pipe is gone; what the peer does not have stays here. */
  detach(): void {
    this.#pipe = undefined;
    this.#open = false;
    this.#creditTimer?.cancel();
    this.#creditTimer = undefined;
  }

  /** Says who we are. Whatever arrives before the answer is ignored: it will be sent again. */
  sayHello(): void {
    this.#open = false;
    this.#pipe?.send([encodeGreeting('hello', this.#greeting(), this.#counters())]);
  }

  /** Takes up where the two ends left off; answers a hello. */
  greet(packet: Packet & Greeting): void {
    const resumes = packet.session === this.#peerSession && packet.knownSession === this.#options.session;
    if (resumes) this.#checkCounters(packet);
    if (packet.session !== this.#peerSession) {
      this.#peerSession = packet.session;
      this.epoch++;
      this.#received = this.#receivedBytes = this.#consumed = this.#consumedBytes = 0;
    }
    if (resumes) this.#drop(packet);
    else this.#rebase();
    this.#windowMessages = packet.windowMessages;
    this.#windowBytes = packet.windowBytes;
    this.#open = true;
    if (packet.kind === 1) this.#pipe?.send([encodeGreeting('welcome', this.#greeting(), this.#counters())]);
    this.#noteTold();
    this.#resend();
    this.#schedulePump();
  }

  /** Data or counters. @returns 'lost' when messages before these are missing: the ends must greet again. */
  onPacket(packet: Packet): 'ok' | 'lost' {
    if (!this.#open) return 'ok';
    this.#checkCounters(packet);
    if (packet.received > this.#retainedFrom || packet.consumed > this.#peerConsumed) this.#drop(packet);
    if (packet.kind === 3) return this.#onData(packet);
    this.#schedulePump();
    return 'ok';
  }

  /** Last words; the pipe is then the caller's to close. */
  sayGoodbye(): void {
    this.#pipe?.send([encodeControl('goodbye', this.#counters())]);
  }

  /** The peer will not come back: it starts from nothing if it does. */
  forgetPeer(): void {
    this.#peerSession = 0;
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
  moveTo(other: Link): void {
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

  // ── towards the peer ───────────────────────────────────────────────────────────────────────────────────────────

  #schedulePump(): void {
    if (this.#pumping || !this.#open || this.#queue.length === 0) return;
    this.#pumping = true;
    void settled.then(this.#pumpTurn);
  }

  #pump(): void {
    while (this.#open && this.#pipe !== undefined) {
      const packet = this.#nextPacket();
      if (packet === undefined) {
        this.#wake();
        return;
      }
      this.#retained.push(packet);
      this.#sent += packet.count;
      this.#sentBytes += packet.cost;
      this.#noteTold();
      this.#pipe.send(packet.parts, packet.pointers);
    }
  }

  #nextPacket(): Retained | undefined {
    const roomMessages = this.#windowMessages - (this.#sent - this.#peerConsumed);
    const roomBytes = this.#windowBytes - (this.#sentBytes - this.#peerConsumedBytes);
    const messages: Msg[] = [];
    let inline = 0;
    let cost = 0;
    while (messages.length < Math.min(packetMessages, roomMessages) && inline < packetInlineBytes && cost < packetCostBytes) {
      const msg = this.#queue.peek();
      if (msg === undefined) break;
      const bytes = messageCost(msg);
      // A message larger than the window goes alone, when nothing else is on its way.
      if (cost + bytes > roomBytes && (messages.length > 0 || this.#sent > this.#peerConsumed)) break;
      this.#queue.shift();
      this.#queueBytes -= bytes;
      if (msg.pointers.length > 0 && this.#pipe?.pointers === false) {
        this.#options.onUndeliverable(msg, this.#pointerError());
        continue;
      }
      messages.push(msg);
      inline += inlineBytes(msg);
      cost += bytes;
    }
    if (messages.length === 0) return undefined;
    const { parts, pointers } = encodeData(messages, this.#sent, this.#counters());
    return { parts, pointers, count: messages.length, cost };
  }

  #checkCounters({ received, consumed }: Counters): void {
    if (received <= this.#sent && consumed <= received) return;
    throw new ShoalError('protocol', `peer claims ${received} messages received and ${consumed} taken of ${this.#sent} sent`);
  }

  /** Forgets what the peer has, by its counters. */
  #drop(counters: Counters): void {
    this.#peerConsumed = Math.max(this.#peerConsumed, counters.consumed);
    this.#peerConsumedBytes = Math.max(this.#peerConsumedBytes, counters.consumedBytes);
    for (let next = this.#retained.peek(); next !== undefined; next = this.#retained.peek()) {
      if (this.#retainedFrom + next.count > counters.received) break;
      this.#retainedFrom += next.count;
      this.#retained.shift();
    }
    this.#wake();
  }

  #wake(): void {
    if (this.pending === 0) for (const waiter of this.#flushWaiters.splice(0)) waiter.resolve();
    if (this.#roomWaiters.length > 0 && this.#hasRoom()) for (const waiter of this.#roomWaiters.splice(0)) waiter();
  }

  /** Numbers what is retained from 0, for a peer that counts from 0. */
  #rebase(): void {
    const kept = this.#retained;
    this.#retained = new Fifo();
    this.#retainedFrom = this.#sent = this.#sentBytes = this.#peerConsumed = this.#peerConsumedBytes = 0;
    for (let next = kept.shift(); next !== undefined; next = kept.shift()) {
      rebaseSequence(next.parts[0], this.#sent);
      this.#retained.push(next);
      this.#sent += next.count;
      this.#sentBytes += next.cost;
    }
  }

  #resend(): void {
    const again = this.#retained;
    this.#retained = new Fifo();
    for (let next = again.shift(); next !== undefined; next = again.shift()) {
      // The transport may still hold the old buffer; it must not change under it.
      const parts = [Buffer.from(next.parts[0]), ...next.parts.slice(1)];
      refreshCounters(parts[0], this.#counters());
      this.#retained.push({ ...next, parts });
      this.#pipe?.send(parts, next.pointers);
    }
  }

  // ── from the peer ──────────────────────────────────────────────────────────────────────────────────────────────

  #onData(packet: Extract<Packet, { kind: 3 }>): 'ok' | 'lost' {
    const known = this.#received - packet.sequence;
    if (known < 0) return 'lost';
    const { messages, bytes } = packet;
    for (let k = known; k < messages.length; k++) {
      this.#received++;
      this.#receivedBytes += bytes[k];
      this.#checkWindow();
      this.#options.deliver(this, messages[k], bytes[k]);
    }
    this.#scheduleCredit();
    this.#schedulePump();
    return 'ok';
  }

  /** A correct peer keeps to the window it was told, so the inbox is bounded whatever the peer does. */
  #checkWindow(): void {
    const { windowMessages, windowBytes } = this.#options.limits;
    const messages = this.#received - this.#consumed;
    const bytes = this.#receivedBytes - this.#consumedBytes;
    if (messages <= windowMessages && (bytes <= windowBytes || messages === 1)) return;
    throw new ShoalError(
      'protocol',
      `peer sent ${messages} messages with ${bytes} bytes ahead; its window is ${windowMessages} and ${windowBytes}`,
    );
  }

  #scheduleCredit(): void {
    if (this.#creditScheduled || this.#creditTimer !== undefined || !this.#open) return;
    this.#creditScheduled = true;
    process.nextTick(this.#creditTurn);
  }

  get #untold(): boolean {
    return this.#received !== this.#toldReceived || this.#consumed !== this.#toldConsumed;
  }

  #tellCounters(): void {
    if (!this.#open) return;
    this.#noteTold();
    this.#pipe?.send([encodeControl('credit', this.#counters())]);
  }

  #noteTold(): void {
    this.#toldReceived = this.#received;
    this.#toldConsumed = this.#consumed;
    this.#toldConsumedBytes = this.#consumedBytes;
  }

  #counters(): Counters {
    return { received: this.#received, consumed: this.#consumed, consumedBytes: this.#consumedBytes };
  }

  #greeting(): Greeting {
    const { session, own, limits } = this.#options;
    const { windowMessages, windowBytes } = limits;
    return { session, knownSession: this.#peerSession, address: own, windowMessages, windowBytes };
  }

  // ── bounds ─────────────────────────────────────────────────────────────────────────────────────────────────────

  #retainedBytes(): number {
    // Consumption may run ahead of or behind what is retained; the difference is within one window.
    return this.#retained.length === 0 ? 0 : this.#sentBytes - this.#peerConsumedBytes;
  }

  #hasRoom(): boolean {
    const { queueMessages, queueBytes } = this.#options.limits;
    return this.pending === 0 || (this.pending < queueMessages && this.#queueBytes + this.#retainedBytes() < queueBytes);
  }

  #full(messages: number, bytes: number): ShoalError {
    const { peer } = this.#options;
    const who = peer === undefined ? 'the router' : formatAddress(peer);
    const state = this.#open ? 'does not take them' : 'is not connected';
    return new ShoalError(
      'out-of-memory',
      `send: ${messages} messages with ${bytes} bytes wait for ${who}, which ${state}; await writable(), or raise queueMessages and queueBytes`,
      { operation: 'send', bytes },
    );
  }

  #pointerError(): ShoalError {
    assert(this.#pipe !== undefined, () => 'only a pipe can refuse pointers');
    return new ShoalError('usage', `send: format code p only works between threads, not over ${this.#pipe.description}`, {
      operation: 'send',
    });
  }
}
