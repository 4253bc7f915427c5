/** Progress of the connections of one fabric: libfabric moves nothing unless its queues are polled. Connections with a descriptor
 *  are polled when it is readable and after each post; the others for some turns of the event loop after an event, then every
 *  millisecond as long as they wait for something, else when they are woken. It must not know what it polls. */
import type { Clock, Timer } from '../../../base/clock.ts';

/** Turns of the event loop without an event, after which polls are `idleMs` apart. */
const idleTurnsMax = 30;
const idleMs = 1;

export interface Polled {
  /** Handles events and returns their number; −1: none came, but the descriptor will not tell of the next. */
  poll(): number;
  /** True when no descriptor will tell of the next event. */
  readonly wantsPolling: boolean;
  /** Asks to sleep; true when it will be woken, so that nobody has to poll it. */
  sleep(): boolean;
}

export class LibfabricProgress {
  readonly #clock: Clock;
  readonly #active = new Set<Polled>();
  #idleTurns = 0;
  #scheduled = false;
  #timer: Timer | undefined;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Polls from now on, as something was posted or the descriptor is readable. */
  wake(polled: Polled): void {
    this.#active.add(polled);
    this.#idleTurns = 0;
    this.#timer?.cancel();
    this.#timer = undefined;
    this.#schedule();
  }

  /** Called from the event loop when the descriptor is readable. */
  onReadable(polled: Polled): void {
    if (polled.poll() !== 0 || polled.wantsPolling) this.wake(polled);
  }

  forget(polled: Polled): void {
    this.#active.delete(polled);
  }

  close(): void {
    this.#active.clear();
    this.#timer?.cancel();
  }

  #schedule(): void {
    if (this.#scheduled) return;
    this.#scheduled = true;
    setImmediate(this.#onTurn);
  }

  readonly #onTurn = (): void => {
    this.#scheduled = false;
    this.#idleTurns++;
    for (const polled of this.#active) {
      if (polled.poll() !== 0) this.#idleTurns = 0;
      else if (!polled.wantsPolling) this.#active.delete(polled);
    }
    if (this.#active.size === 0 || this.#timer !== undefined) return;
    if (this.#idleTurns < idleTurnsMax) {
      this.#schedule();
      return;
    }
    for (const polled of this.#active) if (polled.sleep()) this.#active.delete(polled);
    if (this.#active.size > 0) this.#timer = this.#clock.setTimer(idleMs, this.#onTimer);
  };

  readonly #onTimer = (): void => {
    this.#timer = undefined;
    this.#onTurn();
  };
}
