/** Numbers of the groups of a world, as one rank knows them. A new group takes the smallest number that is free on all its ranks. The
 *  number stays in use until all of them have left, so that no message of one group can be taken for the next one's.
 *
 *      each rank   how many groups it has made, which numbers it uses ─ exchanged ─▶ on all: a serial for names, a number */
import { ShoalError } from '../../base/errors.ts';
import { worldGroupId, groupIdMax } from '../../call/group-spec.ts';

const wordBits = 32;
const numberWords = Math.ceil((groupIdMax + 1) / wordBits);
/** Words that a rank tells the others. */
export const groupNumbersWords = 1 + numberWords;

export class GroupNumbers {
  #serial = 1;
  /** A bit per number. */
  readonly #used = new Int32Array(numberWords);

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

  /** @param all what all ranks have told, one after the other. @returns undefined as the number: none is free. */
  agree(all: Int32Array): { readonly serial: number; readonly id: number | undefined } {
    const used = new Int32Array(numberWords);
    let serial = 0;
    for (let at = 0; at < all.length; at += groupNumbersWords) {
      serial = Math.max(serial, all[at]);
      for (let word = 0; word < numberWords; word++) used[word] |= all[at + 1 + word];
    }
    this.#serial = serial + 1;
    return { serial, id: firstFree(used) };
  }

  /** @param serial of a group that others have agreed on. */
  use(id: number, serial = 0): void {
    this.#used[id >>> 5] |= 1 << (id & 31);
    this.#serial = Math.max(this.#serial, serial + 1);
  }

  free(id: number): void {
    this.#used[id >>> 5] &= ~(1 << (id & 31));
  }
}

/** The error of a group for which `agree` has found no number. */
export function noNumberLeft(): ShoalError {
  const message = `more than ${groupIdMax} groups of one world at a time; destroy those that are not needed, on all their ranks`;
  return new ShoalError('unsupported', message);
}

function firstFree(used: Int32Array): number | undefined {
  for (let id = 0; id <= groupIdMax; id++) if ((used[id >>> 5] & (1 << (id & 31))) === 0) return id;
  return undefined;
}
