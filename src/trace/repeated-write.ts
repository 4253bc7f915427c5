/** Writes a timeline again and again while somebody watches. A full ring takes a second to write, so writes are paced: they take
 *  a tenth of a script's time at most. A script that computes without a break is written in its next one. */
import type { Clock, Timer } from '../base/clock.ts';

const restsPerWrite = 9;

export interface RepeatedWriteOptions {
  readonly clock: Clock;
  /** Time between two writes, in milliseconds; 0: never. */
  readonly intervalMs: number;
  /** Writes once. It calls `begun` when it starts to cost the script time: waits before that cost nothing. */
  readonly write: (begun: () => void) => Promise<void> | void;
}

export class RepeatedWrite {
  readonly #options: RepeatedWriteOptions;
  #next: Timer | undefined;
  #isOver = false;

  constructor(options: RepeatedWriteOptions) {
    this.#options = options;
    this.#later(0);
  }

  get isOver(): boolean {
    return this.#isOver;
  }

  end(): void {
    this.#isOver = true;
    this.#next?.cancel();
  }

  #later(tookMs: number): void {
    const { clock, intervalMs } = this.#options;
    if (intervalMs === 0 || this.#isOver) return;
    this.#next = clock.setTimer(Math.max(intervalMs, restsPerWrite * tookMs), () => void this.#now());
  }

  async #now(): Promise<void> {
    const { clock, write } = this.#options;
    try {
      let beganMs = clock.now();
      await write(() => (beganMs = clock.now()));
      this.#later(clock.now() - beganMs);
    } catch {
      // The last write, at the end, reports what is wrong.
    }
  }
}
