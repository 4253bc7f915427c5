/** Unanswered requests by index. Indices are 32-bit numbers that wrap; those in use are skipped. */
import { assert } from '../../base/assert.ts';
import { ShoalError } from '../../base/errors.ts';

/** A request by the first of its indices, which are in a row. */
export interface Indexed {
  readonly index: number;
  readonly indices: number;
  /** Number of tensors that are asked for. */
  readonly count: number;
}

export class PendingTable<T extends Indexed> {
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

  /** All requests, in their order. */
  all(): Set<T> {
    return new Set(this.#pending.values());
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
    if (this.#count + count > this.#countMax) {
      const message = `${count} more requests to ${this.#peer()}: ${this.#count} of at most ${this.#countMax} are not answered`;
      throw new ShoalError('out-of-memory', message);
    }
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

  add(pending: T): void {
    this.replace(pending);
    this.#count += pending.count;
  }

  /** Takes over the indices of another. */
  replace(pending: T): void {
    for (let k = 0; k < pending.indices; k++) this.#pending.set((pending.index + k) >>> 0, pending);
  }

  remove({ index, indices, count }: T): void {
    for (let k = 0; k < indices; k++) this.#pending.delete((index + k) >>> 0);
    this.#count -= count;
  }

  clear(): void {
    this.#pending.clear();
  }
}
