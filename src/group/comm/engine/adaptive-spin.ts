/** Whether to poll before sleeping. For short waits, polling saves the other side's doorbell and this thread's wake-up, some 50 µs; for
 *  long ones it takes a CPU from the sender. So a thread polls if most of its recent waits were shorter than its polling time, and sleeps
 *  at once otherwise. Only between hosts, where a wait may take as long as a message; ranks of one host with a CPU each are never far
 *  apart. Pure: time is an argument.
 *
 *      wait ──▶ poll, at most `most` ──▶ sleep ──▶ over        the length of the wait tells whether polling would have paid
 *
 *  Source: adaptive mutexes (Solaris, POSIX threads), which spin while the owner is running. */

/** Waits that the decision looks back on, about. */
const memory = 8;
/** Where both sides sleep, waking up is most of a wait: what takes less than this many times as long as one may poll would have been
 *  over in time, had both polled. Otherwise nobody would ever begin again. */
const sleepersAllowance = 3;

export class AdaptiveSpin {
  readonly #mostMs: number;
  readonly #adapts: boolean;
  #since: number | undefined;
  /** Waits that were short enough, less those that were not. */
  #score = 0;

  /** @param mostMs of polling in a wait; 0: never polls. @param options.adapts false: polls in every wait. */
  constructor(mostMs: number, { adapts }: { adapts: boolean }) {
    this.#mostMs = mostMs;
    this.#adapts = adapts;
  }

  /** Nothing has come: begins a wait, unless one is under way. @returns whether to look again at once. */
  waits(nowMs: number): boolean {
    this.#since ??= nowMs;
    return (this.#score >= 0 || !this.#adapts) && nowMs - this.#since < this.#mostMs;
  }

  /** Something has come. */
  ends(nowMs: number): void {
    if (this.#since === undefined) return;
    const paid = nowMs - this.#since < sleepersAllowance * this.#mostMs;
    this.#score = paid ? Math.min(memory, this.#score + 1) : Math.max(-memory, this.#score - 1);
    this.#since = undefined;
  }

  /** There is nothing to wait for any more: that was no wait for others. */
  stops(): void {
    this.#since = undefined;
  }
}
