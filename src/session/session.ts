/** One end of a session: ordered delivery, each message exactly once, between two ends that may lose their connection or restart.
 *  A state machine without clock, sockets or formats: its owner carries units and greetings, over connections that keep order and
 *  lose all data in flight when they break, and passes arrivals to this machine.
 *
 *      send ─▶ retained ──────────────── unit ───────────────▶ receive ─▶ arrived ─▶ taken by the application
 *                 ▲ │ received by the peer                         │
 *                 │ └─▶ dropped      ◀──────── counters ───────────┘     received, consumed (opens the window)
 *                 └── sent again, in order, from where a greeting says
 *
 *  A *unit* is a run of messages with consecutive numbers that the owner sends at once. Each end has a random id, new when its
 *  process starts. A greeting has the own id, the last known id of the peer, and the counters of received messages:
 *
 *      the peer knows this id       goes on: missing messages are sent again, none twice
 *      it does not                  it starts from nothing: retained messages are numbered from 0 and sent
 *      its id is new here           its messages count from 0; `epoch` changes
 *
 *  Received messages survive a break of the connection, and are lost with the process that received them: a message is delivered
 *  once to each process that is the peer.
 *
 *  Sequence numbers with cumulative acknowledgements and windows are TCP's (RFC 9293); resumption by the state that each side has
 *  is that of MQTT 5 sessions (OASIS, §4.1 and §4.4). */
import { assert } from '../base/assert.ts';
import { ShoalError } from '../base/errors.ts';
import { Fifo } from '../base/collections/fifo.ts';

/** Progress of an end with the peer's messages. All counts are messages, or their bytes, since the peer's session began. */
export interface Counters {
  /** Messages that have arrived. */
  readonly received: number;
  /** Messages of those that the application has taken, and their bytes. */
  readonly consumed: number;
  readonly consumedBytes: number;
}

/** Limits of the messages that an end takes ahead of its application. */
export interface Window {
  readonly windowMessages: number;
  /** Most bytes; one larger message is let through alone. */
  readonly windowBytes: number;
}

export interface Greeting extends Window {
  /** Id of the end that greets. */
  readonly session: number;
  /** The id that the accompanying counters are about; 0: none. */
  readonly knownSession: number;
}

export interface Unit {
  /** Number of messages. */
  readonly count: number;
  readonly cost: number;
}

export interface SessionOptions<U extends Unit = Unit> extends Window {
  /** Random id of this process for this peer, not 0. */
  readonly id: number;
  /** Called when the peer has a unit, which is not sent again. */
  readonly onReceived?: (unit: U) => void;
}

export class Session<U extends Unit> {
  readonly #options: SessionOptions<U>;
  #peer = 0;
  #epoch = 0;
  #open = false;

  // State towards the peer.
  #retained = new Fifo<U>();
  /** Number of the first message in `#retained`. */
  #retainedFrom = 0;
  /** Retained units that have not been sent over the present connection yet. */
  #lost = new Fifo<U>();
  #lostMessages = 0;
  #lostBytes = 0;
  #sent = 0;
  #sentBytes = 0;
  #peerConsumed = 0;
  #peerConsumedBytes = 0;
  #window: Window;

  // State from the peer.
  #received = 0;
  #receivedBytes = 0;
  #consumed = 0;
  #consumedBytes = 0;
  #toldReceived = 0;
  #toldConsumed = 0;
  #toldConsumedBytes = 0;

  constructor(options: SessionOptions<U>) {
    assert(options.id !== 0, () => 'a session has an id');
    this.#options = options;
    this.#window = options;
  }

  /** True while units may be sent: the ends have greeted each other over the present connection. */
  get open(): boolean {
    return this.#open;
  }

  /** A number that changes when the peer is another process than before: earlier arrivals do not count for it. */
  get epoch(): number {
    return this.#epoch;
  }

  /** Id of the peer; 0 before it has greeted. */
  get peer(): number {
    return this.#peer;
  }

  // ── connection ─────────────────────────────────────────────────────────────────────────────────────────────────

  /** Closes the connection: it broke, or another one is about to take its place. Nothing moves before the next greeting. */
  close(): void {
    this.#open = false;
  }

  /** Forgets the peer, which will not come back; if it does, it starts from nothing. */
  forgetPeer(): void {
    this.#peer = 0;
  }

  /** Forgets the messages that the peer may not have: they are not sent again. */
  abandon(): void {
    this.#retained = new Fifo();
    this.#lost = new Fifo();
    this.#lostMessages = this.#lostBytes = 0;
    this.#retainedFrom = this.#sent;
  }

  get greeting(): Greeting {
    const { id, windowMessages, windowBytes } = this.#options;
    return { session: id, knownSession: this.#peer, windowMessages, windowBytes };
  }

  /** Takes a greeting of the peer. The owner answers a first greeting with its own, then sends the units that `again` gives.
   *  @throws ShoalError `protocol` when the peer claims something impossible. */
  greet(greeting: Greeting, counters: Counters): void {
    const resumes = this.#remembers(greeting, counters);
    if (greeting.session !== this.#peer) {
      this.#peer = greeting.session;
      this.#epoch++;
      this.#received = this.#receivedBytes = this.#consumed = this.#consumedBytes = 0;
      this.noteTold();
    }
    if (resumes) this.#drop(counters);
    else this.#retainedFrom = 0;
    this.#peerConsumed = resumes ? counters.consumed : 0;
    this.#peerConsumedBytes = resumes ? counters.consumedBytes : 0;
    this.#lose(resumes ? counters.received : 0);
    if (!resumes) this.#sentBytes = 0;
    this.#window = greeting;
    this.#open = true;
  }

  /** True if the peer goes on from the messages of ours that it has; else it has none: those of its last process are gone with
   *  it. A new process may know this id only because we have just greeted it: it has none then. */
  #remembers({ session, knownSession }: Greeting, counters: Counters): boolean {
    if (knownSession !== this.#options.id) return false;
    this.#check(counters);
    const missing = this.#retainedFrom - counters.received;
    if (missing <= 0) return true;
    if (session !== this.#peer && counters.received === 0) return false;
    throw new ShoalError('protocol', `peer has lost ${missing} of the messages that it had received`);
  }

  // ── sending ────────────────────────────────────────────────────────────────────────────────────────────────────

  /** Number of the next message. */
  get sent(): number {
    return this.#sent;
  }

  /** Number of messages that are retained. */
  get pending(): number {
    return this.#sent - this.#retainedFrom + this.#lostMessages;
  }

  /** True while units must be sent again, in order, before any other: `again` gives them, as far as there is room. */
  get isBehind(): boolean {
    return this.#lost.length > 0;
  }

  /** The unit to send next, with the number `sent`, of those that a broken connection may have lost; undefined when there is none
   *  or the window has no room for it. The owner calls `send` with it. */
  again(): U | undefined {
    const next = this.#lost.peek();
    if (next === undefined || !this.fits(next)) return undefined;
    this.#lost.shift();
    this.#lostMessages -= next.count;
    this.#lostBytes -= next.cost;
    return next;
  }

  /** True if the window has room for the unit, or nothing else is on its way. */
  fits({ count, cost }: Unit): boolean {
    return this.#sent === this.#peerConsumed || (count <= this.roomMessages && cost <= this.roomBytes);
  }

  /** Cost of the messages that the peer's application has not taken. */
  get pendingBytes(): number {
    // Consumption may run ahead of or behind the retained messages; the difference is within one window.
    return this.#lostBytes + (this.#retained.length === 0 ? 0 : this.#sentBytes - this.#peerConsumedBytes);
  }

  /** Number of messages that the window has room for. */
  get roomMessages(): number {
    return this.#window.windowMessages - (this.#sent - this.#peerConsumed);
  }

  get roomBytes(): number {
    return this.#window.windowBytes - (this.#sentBytes - this.#peerConsumedBytes);
  }

  /** True when the peer's application has taken everything: a message larger than the window may go alone. */
  get idle(): boolean {
    return this.#sent === this.#peerConsumed;
  }

  /** Records that a unit is being sent, with number `sent`; it is retained until the peer has it. */
  send(unit: U): void {
    this.#retained.push(unit);
    this.#sent += unit.count;
    this.#sentBytes += unit.cost;
    this.noteTold();
  }

  /** Takes the peer's counters, which come with everything it sends. @returns true if anything changed.
   *  @throws ShoalError `protocol` when the peer claims something impossible. */
  acknowledge(counters: Counters): boolean {
    this.#check(counters);
    const { received, consumed, consumedBytes } = counters;
    if (received <= this.#retainedFrom && consumed <= this.#peerConsumed) return false;
    this.#peerConsumed = Math.max(this.#peerConsumed, consumed);
    this.#peerConsumedBytes = Math.max(this.#peerConsumedBytes, consumedBytes);
    this.#drop(counters);
    return true;
  }

  #check({ received, consumed }: Counters): void {
    if (received <= this.#sent && consumed <= received) return;
    throw new ShoalError('protocol', `peer claims ${received} messages received and ${consumed} taken of ${this.#sent} sent`);
  }

  /** Forgets messages that the peer has. */
  #drop({ received }: Counters): void {
    for (let next = this.#retained.peek(); next !== undefined; next = this.#retained.peek()) {
      if (this.#retainedFrom + next.count > received) break;
      this.#retainedFrom += next.count;
      this.#retained.shift();
      this.#options.onReceived?.(next);
    }
  }

  /** Keeps the messages that the peer has not received to send them again. */
  #lose(received: number): void {
    const sentBefore = this.#retained;
    const lostBefore = this.#lost;
    this.#retained = new Fifo();
    this.#lost = new Fifo();
    this.#sent = this.#retainedFrom;
    for (let unit = sentBefore.shift(); unit !== undefined; unit = sentBefore.shift()) {
      if (this.#lost.length === 0 && this.#sent + unit.count <= received) {
        this.#retained.push(unit);
        this.#sent += unit.count;
      } else {
        this.#lost.push(unit);
        this.#lostMessages += unit.count;
        this.#lostBytes += unit.cost;
        this.#sentBytes -= unit.cost;
      }
    }
    for (let unit = lostBefore.shift(); unit !== undefined; unit = lostBefore.shift()) this.#lost.push(unit);
  }

  // ── receiving ──────────────────────────────────────────────────────────────────────────────────────────────────

  /** Takes a unit that has come. @returns the number of its first messages that are here already; `lost` when messages before it
   *  are missing:
   *         the ends must greet again. The owner calls `arrived` for each of the others, in order. */
  receive(sequence: number): number | 'lost' {
    const known = this.#received - sequence;
    return known < 0 ? 'lost' : known;
  }

  /** Counts one message that is here. A correct peer keeps to the window it was told, so the number of waiting messages is
   *  bounded whatever it does. @throws ShoalError `protocol` beyond the window. */
  arrived(bytes: number): void {
    this.#received++;
    this.#receivedBytes += bytes;
    const { windowMessages, windowBytes } = this.#options;
    const waiting = this.#received - this.#consumed;
    const waitingBytes = this.#receivedBytes - this.#consumedBytes;
    if (waiting <= windowMessages && (waitingBytes <= windowBytes || waiting === 1)) return;
    const message = `peer sent ${waiting} messages with ${waitingBytes} bytes ahead; its window is ${windowMessages} and ${windowBytes}`;
    throw new ShoalError('protocol', message);
  }

  /** Counts a message that the application has taken, and that arrived in `epoch`. @returns false when that was another peer's. */
  taken(epoch: number, bytes: number): boolean {
    if (epoch !== this.#epoch) return false;
    this.#consumed++;
    this.#consumedBytes += bytes;
    return true;
  }

  get counters(): Counters {
    return { received: this.#received, consumed: this.#consumed, consumedBytes: this.#consumedBytes };
  }

  // ── counters told to the peer ──────────────────────────────────────────────────────────────────────────────────

  /** Notes that the counters have gone out, with any frame; the owner calls it for all frames but units. Messages that are taken
   *  between a greeting and its answer are reported afterwards: the peer may wait for it. */
  noteTold(): void {
    this.#toldReceived = this.#received;
    this.#toldConsumed = this.#consumed;
    this.#toldConsumedBytes = this.#consumedBytes;
  }

  get untold(): boolean {
    return this.#received !== this.#toldReceived || this.#consumed !== this.#toldConsumed;
  }

  /** True when a quarter of the window has been taken since the peer was told: it may be about to stop. */
  get isDue(): boolean {
    const { windowMessages, windowBytes } = this.#options;
    return (
      (this.#consumed - this.#toldConsumed) * 4 >= windowMessages || (this.#consumedBytes - this.#toldConsumedBytes) * 4 >= windowBytes
    );
  }
}
