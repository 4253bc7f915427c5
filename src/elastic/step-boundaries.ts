/** The ends of steps, at which the ranks of a group take in those that wait: all at the same one, and without a call while nobody waits.
 *  Ranks hear of one that waits at different times, so they decide through the job's store:
 *
 *      rank 0   boundary 7: one waits ─ 1 of 3 know ─┐                           8: looks    9: `at` is 10     10: grows
 *      rank 2   boundary 7: one waits ─ 2 of 3 know ─┼▶ store                    8: looks    9: `at` is 10     10: grows
 *      rank 1   boundary 8: one waits ─ 3 of 3 know ─┘   ── `at` is 10 ▶ store   9                             10: grows
 *
 *  The last rank to know has written `at` before it goes on, and no other one ends its next step without it, because a step has a call of
 *  all ranks. One more step is between, for scripts that wait for a step's call in the next step. It must not know how groups grow. */
import { ShoalError } from '../base/errors.ts';
import type { ProcessGroup } from '../group/caller/types.ts';

/** Number of boundaries from the one at which the last rank knows to the one at which they grow. */
const boundariesBetween = 2;

export type BoundaryGroup = Pick<ProcessGroup, 'size' | 'rank' | 'name'> & {
  readonly store: Pick<ProcessGroup['store'], 'add' | 'set' | 'check' | 'get'>;
};

export class StepBoundaries {
  readonly #group: BoundaryGroup;
  readonly #isWaiting: () => boolean;
  /** Prefix of the keys that these ranks have to themselves. */
  readonly #prefix: string;
  #boundary = 0;
  #hasTold = false;
  #at: number | undefined;
  /** The ranks are to take in those that wait. */
  isDue = false;

  /** @param key names these ranks, and the calls of `train` that they are about to make. @param isWaiting whether this rank knows of one that
   *  waits. */
  constructor(group: BoundaryGroup, key: string, isWaiting: () => boolean) {
    this.#group = group;
    this.#isWaiting = isWaiting;
    this.#prefix = `elastic/${key}`;
  }

  /** A step has ended. @throws ShoalError `aborted` where the ranks are to grow; `usage` where this rank is further than it may be. */
  async pass(): Promise<void> {
    this.#boundary++;
    // Steps that never yield would keep this thread from hearing of those that wait.
    await new Promise((resolve) => setImmediate(resolve));
    if (this.#hasTold || this.#isWaiting()) this.#at ??= await this.#decided();
    if (this.#at === undefined || this.#boundary < this.#at) return;
    const { name, rank } = this.#group;
    if (this.#boundary > this.#at) {
      const message = `elastic.run: rank ${rank} is at boundary ${this.#boundary} of group '${name}', whose ranks grow at boundary ${this.#at}; every step needs a call of all ranks`;
      throw new ShoalError('usage', message, { rank });
    }
    this.isDue = true;
    throw new ShoalError('aborted', `group '${name}' takes in ranks that wait; elastic.run calls the function again`, { rank });
  }

  async #decided(): Promise<number | undefined> {
    const { store, size } = this.#group;
    const key = `${this.#prefix}/at`;
    if (!this.#hasTold) {
      this.#hasTold = true;
      if ((await store.add(`${this.#prefix}/knowing`, 1)) === size) {
        const at = this.#boundary + boundariesBetween;
        await store.set(key, String(at));
        return at;
      }
    }
    return (await store.check([key])) ? Number(Buffer.from(await store.get(key)).toString()) : undefined;
  }
}
