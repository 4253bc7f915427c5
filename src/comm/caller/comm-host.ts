/** A channel to a guest of the comm thread, as its user sees it: a port to that thread, or the same thread for tests and simulation.
 *
 *      main thread                         comm thread
 *        post(command) ───── port ─────────▶ GuestPort: onCommand
 *        postLater ───────── timer ────────▶ GuestPort: onCommand, unless taken back (postponed.ts)
 *        drain / onEvent ◀── port ────────── GuestPort: emit, then events += 1 and notify      (block sleeps on `events`) */
import { existsSync } from 'node:fs';
import { receiveMessageOnPort, type MessagePort, type Transferable } from 'node:worker_threads';
import type { Clock, Timer } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import { Fifo } from '../../base/collections/fifo.ts';
import type { Postponed } from '../shared/postponed.ts';
import { eventCount, threadNumber, type PortEnd } from '../shared/thread-protocol.ts';

export interface CommHost<Command> {
  post(command: Command, transfer?: readonly Transferable[]): void;
  /** After `delayNs`, less than a second, or as soon as another one is posted. */
  postLater(command: Command, delayNs: number): TakeBack;
  /** Delivers what has arrived, now, without returning to the event loop. */
  drain(): void;
  /** Blocks until something arrives, at most `timeoutMs`; false when this host cannot block. */
  block(timeoutMs: number): boolean;
  /** Pending work keeps the process alive. */
  keepAlive(on: boolean): void;
  /** Nothing is delivered any more. A guest that has not ended does so now; resolves when it has. */
  leave(): Promise<void>;
}

/** False: it is on its way. */
export type TakeBack = () => boolean;

export interface CommHostHandlers<Event> {
  onEvent(event: Event): void;
  /** The other side is gone without having been asked. */
  onLost(error: ShoalError): void;
}

const onItsWay: TakeBack = () => false;

/** Whoever blocks cannot be told that the comm thread has died: it looks so often. */
const lookMs = 1000;

interface PortHostOptions {
  readonly onLeave?: (() => Promise<void>) | undefined;
  readonly postponed?: Postponed | undefined;
}

export class PortHost<Command, Event> implements CommHost<Command> {
  readonly #port: MessagePort;
  readonly #events: Int32Array;
  readonly #handlers: CommHostHandlers<Event>;
  readonly #onLeave: () => Promise<void>;
  readonly #postponed: Postponed | undefined;
  /** Postponed, unless the other end has it. */
  #later: Command | undefined;
  /** Commands posted by the port, modulo 2³². */
  #posted = 0;
  #seen = 0;
  #ended = false;

  constructor({ port, events }: PortEnd, handlers: CommHostHandlers<Event>, { onLeave = async () => {}, postponed }: PortHostOptions = {}) {
    this.#port = port;
    this.#events = new Int32Array(events);
    this.#handlers = handlers;
    this.#onLeave = onLeave;
    this.#postponed = postponed;
    port.on('message', (event: Event) => this.#deliver(event));
  }

  post(command: Command, transfer: readonly Transferable[] = []): void {
    this.#flush();
    this.#send(command, transfer);
  }

  postLater(command: Command, delayNs: number): TakeBack {
    this.#flush();
    if (!this.#postponed?.put(command, delayNs, this.#posted)) {
      this.#send(command);
      return onItsWay;
    }
    this.#later = command;
    return () => this.#later === command && this.#takeBack();
  }

  /** Commands arrive in their order. */
  #flush(): void {
    const later = this.#later;
    if (later !== undefined && this.#takeBack()) this.#send(later);
  }

  #send(command: Command, transfer: readonly Transferable[] = []): void {
    this.#port.postMessage(command, transfer);
    // A command that cannot be posted throws, and the other end does not wait for it.
    this.#posted = (this.#posted + 1) | 0;
  }

  #takeBack(): boolean {
    this.#later = undefined;
    return this.#postponed!.takeBack();
  }

  drain(): void {
    if (Atomics.load(this.#events, eventCount) === this.#seen) return;
    for (let next = receiveMessageOnPort(this.#port); next !== undefined; next = receiveMessageOnPort(this.#port)) {
      this.#deliver(next.message as Event);
    }
  }

  block(timeoutMs: number): boolean {
    const woken = Atomics.wait(this.#events, eventCount, this.#seen, Math.min(timeoutMs, lookMs)) !== 'timed-out';
    if (!woken && this.#isAlone()) this.end(new ShoalError('system', 'the comm thread has ended'));
    return true;
  }

  keepAlive(on: boolean): void {
    if (on) this.#port.ref();
    else this.#port.unref();
  }

  /** The comm thread is gone. What it said last counts: it may still wait to be heard. Idempotent. */
  end(error: ShoalError): void {
    if (this.#ended) return;
    this.drain();
    this.#ended = true;
    this.#handlers.onLost(error);
  }

  async leave(): Promise<void> {
    this.#ended = true;
    this.#flush();
    this.#port.close();
    await this.#onLeave();
    this.#postponed?.close();
  }

  #deliver(event: Event): void {
    this.#seen = (this.#seen + 1) | 0;
    if (!this.#ended) this.#handlers.onEvent(event);
  }

  #isAlone(): boolean {
    const thread = Atomics.load(this.#events, threadNumber);
    return thread !== 0 && !existsSync(`/proc/self/task/${thread}`);
  }
}

/** The other end is used by another thread of this process. */
export function joinGuest<Command, Event>(end: PortEnd, handlers: CommHostHandlers<Event>): CommHost<Command> {
  const host = new PortHost<Command, Event>(end, handlers);
  end.port.on('close', () => host.end(new ShoalError('system', 'the comm thread has ended')));
  return host;
}

/** A guest that runs on the calling thread. */
interface InlineGuest<Command> {
  start(): Promise<void>;
  handle(command: Command): void;
}

export interface InlineTime {
  /** The clock of postponed commands. Default: no command is postponed. */
  readonly clock?: Clock | undefined;
  /** Calls back later: when a command or an event arrives. Default: before anything else that is not on its way yet. */
  readonly turn?: ((callback: () => void) => void) | undefined;
}

/** The guest on the calling thread. Nothing can block for it. */
export class InlineHost<Command, Event> implements CommHost<Command> {
  readonly #clock: Clock | undefined;
  readonly #send: (command: Command) => void;
  #guest: InlineGuest<Command> | undefined;
  #later: { readonly command: Command; readonly timer: Timer } | undefined;

  constructor(
    create: (emit: (event: Event) => void) => InlineGuest<Command>,
    handlers: CommHostHandlers<Event>,
    { clock, turn = queueMicrotask }: InlineTime = {},
  ) {
    this.#clock = clock;
    this.#send = inOrder(turn, (command) => this.#guest?.handle(command));
    // Events arrive as from a thread: never inside the call that caused them.
    this.#guest = create(inOrder(turn, (event) => this.#guest && handlers.onEvent(event)));
    void this.#guest.start();
  }

  post(command: Command): void {
    this.#flush();
    this.#send(command);
  }

  postLater(command: Command, delayNs: number): TakeBack {
    this.#flush();
    const timer = this.#clock?.setTimer(delayNs / 1e6, () => this.#flush());
    if (timer === undefined) {
      this.post(command);
      return onItsWay;
    }
    const later = { command, timer };
    this.#later = later;
    return () => this.#later === later && this.#takeBack() !== undefined;
  }

  #flush(): void {
    const command = this.#takeBack();
    if (command !== undefined) this.post(command);
  }

  #takeBack(): Command | undefined {
    const later = this.#later;
    this.#later = undefined;
    later?.timer.cancel();
    return later?.command;
  }

  drain(): void {}

  block(): boolean {
    return false;
  }

  keepAlive(): void {}

  leave(): Promise<void> {
    this.#takeBack();
    this.#guest = undefined;
    return Promise.resolve();
  }
}

/** Delays calls, and keeps their order whatever the order of turns. */
function inOrder<T>(turn: (callback: () => void) => void, deliver: (item: T) => void): (item: T) => void {
  const onTheirWay = new Fifo<T>();
  return (item) => {
    onTheirWay.push(item);
    turn(() => deliver(onTheirWay.shift()!));
  };
}
