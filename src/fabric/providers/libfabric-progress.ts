/** Progress of the connections of one fabric: libfabric moves nothing unless its queues are polled. Those with a descriptor are polled
 *  when it is readable and after whatever is posted; the others for some turns of the event loop after something has happened, then
 *  every millisecond as long as they wait for something, else when they are woken. It must not know what is polled. */
import type { Clock, Timer } from '../../base/clock.ts';

/** Turns of the event loop without an event, after which time passes between two looks. */
const idleTurnsMax = 30;
const idleMs = 1;

export interface Polled {
  /** How many events there were; −1: none, but it is not done. */
  poll(): number;
  /** No descriptor will tell of the next event. */
  readonly wantsPolling: boolean;
  /** Whether it will wake itself, so that nobody has to look. */
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

  /** Something was posted, or the descriptor is readable. */
  wake(polled: Polled): void {
    this.#active.add(polled);
    this.#idleTurns = 0;
    this.#timer?.cancel();
    this.#timer = undefined;
    this.#schedule();
  }

  /** To be called from the event loop. */
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
