/** Virtual time: events happen at their times, the earliest first; at equal times in the order in which they were scheduled. Events are
 *  numbers, because a large world schedules millions of them: a heap of numbers, and a list of those of the time it is now, which come
 *  after everything that was scheduled for this time before. */
import { doubled } from './records.ts';

/** Kinds of events: a task goes on, a message is handed to its port, is taken in by its receiver, raises its signal, or a port's quantum has
 *  left. */
export const kinds = { task: 0, send: 1, take: 2, raise: 3, quantum: 4 } as const;

/** The event of a kind: eight times the number of the task, message or port, and the kind. */
export function eventOf(kind: keyof typeof kinds, subject: number): number {
  return 8 * subject + kinds[kind];
}

export class EventQueue {
  /** The heap, three numbers for an event: its time, its place in the order of scheduling, and the event. */
  #heap: Float64Array = new Float64Array(3 * 1024);
  #count = 0;
  /** Events that happen now, after those of the heap with this time, up to `#soonCount`. */
  readonly #soon: number[] = [];
  #soonCount = 0;
  /** Number of events that have been scheduled so far. */
  scheduled = 0;
  /** Virtual time, in seconds. */
  now = 0;

  at(time: number, event: number): void {
    const order = this.scheduled++;
    if (time === this.now) this.#soon[this.#soonCount++] = event;
    else this.#push(time, order, event);
  }

  /** Lets events happen until nothing is scheduled. */
  run(happen: (event: number, now: number) => void): void {
    for (;;) {
      const { now } = this;
      while (this.#count > 0 && this.#heap[0] === now) happen(this.#pop(), now);
      for (let done = 0; done < this.#soonCount; done++) happen(this.#soon[done], now);
      this.#soonCount = 0;
      if (this.#count === 0) return;
      [this.now] = this.#heap;
    }
  }

  #push(time: number, order: number, event: number): void {
    if (3 * this.#count === this.#heap.length) this.#heap = doubled(this.#heap);
    const heap = this.#heap;
    let index = this.#count++;
    // New orders are the largest, so only an earlier time rises.
    while (index > 0) {
      const parent = (index - 1) >> 2;
      if (heap[3 * parent] <= time) break;
      this.#put(index, heap[3 * parent], heap[3 * parent + 1], heap[3 * parent + 2]);
      index = parent;
    }
    this.#put(index, time, order, event);
  }

  #put(index: number, time: number, order: number, event: number): void {
    this.#heap[3 * index] = time;
    this.#heap[3 * index + 1] = order;
    this.#heap[3 * index + 2] = event;
  }

  #pop(): number {
    const heap = this.#heap;
    const first = heap[2];
    const count = --this.#count;
    const [time, order] = [heap[3 * count], heap[3 * count + 1]];
    let index = 0;
    for (let child = 1; child < count; child = 4 * index + 1) {
      let least = child;
      const end = Math.min(child + 4, count);
      for (let other = child + 1; other < end; other++)
        if (heap[3 * other] < heap[3 * least] || (heap[3 * other] === heap[3 * least] && heap[3 * other + 1] < heap[3 * least + 1]))
          least = other;
      if (heap[3 * least] > time || (heap[3 * least] === time && heap[3 * least + 1] > order)) break;
      this.#put(index, heap[3 * least], heap[3 * least + 1], heap[3 * least + 2]);
      index = least;
    }
    this.#put(index, time, order, heap[3 * count + 2]);
    return first;
  }
}
