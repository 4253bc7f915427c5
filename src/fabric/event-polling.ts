/** Looking for the next frame instead of sleeping until it comes, for a moment after each frame: an answer that is on its way is there
 *  before a thread has gone to sleep and been woken, which takes longer than the answer where the other end runs on another CPU. While it
 *  looks, the event loop turns: nothing else waits for it.
 *
 *      frame, or posted ──▶ looking ──a frame within the window──▶ looking …
 *                              └──no frame, or late──▶ asleep: the next 1, 2, 4 … 256 frames, doubled each time, are slept for
 *
 *  Where ends share a CPU, or answers take long, looking is in vain and takes the other end's time; then hardly any of it is left. */
import type { Clock } from '../base/clock.ts';

/** Frames that come later are slept for. A wake-up takes 20 to 50 µs. */
const windowMs = 0.1;
/** Should the clock stand still. */
const turnsMax = 1000;
const skippedMax = 256;

/** Of one thread. */
export class EventPolling {
  readonly #clock: Clock;
  #startMs = 0;
  #turns = 0;
  #isLooking = false;
  /** Frames that are slept for from here on, and the last time. */
  #skips = 0;
  #skipped = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** The next frame will not be slept for. */
  get isLooking(): boolean {
    return this.#isLooking;
  }

  /** A frame has come. */
  onFrame(): void {
    if (this.#isLooking) {
      if (this.#clock.now() - this.#startMs <= windowMs) this.#skipped = 0;
      else this.#stop();
    }
    this.onPosted();
  }

  /** A frame will be sent, to which another may be the answer. */
  onPosted(): void {
    if (this.#skips > 0) {
      this.#skips--;
      return;
    }
    this.#startMs = this.#clock.now();
    this.#turns = 0;
    if (this.#isLooking) return;
    this.#isLooking = true;
    setImmediate(this.#onTurn);
  }

  #stop(): void {
    this.#isLooking = false;
    this.#skipped = Math.min(skippedMax, Math.max(1, 2 * this.#skipped));
    this.#skips = this.#skipped;
  }

  readonly #onTurn = (): void => {
    if (!this.#isLooking) return;
    if (++this.#turns > turnsMax || this.#clock.now() - this.#startMs > windowMs) this.#stop();
    else setImmediate(this.#onTurn);
  };
}
