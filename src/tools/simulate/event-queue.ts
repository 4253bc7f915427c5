/** Virtual time: actors act at their times, the earliest first; at equal times in the order in which they were scheduled. A heap in
 *  arrays of numbers, because a large world schedules millions of events, and a list of those that act at the time it is now: they come
 *  after everything that was scheduled for this time before. */

export interface Actor {
  /** @param now seconds of virtual time. */
  act(now: number): void;
}

export class EventQueue {
  /** The heap: by twice an event's index its time, and next to that its place in the order of scheduling. */
  readonly #keys: number[] = [];
  /** The heap's actors, by index; those from `#count` on are left over. */
  readonly #actors: Actor[] = [];
  #count = 0;
  /** Actors that act now, after those of the heap with this time, up to `#soonCount`. */
  readonly #soon: Actor[] = [];
  #soonCount = 0;
  /** Number of events that have been scheduled so far. */
  scheduled = 0;
  /** Virtual time, in seconds. */
  now = 0;

  at(time: number, actor: Actor): void {
    const order = this.scheduled++;
    if (time === this.now) this.#soon[this.#soonCount++] = actor;
    else this.#push(time, order, actor);
  }

  /** Runs until nothing is scheduled. */
  run(): void {
    for (;;) {
      const { now } = this;
      while (this.#count > 0 && this.#keys[0] === now) this.#pop().act(now);
      for (let done = 0; done < this.#soonCount; done++) this.#soon[done].act(now);
      this.#soonCount = 0;
      if (this.#count === 0) return;
      this.now = this.#keys[0];
    }
  }

  #push(time: number, order: number, actor: Actor): void {
    const [keys, actors] = [this.#keys, this.#actors];
    let index = this.#count++;
    // New orders are the largest, so only an earlier time rises.
    while (index > 0) {
      const parent = (index - 1) >> 2;
      if (keys[2 * parent] <= time) break;
      this.#place(index, keys[2 * parent], keys[2 * parent + 1], actors[parent]);
      index = parent;
    }
    this.#place(index, time, order, actor);
  }

  #place(index: number, time: number, order: number, actor: Actor): void {
    this.#keys[2 * index] = time;
    this.#keys[2 * index + 1] = order;
    this.#actors[index] = actor;
  }

  #pop(): Actor {
    const [keys, actors] = [this.#keys, this.#actors];
    const [first] = actors;
    const count = --this.#count;
    const [time, order] = [keys[2 * count], keys[2 * count + 1]];
    let index = 0;
    for (let child = 1; child < count; child = 4 * index + 1) {
      let least = child;
      const end = Math.min(child + 4, count);
      for (let other = child + 1; other < end; other++)
        if (keys[2 * other] < keys[2 * least] || (keys[2 * other] === keys[2 * least] && keys[2 * other + 1] < keys[2 * least + 1]))
          least = other;
      if (keys[2 * least] > time || (keys[2 * least] === time && keys[2 * least + 1] > order)) break;
      this.#place(index, keys[2 * least], keys[2 * least + 1], actors[least]);
      index = least;
    }
    this.#place(index, time, order, actors[count]);
    return first;
  }
}
