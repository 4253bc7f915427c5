/** Numbers of the groups of a world, as one rank knows them. A new group takes the smallest number that is free on all its ranks. The
 *  number stays in use until all of them have left, so that no message of one group can be taken for the next one's.
 *
 *      each rank   how many groups it has made, which numbers it uses ─ exchanged ─▶ on all: a serial for names, a number
 *
 *  Several groups may be made of one group at the same time. Then ranks tell numbers that lack those of the calls before. So each also
 *  tells how many groups of this parent it knows, and all leave out the numbers that one of them did not know. */
import { getOrMake } from '../base/collections/lists.ts';
import { ShoalError } from '../base/errors.ts';

/** Number of the group of all ranks. */
export const worldGroupId = 0;
/** The largest number of a group: immediates have ten bits for it. */
export const groupIdMax = 1023;

const wordBits = 32;
const numberWords = Math.ceil((groupIdMax + 1) / wordBits);
/** The distance from the first number that groups made of one group take, to that of the next group. */
const numbersApart = 64;
/** Words that a rank tells the others. */
export const groupNumbersWords = 1 + numberWords;

/** A group's number, and its serial for names; undefined: no number was free. */
interface Agreed {
  readonly serial: number;
  readonly id: number | undefined;
}

/** Groups made of one group: how many, and those that other ranks may not know, each at its place in the order of the calls. */
interface Offspring {
  count: number;
  readonly recent: Map<number, Agreed>;
}

export class GroupNumbers {
  #serial = 1;
  /** A bit per number. */
  readonly #used = new Int32Array(numberWords);
  /** The groups made of each, by its number. */
  readonly #offspring = new Map<number, Offspring>();

  /** @param words those of another one's `encode`. Default: the world's group alone is there. */
  constructor(words?: Int32Array) {
    this.use(worldGroupId);
    if (words === undefined) return;
    [this.#serial] = words;
    this.#used.set(words.subarray(1));
  }

  /** The words that this rank tells the others. */
  encode(): Int32Array {
    return Int32Array.of(this.#serial, ...this.#used);
  }

  /** The number of groups made of this one that the rank knows. */
  known(parent: number): number {
    return this.#offspringOf(parent).count;
  }

  /** @param all what all ranks have told, one after the other. @param known what all ranks knew of this parent then. */
  agreeOf(parent: number, known: readonly number[], all: Int32Array): Agreed {
    const offspring = this.#offspringOf(parent);
    const [least, others] = [Math.min(...known), new GroupNumbers()];
    for (const [place, { id, serial }] of offspring.recent) {
      if (place < least) offspring.recent.delete(place);
      else if (id !== undefined) others.use(id, serial);
    }
    // Groups that are made of others at the same time take numbers from another place on.
    const agreed = this.agree(Int32Array.of(...all, ...others.encode()), parent * numbersApart);
    offspring.recent.set(offspring.count++, agreed);
    return agreed;
  }

  #offspringOf(parent: number): Offspring {
    return getOrMake(this.#offspring, parent, () => ({ count: 0, recent: new Map<number, Agreed>() }));
  }

  /** @param all what all ranks have told, one after the other. @param from where to look first for a free number. */
  agree(all: Int32Array, from = 0): Agreed {
    const used = new Int32Array(numberWords);
    let serial = 0;
    for (let at = 0; at < all.length; at += groupNumbersWords) {
      serial = Math.max(serial, all[at]);
      for (let word = 0; word < numberWords; word++) used[word] |= all[at + 1 + word];
    }
    this.#serial = Math.max(this.#serial, serial + 1);
    return { serial, id: firstFree(used, from) };
  }

  /** @param serial of a group that others have agreed on. */
  use(id: number, serial = 0): void {
    this.#used[id >>> 5] |= 1 << (id & 31);
    this.#serial = Math.max(this.#serial, serial + 1);
  }

  isUsed(id: number): boolean {
    return isIn(this.#used, id);
  }

  free(id: number): void {
    this.#used[id >>> 5] &= ~(1 << (id & 31));
    this.#offspring.delete(id);
  }
}

/** The error of a group for which `agree` has found no number. */
export function noNumberLeft(): ShoalError {
  const message = `more than ${groupIdMax} groups of one world at a time; destroy those that are not needed, on all their ranks`;
  return new ShoalError('unsupported', message);
}

function isIn(used: Int32Array, id: number): boolean {
  return (used[id >>> 5] & (1 << (id & 31))) !== 0;
}

function firstFree(used: Int32Array, from: number): number | undefined {
  for (let step = 0; step <= groupIdMax; step++) {
    const id = (from + step) % (groupIdMax + 1);
    if (!isIn(used, id)) return id;
  }
  return undefined;
}
