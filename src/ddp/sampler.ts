/** DistributedSampler: the items of a data set that each rank sees in an epoch. It must not know the data, nor communicate: every
 *  rank derives the same permutation from (seed, epoch) and takes every size-th item of it.
 *
 *   permutation   7 2 9 0 4 1 8 3 6 5 │ 7 2      padded from its own start to a multiple of size
 *   rank 0 of 4   7 · · · 4 · · · 6 ·   · ·      position ≡ rank (mod size)
 *
 *  Batch k of size B on N ranks together is batch k of size N·B on one rank. A position is the number of items of the permutation
 *  that all ranks have seen together: the rest from there on can be dealt out anew, to any number of ranks. */
import { ShoalError } from '../base/errors.ts';
import { anyNumber, anyObject, checkArgument, checkFields, checkOptions, flag, integer, noOptions, optionTable } from '../base/schema.ts';
import { seededRandom, shuffle } from '../base/random.ts';

/** Options of a sampler; all but the rank are the same on all ranks. */
export interface SamplerOptions {
  /** Any object with a rank and a size, such as a process group; default: a world of one. */
  readonly group?: {
    /** Index of this rank's share, 0…size−1. */
    readonly rank: number;
    /** Number of shares into which the data set is dealt. */
    readonly size: number;
  };
  /** Unsigned 32-bit integer, the same on every rank. Default 0. */
  readonly seed?: number;
  /** `true` (default): a new permutation each epoch. `false`: the order of the data set. */
  readonly shuffle?: boolean;
  /** When the length is not a multiple of the group's size. `false` (default): the first items of the permutation are seen
   *  twice, so that all ranks have as many. `true`: the last items of the permutation are left out of this epoch. */
  readonly dropLast?: boolean;
}

/** Position of a sampler, as JSON. */
export interface SamplerState {
  /** Length of the data set. */
  readonly items: number;
  /** The seed, as in `SamplerOptions`. */
  readonly seed: number;
  /** `shuffle`, as in `SamplerOptions`. */
  readonly shuffle: boolean;
  /** The epoch that `setEpoch` was last given. */
  readonly epoch: number;
  /** Items of the epoch that all ranks together have seen. */
  readonly position: number;
}

const uint32 = integer({ min: 0, max: 0xffffffff });
const samplerState = optionTable<SamplerState>({ items: anyNumber, seed: anyNumber, shuffle: flag, epoch: uint32, position: uint32 });

const samplerOptions = optionTable<SamplerOptions>({ group: anyObject, seed: uint32, shuffle: flag, dropLast: flag });

/** Selects the items of a data set that this rank sees in an epoch, like torch's `DistributedSampler`: every rank derives the
 *  same permutation from seed and epoch, without communication, and takes every size-th item of it.
 *
 *      const sampler = new DistributedSampler(images.length, { group, seed: 7 });
 *      for (let epoch = 0; epoch < 10; epoch++) {
 *        sampler.setEpoch(epoch);
 *        for (const batch of sampler.batches(32)) train(batch.map((item) => images[item]));
 *      } */
export class DistributedSampler implements Iterable<number> {
  readonly #options: Readonly<Record<'items' | 'rank' | 'size' | 'seed', number> & Record<'shuffle' | 'dropLast', boolean>>;
  #epoch = 0;
  /** Items of the permutation that were seen before `loadStateDict`; those of all ranks follow. */
  #offset = 0;
  /** Items that this rank has given out. */
  #seen = 0;
  #order: Uint32Array | undefined;

  /** @param items length of the data set.
   *  @throws ShoalError `usage` for an invalid length, rank, size or seed. */
  constructor(items: number, options: SamplerOptions = noOptions) {
    checkOptions('DistributedSampler', options, samplerOptions);
    const { group: { rank, size } = { rank: 0, size: 1 }, seed = 0, shuffle = true, dropLast = false } = options;
    checkArgument("sampler: the data set's length", items, uint32);
    if (!Number.isInteger(size) || !Number.isInteger(rank) || size < 1 || rank < 0 || rank >= size) {
      throw new ShoalError('usage', `sampler: rank ${rank} of ${size} is not a rank`);
    }
    this.#options = { items, rank, size, seed, shuffle, dropLast };
  }

  /** Number of items on this rank: its share of the epoch, or of the rest that `loadStateDict` left. The same on every rank. */
  get length(): number {
    const { items, size, dropLast } = this.#options;
    const share = (items - this.#offset) / size;
    return dropLast ? Math.floor(share) : Math.ceil(share);
  }

  /** The epoch that `setEpoch` or `loadStateDict` was last given; 0 at first. */
  get epoch(): number {
    return this.#epoch;
  }

  /** Selects the permutation of the following iterations. Call it with the same epoch on every rank. */
  setEpoch(epoch: number): void {
    checkArgument('sampler: epoch', epoch, uint32);
    if (epoch !== this.#epoch) this.#begin(epoch, 0);
  }

  /** The sampler's position: after the items that iteration, or `batches`, has given out. For checkpoints; the same on every rank
   *  when all have given out as many. */
  stateDict(): SamplerState {
    const { items, size, seed, shuffle } = this.#options;
    return { items, seed, shuffle, epoch: this.#epoch, position: Math.min(items, this.#offset + this.#seen * size) };
  }

  /** Continues from the position of another sampler, on this or any other number of ranks: the rest of its epoch is dealt out
   *  among them. The next epoch is whole.
   *  @throws ShoalError `usage` for the state of another data set, seed or order. */
  loadStateDict(state: SamplerState): void {
    checkFields('loadStateDict', state, samplerState);
    for (const key of ['items', 'seed', 'shuffle'] as const) {
      const [saved, own] = [state[key], this.#options[key]];
      if (saved !== own)
        throw new ShoalError('usage', `sampler: the state has ${key} ${saved}, this sampler ${own}; use the one that was saved`);
    }
    const { epoch, position } = state;
    const { items } = this.#options;
    if (position > items) throw new ShoalError('usage', `sampler: epoch ${epoch}, position ${position} is no place in ${items} items`);
    this.#begin(epoch, position);
  }

  #begin(epoch: number, offset: number): void {
    if (epoch !== this.#epoch) this.#order = undefined;
    this.#epoch = epoch;
    this.#offset = offset;
    this.#seen = 0;
  }

  /** Item `position` of this rank's epoch, an index into the data set. */
  at(position: number): number {
    if (!Number.isInteger(position) || position < 0 || position >= this.length) {
      throw new ShoalError('usage', `sampler: position ${position} is outside this rank's epoch of ${this.length} items`);
    }
    this.#order ??= this.#permutation();
    // The modulo is the padding: past its end the permutation starts again.
    const { items, rank, size } = this.#options;
    return this.#order[(this.#offset + rank + position * size) % items];
  }

  /** This rank's items of the epoch, as indices into the data set; `length` of them. */
  *[Symbol.iterator](): Iterator<number> {
    for (let position = 0; position < this.length; position++) {
      this.#seen = position + 1;
      yield this.at(position);
    }
  }

  /** This rank's epoch in batches of `size`; the last one is shorter when `size` does not divide `length`. */
  batches(size: number): Generator<number[]> {
    if (!Number.isInteger(size) || size < 1) throw new ShoalError('usage', `sampler: batch size ${size} must be a positive integer`);
    return this.#batches(size);
  }

  *#batches(size: number): Generator<number[]> {
    for (let from = 0; from < this.length; from += size) {
      const batch = Array.from({ length: Math.min(size, this.length - from) }, (_, i) => this.at(from + i));
      this.#seen = from + batch.length;
      yield batch;
    }
  }

  /** A shuffle with a random stream of its own for each (seed, epoch). */
  #permutation(): Uint32Array {
    const { items, seed, shuffle: isShuffled } = this.#options;
    const order = Uint32Array.from({ length: items }, (_, i) => i);
    if (!isShuffled) return order;
    return shuffle(order, seededRandom((seed ^ Math.imul(this.#epoch + 1, 0x9e3779b1)) >>> 0));
  }
}
