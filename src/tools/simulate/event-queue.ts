/** Virtual time: actors act at their times, the earliest first; at equal times in the order in which they were scheduled. */
import { PriorityQueue } from '../../base/collections/priority-queue.ts';

export interface Actor {
  /** @param now seconds of virtual time. */
  act(now: number): void;
}

interface Entry {
  readonly time: number;
  readonly order: number;
  readonly actor: Actor;
}

export class EventQueue {
  readonly #entries = new PriorityQueue<Entry>(before);
  #scheduled = 0;
  #now = 0;

  /** Virtual time, in seconds. */
  get now(): number {
    return this.#now;
  }

  /** Number of events that have been scheduled so far. */
  get scheduled(): number {
    return this.#scheduled;
  }

  at(time: number, actor: Actor): void {
    this.#entries.push({ time, order: this.#scheduled++, actor });
  }

  /** Runs until nothing is scheduled. */
  run(): void {
    for (let entry = this.#entries.pop(); entry !== undefined; entry = this.#entries.pop()) {
      this.#now = entry.time;
      entry.actor.act(entry.time);
    }
  }
}

function before(a: Entry, b: Entry): boolean {
  return a.time < b.time || (a.time === b.time && a.order < b.order);
}
