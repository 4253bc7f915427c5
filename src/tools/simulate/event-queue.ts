/** Virtual time: actors act at their times, the earliest first; at equal times in the order in which they were scheduled. A heap in
 *  arrays of numbers, because a large world schedules millions of events, and a list of those that act at the time it is now: they come
 *  after everything that was scheduled for this time before. */
import { must } from '../../base/assert.ts';

export interface Actor {
  /** @param now seconds of virtual time. */
  act(now: number): void;
}

export class EventQueue {
  /** The heap: by index, time, place in the order of scheduling, and actor. */
  readonly #times: number[] = [];
  readonly #orders: number[] = [];
  readonly #actors: Actor[] = [];
  /** Actors that act now, after those of the heap with this time; the first `#soonDone` have acted. */
  readonly #soon: Actor[] = [];
  #soonDone = 0;
  /** Number of events that have been scheduled so far. */
  scheduled = 0;
  /** Virtual time, in seconds. */
  now = 0;

  at(time: number, actor: Actor): void {
    const order = this.scheduled++;
    if (time === this.now) this.#soon.push(actor);
    else this.#push(time, order, actor);
  }

  /** Runs until nothing is scheduled. */
  run(): void {
    for (;;) {
      while (this.#times.length > 0 && this.#times[0] === this.now) this.#pop().act(this.now);
      while (this.#soonDone < this.#soon.length) this.#soon[this.#soonDone++].act(this.now);
      this.#soon.length = 0;
      this.#soonDone = 0;
      if (this.#times.length === 0) return;
      this.now = this.#times[0];
    }
  }

  #push(time: number, order: number, actor: Actor): void {
    const [times, orders, actors] = [this.#times, this.#orders, this.#actors];
    // New orders are the largest, so only an earlier time rises.
    let index = times.length;
    while (index > 0) {
      const parent = (index - 1) >> 2;
      if (times[parent] <= time) break;
      this.#place(index, times[parent], orders[parent], actors[parent]);
      index = parent;
    }
    this.#place(index, time, order, actor);
  }

  #place(index: number, time: number, order: number, actor: Actor): void {
    this.#times[index] = time;
    this.#orders[index] = order;
    this.#actors[index] = actor;
  }

  #pop(): Actor {
    const [times, orders, actors] = [this.#times, this.#orders, this.#actors];
    const [first] = actors;
    const time = must(times.pop(), () => 'the heap has an event');
    const order = must(orders.pop(), () => 'an event has an order');
    const actor = must(actors.pop(), () => 'an event has an actor');
    const { length } = times;
    if (length === 0) return first;
    let index = 0;
    for (let child = 1; child < length; child = 4 * index + 1) {
      let least = child;
      const end = Math.min(child + 4, length);
      for (let other = child + 1; other < end; other++)
        if (times[other] < times[least] || (times[other] === times[least] && orders[other] < orders[least])) least = other;
      if (times[least] > time || (times[least] === time && orders[least] > order)) break;
      this.#place(index, times[least], orders[least], actors[least]);
      index = least;
    }
    this.#place(index, time, order, actor);
    return first;
  }
}
