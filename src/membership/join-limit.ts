/** The time that a process has for something of several steps. */
import type { Clock } from '../base/clock.ts';

export class JoinLimit {
  readonly timeoutMs: number;
  readonly #clock: Clock;
  readonly #endMs: number;

  constructor(clock: Clock, timeoutMs: number) {
    this.#clock = clock;
    this.timeoutMs = timeoutMs;
    this.#endMs = clock.now() + timeoutMs;
  }

  get leftMs(): number {
    return Math.max(1, Math.ceil(this.#endMs - this.#clock.now()));
  }
}
