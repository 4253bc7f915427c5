/** One timer for all calls of a group that are not finished: first a warning for a call that takes long, then its timeout.
 *
 *      submitted ──── slowMs ────▶ onSlow, once ──── timeoutMs ────▶ onTimeout
 *
 *  The timer is set for the earliest deadline, and checked only then: a call that finishes in time
 *  costs a comparison. It must not know the calls, nor the ranks for which they wait. */
import type { Clock, Timer } from '../../base/clock.ts';

/** Timers may fire a fraction of a millisecond early. */
const toleranceMs = 0.5;

/** A call that is not finished. Times are those of the watchdog's clock. */
export interface Watched {
  readonly submittedMs: number;
  readonly timeoutMs: number;
  /** Set by the watchdog when it has told of the call's slowness. */
  warned: boolean;
}

export interface WatchdogOptions<T extends Watched> {
  readonly clock: Clock;
  readonly slowMs: number;
  /** The calls to look at when the timer fires. */
  readonly pending: () => readonly T[];
  readonly onSlow: (call: T) => void;
  /** The first call found late; nothing is watched any more until the next `watch`. */
  readonly onTimeout: (call: T) => void;
}

export class Watchdog<T extends Watched> {
  readonly #options: WatchdogOptions<T>;
  #timer: Timer | undefined;
  #atMs = Infinity;

  constructor(options: WatchdogOptions<T>) {
    this.#options = options;
  }

  /** Makes sure that a look is taken when `call` is next due. */
  watch(call: T): void {
    const { clock, slowMs } = this.#options;
    const dueMs = call.warned ? call.timeoutMs : Math.min(slowMs, call.timeoutMs);
    const atMs = call.submittedMs + dueMs;
    if (atMs >= this.#atMs) return;
    this.#timer?.cancel();
    this.#atMs = atMs;
    this.#timer = clock.setTimer(Math.max(0, atMs - clock.now()), () => this.#look());
  }

  stop(): void {
    this.#timer?.cancel();
  }

  #look(): void {
    this.#atMs = Infinity;
    const { clock, slowMs, pending, onSlow, onTimeout } = this.#options;
    const nowMs = clock.now();
    for (const call of pending()) {
      const waitedMs = nowMs - call.submittedMs;
      if (waitedMs >= call.timeoutMs - toleranceMs) {
        onTimeout(call);
        return;
      }
      if (!call.warned && waitedMs >= slowMs - toleranceMs) {
        call.warned = true;
        onSlow(call);
      }
      this.watch(call);
    }
  }
}
