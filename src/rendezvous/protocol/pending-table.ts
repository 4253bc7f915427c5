/** Unanswered requests by index. Indices are 32-bit numbers that wrap; those in use are skipped. A request may have several in a row, and
 *  counts as several. */
import { assert } from '../../base/assert.ts';
import { ShoalError } from '../../base/errors.ts';

export class PendingTable<T> {
  readonly #pending = new Map<number, T>();
  readonly #countMax: number;
  readonly #peer: () => string;
  #next: number;
  #count = 0;

  /** @param peer the name of the peer in messages. */
  constructor({ requestsMax, firstRequest = 0, peer }: { requestsMax: number; firstRequest?: number; peer: () => string }) {
    this.#countMax = requestsMax;
    this.#next = firstRequest;
    this.#peer = peer;
  }

  /** Number of indices in use. */
  get size(): number {
    return this.#pending.size;
  }

  entries(): [index: number, pending: T][] {
    return [...this.#pending];
  }

  get(index: number): T | undefined {
    return this.#pending.get(index);
  }

  /** @throws ShoalError `protocol` for an index that stands for nothing. */
  find(index: number): T {
    const pending = this.#pending.get(index);
    if (pending === undefined) throw new ShoalError('protocol', `an answer to request ${index}, which is none or was answered`);
    return pending;
  }

  /** @throws ShoalError `out-of-memory` when there is no room for as many. */
  checkRoom(count: number): void {
    if (this.#count + count > this.#countMax)
      throw new ShoalError(
        'out-of-memory',
        `${count} more requests to ${this.#peer()}: ${this.#count} of at most ${this.#countMax} are not answered`,
      );
  }

  /** `count` indices in a row that stand for nothing. @returns the first. */
  takeIndex(count: number): number {
    for (let attempt = 0; attempt <= this.#pending.size; attempt++) {
      const index = this.#next;
      let used = 0;
      while (used < count && !this.#pending.has((index + used) >>> 0)) used++;
      this.#next = (index + Math.max(1, used)) >>> 0;
      if (used === count) return index;
    }
    assert(false, () => 'there are more indices than requests');
    return 0;
  }

  /** @param indices of the request. @param count that it counts as. */
  add(index: number, pending: T, indices: number, count: number): void {
    this.replace(index, pending, indices);
    this.#count += count;
  }

  /** Another takes over the indices. */
  replace(index: number, pending: T, indices: number): void {
    this.#pending.set(index, pending);
    for (let k = 1; k < indices; k++) this.#pending.set((index + k) >>> 0, pending);
  }

  /** Removes a request with all of its indices. @param count that it counted as. */
  remove(index: number, indices: number, count: number): void {
    this.#pending.delete(index);
    for (let k = 1; k < indices; k++) this.#pending.delete((index + k) >>> 0);
    this.#count -= count;
  }

  clear(): void {
    this.#pending.clear();
  }
}
