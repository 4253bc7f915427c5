/** DistributedSampler: which items of a data set each rank sees in an epoch. It must not know the data, nor communicate:
 *  every rank derives the same permutation from (seed, epoch) and takes every size-th item of it.
 *
 *   permutation   7 2 9 0 4 1 8 3 6 5 │ 7 2      padded from its own start to a multiple of size
 *   rank 0 of 4   7 · · · 4 · · · 6 ·   · ·      position ≡ rank (mod size)
 *
 *  Batch k of size B on N ranks together is batch k of size N·B on one rank. */
import { ShoalError } from '../base/errors.ts';
import { checkOptions, noOptions, optionTable } from '../base/settings/options.ts';
import { seededRandom } from '../base/random.ts';

export interface SamplerOptions {
  /** Anything with a rank and a size; default: a world of one. */
  readonly group?: { readonly rank: number; readonly size: number };
  /** Unsigned 32-bit integer, the same on every rank. Default 0. */
  readonly seed?: number;
  /** `true` (default): a new permutation each epoch. `false`: the order of the data set. */
  readonly shuffle?: boolean;
  /** When the length is not a multiple of the group's size. `false` (default): the first items of the permutation are seen
   *  twice, so that all ranks have as many. `true`: the last items of the permutation are left out of this epoch. */
  readonly dropLast?: boolean;
}

const samplerOptions = optionTable<SamplerOptions>({ group: 'object', seed: 'number', shuffle: 'boolean', dropLast: 'boolean' });

export class DistributedSampler implements Iterable<number> {
  /** Items per epoch on this rank; the same on every rank. */
  readonly length: number;
  readonly #items: number;
  readonly #rank: number;
  readonly #size: number;
  readonly #seed: number;
  readonly #shuffle: boolean;
  #epoch = 0;
  #order: Uint32Array | undefined;

  /** @param items length of the data set.
   *  @throws ShoalError `usage` for a length, rank, size or seed that is not what it should be. */
  constructor(items: number, options: SamplerOptions = noOptions) {
    checkOptions('DistributedSampler', options, samplerOptions);
    const { group: { rank, size } = { rank: 0, size: 1 }, seed = 0, shuffle = true, dropLast = false } = options;
    if (!isUint32(items))
      throw new ShoalError('usage', `sampler: the data set's length is ${items}; it must be an integer from 0 to 4294967295`);
    if (!isUint32(seed)) throw new ShoalError('usage', `sampler: seed ${seed} must be an integer from 0 to 4294967295`);
    if (!Number.isInteger(size) || !Number.isInteger(rank) || size < 1 || rank < 0 || rank >= size) {
      throw new ShoalError('usage', `sampler: rank ${rank} of ${size} is not a rank`);
    }
    this.#items = items;
    this.#rank = rank;
    this.#size = size;
    this.#seed = seed;
    this.#shuffle = shuffle;
    this.length = dropLast ? Math.floor(items / size) : Math.ceil(items / size);
  }

  get epoch(): number {
    return this.#epoch;
  }

  /** Selects the permutation of the following iterations. Call it with the same epoch on every rank. */
  setEpoch(epoch: number): void {
    if (!isUint32(epoch)) throw new ShoalError('usage', `sampler: epoch ${epoch} must be an integer from 0 to 4294967295`);
    if (epoch !== this.#epoch) this.#order = undefined;
    this.#epoch = epoch;
  }

  /** Item `position` of this rank's epoch, an index into the data set. */
  at(position: number): number {
    if (!Number.isInteger(position) || position < 0 || position >= this.length) {
      throw new ShoalError('usage', `sampler: position ${position} is outside this rank's epoch of ${this.length} items`);
    }
    this.#order ??= this.#permutation();
    // The remainder is the padding: past the end the permutation starts again.
    return this.#order[(this.#rank + position * this.#size) % this.#items];
  }

  *[Symbol.iterator](): Iterator<number> {
    for (let position = 0; position < this.length; position++) yield this.at(position);
  }

  /** This rank's epoch in batches of `size`; the last one is shorter when `size` does not divide `length`. */
  batches(size: number): Generator<number[]> {
    if (!Number.isInteger(size) || size < 1) throw new ShoalError('usage', `sampler: batch size ${size} must be a positive integer`);
    return this.#batches(size);
  }

  *#batches(size: number): Generator<number[]> {
    for (let from = 0; from < this.length; from += size) {
      yield Array.from({ length: Math.min(size, this.length - from) }, (_, i) => this.at(from + i));
    }
  }

  /** Fisher–Yates, from a stream of its own for each (seed, epoch). */
  #permutation(): Uint32Array {
    const order = Uint32Array.from({ length: this.#items }, (_, i) => i);
    if (!this.#shuffle) return order;
    const random = seededRandom((this.#seed ^ Math.imul(this.#epoch + 1, 0x9e3779b1)) >>> 0);
    for (let last = order.length - 1; last > 0; last--) {
      const other = random.integer(last + 1);
      const item = order[last];
      order[last] = order[other];
      order[other] = item;
    }
    return order;
  }
}

function isUint32(value: number): boolean {
  return Number.isInteger(value) && value >= 0 && value <= 0xffffffff;
}
