/** Looks for the next frame for a moment after each frame, instead of sleeping until it comes: an answer that is on its way
 *  arrives before a thread has gone to sleep and been woken, which takes longer than the answer where the other end runs on
 *  another CPU. The event loop turns meanwhile, so nothing else waits.
 *
 *      frame, or posted ──▶ looking ──a frame within the window──▶ looking …
 *                              └──no frame, or late──▶ asleep: the next 1, 2, 4 … 256 frames, doubled each time, are slept for
 *
 *  Where ends share a CPU, or answers take long, looking is in vain and takes the other end's time; then it hardly ever happens. */
import type { Clock } from '../base/clock.ts';

/** A look lasts this long; later frames wake the thread. A wake-up takes 20 to 60 µs, and the answer of an end that looks as well 60 to 120:
 *  with 0.1 ms requests for tensors took about twice as long, because a look in vain ends those of the other end, too. */
const windowMs = 0.2;
/** A look ends after this many turns, should the clock stand still. */
const turnsMax = 1000;
const skippedMax = 256;

/** The polling of one thread. */
export class EventPolling {
  readonly #clock: Clock;
  #startMs = 0;
  #turns = 0;
  #isLooking = false;
  /** Frames to sleep for from here on, and the number that the last vain look chose. */
  #skips = 0;
  #skipped = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Called for each frame that has come. */
  onFrame(): void {
    if (this.#isLooking) {
      if (this.#clock.now() - this.#startMs <= windowMs) this.#skipped = 0;
      else this.#stop();
    }
    this.onPosted();
  }

  /** Called before a frame is sent, as another may be its answer. */
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
