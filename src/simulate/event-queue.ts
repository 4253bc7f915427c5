/** Virtual time: things that act at a time, earliest first; equal times in the order in which they were scheduled. */
import { must } from '../base/assert.ts';

export interface Actor {
  /** @param now seconds of virtual time. */
  act(now: number): void;
}

interface Entry {
  readonly time: number;
  readonly order: number;
  readonly actor: Actor;
}

/** A binary heap. */
export class EventQueue {
  readonly #entries: Entry[] = [];
  #scheduled = 0;
  #now = 0;

  /** Seconds. */
  get now(): number {
    return this.#now;
  }

  /** How many have been scheduled so far. */
  get scheduled(): number {
    return this.#scheduled;
  }

  at(time: number, actor: Actor): void {
    const entries = this.#entries;
    const entry: Entry = { time, order: this.#scheduled++, actor };
    let index = entries.push(entry) - 1;
    while (index > 0) {
      const parent = (index - 1) >> 1;
      if (!before(entry, entries[parent])) break;
      entries[index] = entries[parent];
      index = parent;
    }
    entries[index] = entry;
  }

  /** Until nothing is scheduled. */
  run(): void {
    for (let entry = this.#pop(); entry !== undefined; entry = this.#pop()) {
      this.#now = entry.time;
      entry.actor.act(entry.time);
    }
  }

  #pop(): Entry | undefined {
    const entries = this.#entries;
    if (entries.length <= 1) return entries.pop();
    const first = entries[0];
    const last = must(entries.pop(), () => 'the heap has two entries');
    let index = 0;
    for (;;) {
      let child = 2 * index + 1;
      if (child >= entries.length) break;
      if (child + 1 < entries.length && before(entries[child + 1], entries[child])) child += 1;
      if (!before(entries[child], last)) break;
      entries[index] = entries[child];
      index = child;
    }
    entries[index] = last;
    return first;
  }
}

function before(a: Entry, b: Entry): boolean {
  return a.time < b.time || (a.time === b.time && a.order < b.order);
}
