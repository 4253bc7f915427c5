/** Fusion at run time: which receives of one sender go into one request. Pure but for its clock.
 *
 *  Receives that are asked for in one turn go together. Whether a request should wait for more is learnt: where receives keep coming
 *  less than a round trip after a request has left, it waits about as long as they come apart, and never longer than half a round trip,
 *  as that would cost more than it saves; where nobody comes, it does not wait. */
import type { Clock, Timer } from '../../base/clock.ts';

export interface ReceiveWindowOptions<Item> {
  readonly clock: Clock;
  /** Sends one request for all of these. */
  readonly send: (items: readonly Item[]) => void;
  /** Items of a request at most. */
  readonly itemsMax: number;
}

/** The weight of the latest observation. */
const weight = 0.2;
/** Gaps that a wait covers: arrivals are not regular. */
const gapsCovered = 2;

export class ReceiveWindow<Item> {
  readonly #options: ReceiveWindowOptions<Item>;
  #items: Item[] = [];
  #timer: Timer | undefined;
  /** Items that were there when the wait began. */
  #atFirst = 0;
  #lastSentMs = -Infinity;
  #roundTripMs = 0;
  /** Time from a request to the receive that it could have taken along. */
  #gapMs = 0;
  /** The share of requests that were followed by one that they could have taken along. */
  #lateShare = 0;

  constructor(options: ReceiveWindowOptions<Item>) {
    this.#options = options;
  }

  /** The time that the next request waits. */
  get waitMs(): number {
    return this.#lateShare > 0.5 ? Math.min(this.#roundTripMs / 2, this.#gapMs * gapsCovered) : 0;
  }

  add(item: Item): void {
    const { clock, itemsMax } = this.#options;
    if (this.#timer === undefined) {
      const gapMs = clock.now() - this.#lastSentMs;
      const isLate = gapMs < this.#roundTripMs;
      if (isLate) this.#gapMs += weight * (gapMs - this.#gapMs);
      this.#learn(isLate);
      this.#timer = clock.setTimer(0, () => this.#turnEnds(), { keepAlive: true });
    }
    this.#items.push(item);
    if (this.#items.length >= itemsMax) this.#send();
  }

  /** Takes one out again that has not been sent. */
  remove(item: Item): boolean {
    const index = this.#items.indexOf(item);
    if (index < 0) return false;
    this.#items.splice(index, 1);
    return true;
  }

  /** Learns from the time between a request and the first tensor of its answer. */
  observeRoundTrip(elapsedMs: number): void {
    this.#roundTripMs = this.#roundTripMs === 0 ? elapsedMs : this.#roundTripMs + weight * (elapsedMs - this.#roundTripMs);
  }

  #turnEnds(): void {
    const { waitMs } = this;
    if (waitMs <= 0) {
      this.#send();
      return;
    }
    this.#atFirst = this.#items.length;
    this.#timer = this.#options.clock.setTimer(
      waitMs,
      () => {
        // A window that waited for nobody waits less next time.
        if (this.#items.length === this.#atFirst) this.#learn(false);
        this.#send();
      },
      { keepAlive: true },
    );
  }

  #learn(isLate: boolean): void {
    this.#lateShare += weight * (Number(isLate) - this.#lateShare);
  }

  #send(): void {
    this.#timer?.cancel();
    this.#timer = undefined;
    const items = this.#items;
    this.#items = [];
    if (items.length === 0) return;
    this.#lastSentMs = this.#options.clock.now();
    this.#options.send(items);
  }
}
