/** Waits for several sockets at once, whatever their backends. It must not know what they wait for. A socket that has ended
 *  is told once, when everything it had has been taken, and is none of the poller's any more. */
import { constants } from 'node:os';
import { systemClock, type Clock } from '../base/clock.ts';
import { ShoalError } from '../base/errors.ts';
import {
  abortSignal,
  anyList,
  anyNumber,
  anyObject,
  checkArgument,
  checkOptions,
  describeValue,
  noOptions,
  optionTable,
} from '../base/schema.ts';
import { MessageSocket } from './message-socket.ts';

/** Events that end a poller's waits. */
export interface PollerOptions {
  /** Ends waiting for good when it aborts. */
  readonly signal?: AbortSignal;
  /** Signals to this process that end waiting for good, until `close`. Default none. */
  readonly interruptOn?: readonly NodeJS.Signals[];
  /** Time of `wait`'s limit. Default: the system's. */
  readonly clock?: Clock;
}

const pollerOptions = optionTable<PollerOptions>({ signal: abortSignal, interruptOn: anyList, clock: anyObject });

/** Waits for the first of several sockets to have a message; turns go round, so that a busy socket does not starve the others.
 *
 *      const poller = new Poller([dealer, router]);
 *      for await (const socket of poller) if (!socket.ended) handle(await socket.receive());
 *      const socket = await poller.wait(1000);      // null: nothing came within a second */
export class Poller implements Disposable {
  /** The one that was returned last comes last, so that one busy socket does not starve the others. */
  readonly #sockets: MessageSocket[] = [];
  readonly #clock: Clock;
  readonly #interruptOn: readonly NodeJS.Signals[];
  readonly #onInterrupt = (): void => this.interrupt();
  readonly #closed = new AbortController();
  #allEnded = false;
  #terminated = false;
  #wake: (() => void) | undefined;

  constructor(sockets: MessageSocket | readonly MessageSocket[] = [], options: PollerOptions = noOptions) {
    checkOptions('Poller', options, pollerOptions);
    for (const name of options.interruptOn ?? [])
      if (!Object.hasOwn(constants.signals, name)) throw new ShoalError('usage', `Poller: there is no signal ${describeValue(name)}`);
    this.#clock = options.clock ?? systemClock;
    this.#interruptOn = options.interruptOn ?? [];
    for (const socket of Array.isArray(sockets) ? sockets : [sockets]) this.add(socket as MessageSocket);
    for (const name of this.#interruptOn) process.on(name, this.#onInterrupt);
    if (options.signal?.aborted) this.interrupt();
    else options.signal?.addEventListener('abort', this.#onInterrupt, { signal: this.#closed.signal });
  }

  /** Not to a wait that is under way. */
  add(socket: MessageSocket): void {
    checkSocket(socket);
    if (!this.#sockets.includes(socket)) this.#sockets.push(socket);
    this.#allEnded = false;
  }

  /** Removes a socket, also from a wait that is under way. @returns whether it was there. */
  remove(socket: MessageSocket): boolean {
    checkSocket(socket);
    const index = this.#sockets.indexOf(socket);
    if (index < 0) return false;
    this.#sockets.splice(index, 1);
    return true;
  }

  /** True for good after an interrupt: the loop around `wait` should end. */
  get terminated(): boolean {
    return this.#terminated;
  }

  /** A socket that has a message, or has ended, which its `receive` then throws; or null after `timeoutMs` or an interrupt.
   *  0 looks and does not wait; Infinity waits. One wait at a time.
   *  @throws ShoalError `usage` when another wait is under way, `closed` when all sockets have ended and were told. */
  async wait(timeoutMs: number): Promise<MessageSocket | null> {
    checkArgument('wait: timeoutMs', timeoutMs, anyNumber);
    if (this.#wake !== undefined) throw new ShoalError('usage', 'poller is waiting already; one wait at a time');
    if (this.#allEnded && !this.#terminated) throw new ShoalError('closed', 'all sockets of this poller have ended; add others');
    const ready = this.#terminated ? null : this.#find();
    if (ready !== null || this.#terminated || timeoutMs <= 0) return ready;
    await new Promise<void>((resolve) => {
      const ends = this.#sockets.map((socket) =>
        socket.watch(() => {
          if (this.#sockets.includes(socket)) this.#wake?.();
        }),
      );
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
    this.#closed.abort();
    this.#wake?.();
  }

  /** Every socket that `wait` would return, until all of them have ended, or until an interrupt or `close`. */
  async *[Symbol.asyncIterator](): AsyncGenerator<MessageSocket, void, undefined> {
    while (!this.#allEnded && !this.#terminated && !this.#closed.signal.aborted) {
      const socket = await this.wait(Infinity);
      if (socket !== null) yield socket;
    }
  }

  /** Calls `close`, for `using`. */
  [Symbol.dispose](): void {
    this.close();
  }

  #find(): MessageSocket | null {
    const socket = this.#sockets.find(({ ready }) => ready) ?? null;
    if (socket === null) return null;
    this.remove(socket);
    if (socket.ended) this.#allEnded = this.#sockets.length === 0;
    else this.#sockets.push(socket);
    return socket;
  }
}

function checkSocket(socket: MessageSocket): void {
  if (!(socket instanceof MessageSocket)) throw new ShoalError('usage', `Poller: ${describeValue(socket)} is no socket`);
}
