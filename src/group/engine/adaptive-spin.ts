/** Whether to poll before sleeping. Polling saves the other side's bell and our waking up, some 50 µs, when what is awaited comes at
 *  once; when it does not, it takes a CPU from whoever is to send it. So a thread polls as long as most of its recent waits would have
 *  been over within the time it may poll; others go to sleep at once. Only
 *  between hosts: there waits may be as long as messages take, while ranks of one host that all have a CPU are never far away.
 *  Pure: told what the time is.
 *
 *      wait ──▶ poll, at most `most` ──▶ sleep ──▶ over        how long the wait was tells whether polling would have paid
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
