/** One timer for all calls of a group that are not finished: warnings that the oldest one takes long, and the timeout of each.
 *
 *      submitted ── slowMs ─▶ onSlow ── as long again ─▶ onSlow ── twice as long ─▶ onSlow …      timeoutMs ─▶ onTimeout
 *
 *  What waits behind the oldest call waits for the same: only calls that are submitted after a warning begin a new series. The timer is
 *  set for the earliest deadline, and checked only then: a call that finishes in time costs a comparison. It must not know the
 *  calls, nor the ranks for which they wait. */
import type { Clock, Timer } from '../base/clock.ts';

/** Timers may fire a fraction of a millisecond early. */
const toleranceMs = 0.5;

/** A call that is not finished. Times are those of the watchdog's clock. */
export interface Watched {
  readonly submittedMs: number;
  readonly timeoutMs: number;
}

export interface WatchdogOptions<T extends Watched> {
  readonly clock: Clock;
  readonly slowMs: number;
  /** The calls to look at when the timer fires, the oldest first. */
  readonly pending: () => readonly T[];
  readonly onSlow: (oldest: T, waitedMs: number) => void;
  /** The first call found late; nothing is watched any more until the next `watch`. */
  readonly onTimeout: (call: T) => void;
}

export class Watchdog<T extends Watched> {
  readonly #options: WatchdogOptions<T>;
  #timer: Timer | undefined;
  #atMs = Infinity;
  #warnedMs = -Infinity;
  /** The pause from that warning to the next one of its series. */
  #pauseMs = 0;

  constructor(options: WatchdogOptions<T>) {
    this.#options = options;
  }

  /** Makes sure that a look is taken when `call` is next due. */
  watch(call: T): void {
    this.#lookAt(call.submittedMs + Math.min(this.#options.slowMs, call.timeoutMs));
  }

  stop(): void {
    this.#timer?.cancel();
  }

  #lookAt(atMs: number): void {
    if (atMs >= this.#atMs) return;
    const { clock } = this.#options;
    this.#timer?.cancel();
    this.#atMs = atMs;
    this.#timer = clock.setTimer(Math.max(0, atMs - clock.now()), () => this.#look());
  }

  #look(): void {
    this.#atMs = Infinity;
    const { clock, pending, onTimeout } = this.#options;
    const [nowMs, calls] = [clock.now(), pending()];
    const late = calls.find((call) => nowMs - call.submittedMs >= call.timeoutMs - toleranceMs);
    if (late) {
      onTimeout(late);
      return;
    }
    if (calls.length === 0) return;
    this.#warnOf(calls[0], nowMs);
    this.#lookAt(Math.min(this.#dueMs(calls[0]), ...calls.map(({ submittedMs, timeoutMs }) => submittedMs + timeoutMs)));
  }

  #warnOf(oldest: T, nowMs: number): void {
    if (nowMs < this.#dueMs(oldest) - toleranceMs) return;
    this.#pauseMs = this.#isOfSeries(oldest) ? 2 * this.#pauseMs : this.#options.slowMs;
    this.#warnedMs = nowMs;
    this.#options.onSlow(oldest, nowMs - oldest.submittedMs);
  }

  /** The next warning, if the call is still the oldest then. */
  #dueMs(oldest: T): number {
    return this.#isOfSeries(oldest) ? this.#warnedMs + this.#pauseMs : oldest.submittedMs + this.#options.slowMs;
  }

  #isOfSeries({ submittedMs }: T): boolean {
    return submittedMs <= this.#warnedMs;
  }
}

/** `2 s`, `0.25 s`: a wait, in a warning. */
export function secondsText(waitedMs: number): string {
  return `${Number((waitedMs / 1000).toPrecision(2))} s`;
}
