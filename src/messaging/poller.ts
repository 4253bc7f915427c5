/** Waits for several sockets at once, whatever their backends. It must not know what they wait for. */
import { systemClock, type Clock } from '../base/clock.ts';
import { ShoalError } from '../base/errors.ts';
import type { MessageSocket } from './message-socket.ts';

export interface PollerOptions {
  /** Ends waiting for good when it aborts. */
  readonly signal?: AbortSignal;
  /** Signals to this process that end waiting for good, until `close`. Default none. */
  readonly interruptOn?: readonly NodeJS.Signals[];
  readonly clock?: Clock;
}

export class Poller implements Disposable {
  readonly #sockets: MessageSocket[] = [];
  readonly #clock: Clock;
  readonly #interruptOn: readonly NodeJS.Signals[];
  readonly #signal: AbortSignal | undefined;
  readonly #onInterrupt = (): void => this.interrupt();
  /** Where looking begins, so that one busy socket does not starve the others. */
  #next = 0;
  #terminated = false;
  #wake: (() => void) | undefined;

  constructor(sockets: MessageSocket | readonly MessageSocket[] = [], options: PollerOptions = {}) {
    this.#clock = options.clock ?? systemClock;
    this.#interruptOn = options.interruptOn ?? [];
    this.#signal = options.signal;
    for (const socket of Array.isArray(sockets) ? sockets : [sockets]) this.add(socket as MessageSocket);
    for (const name of this.#interruptOn) process.on(name, this.#onInterrupt);
    if (options.signal?.aborted) this.interrupt();
    else options.signal?.addEventListener('abort', this.#onInterrupt, { once: true });
  }

  add(socket: MessageSocket): void {
    if (!this.#sockets.includes(socket)) this.#sockets.push(socket);
  }

  /** True for good after an interrupt: the loop around `wait` should end. */
  get terminated(): boolean {
    return this.#terminated;
  }

  /** A socket that has a message (or has ended, which its `receive` then throws), or null after `timeoutMs` or an
   *  interrupt. 0 looks and does not wait; Infinity waits. One wait at a time.
   *  @throws ShoalError `usage` when another wait is under way. */
  async wait(timeoutMs: number): Promise<MessageSocket | null> {
    if (this.#wake !== undefined) throw new ShoalError('usage', 'poller is waiting already; one wait at a time');
    const ready = this.#terminated ? null : this.#find();
    if (ready !== null || this.#terminated || timeoutMs <= 0) return ready;
    await new Promise<void>((resolve) => {
      const ends = this.#sockets.map((socket) => socket.watch(() => this.#wake?.()));
      const timer = timeoutMs === Infinity ? undefined : this.#clock.setTimer(timeoutMs, () => this.#wake?.(), { keepAlive: true });
      this.#wake = () => {
        this.#wake = undefined;
        timer?.cancel();
        for (const end of ends) end();
        resolve();
      };
    });
    return this.#terminated ? null : this.#find();
  }

  /** Ends the wait under way and all later ones. */
  interrupt(): void {
    this.#terminated = true;
    this.#wake?.();
  }

  /** Stops listening to signals; a wait under way ends. Idempotent. */
  close(): void {
    for (const name of this.#interruptOn) process.removeListener(name, this.#onInterrupt);
    this.#signal?.removeEventListener('abort', this.#onInterrupt);
    this.#wake?.();
  }

  [Symbol.dispose](): void {
    this.close();
  }

  #find(): MessageSocket | null {
    const count = this.#sockets.length;
    for (let k = 0; k < count; k++) {
      const socket = this.#sockets[(this.#next + k) % count];
      if (!socket.ready) continue;
      this.#next = (this.#next + k + 1) % count;
      return socket;
    }
    return null;
  }
}
