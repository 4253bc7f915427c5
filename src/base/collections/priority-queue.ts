/** A binary heap, ordered by a comparison of its owner. The owner also makes that order total, so that equal priorities have one
 *  order, and bounds the number of items. */
import { must } from '../assert.ts';

export class PriorityQueue<T> {
  readonly #items: T[] = [];
  readonly #before: (a: T, b: T) => boolean;

  /** @param before true if `a` leaves first. */
  constructor(before: (a: T, b: T) => boolean) {
    this.#before = before;
  }

  get length(): number {
    return this.#items.length;
  }

  peek(): T | undefined {
    return this.#items[0];
  }

  push(item: T): void {
    const items = this.#items;
    let index = items.push(item) - 1;
    while (index > 0) {
      const parent = (index - 1) >> 1;
      if (!this.#before(item, items[parent])) break;
      items[index] = items[parent];
      index = parent;
    }
    items[index] = item;
  }

  pop(): T | undefined {
    const items = this.#items;
    if (items.length <= 1) return items.pop();
    const first = items[0];
    const last = must(items.pop(), () => 'the heap has two items');
    // The hole goes down to the end, by one comparison a level; the item that was last seldom rises far.
    let index = 0;
    for (let child = 1; child < items.length; child = 2 * index + 1) {
      if (child + 1 < items.length && this.#before(items[child + 1], items[child])) child += 1;
      items[index] = items[child];
      index = child;
    }
    while (index > 0) {
      const parent = (index - 1) >> 1;
      if (!this.#before(last, items[parent])) break;
      items[index] = items[parent];
      index = parent;
    }
    items[index] = last;
    return first;
  }
}
