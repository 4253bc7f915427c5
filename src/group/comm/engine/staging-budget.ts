/** The staging that a group's operations hold on one rank, and whether one more operation fits.
 *
 *  Each rank decides by itself, in the order of the calls, and one operation always fits. So the oldest operation that some rank has not
 *  finished is in flight on all ranks that have not finished it, and no deadlock is possible.
 *  It must not know operations or memory. */
import { assert } from '../../../base/assert.ts';

/** An operation that stages no more than this, or than a small part of a small budget, is not counted and passes others: small calls do
 *  not queue behind large ones. In all slots together they are little beside the budget. */
const [uncountedBytes, uncountedPart] = [256 * 1024, 1 / 64];

export class StagingBudget {
  readonly #bytes: number;
  readonly #uncountedBytes: number;
  #takenBytes = 0;

  constructor(bytes: number) {
    this.#bytes = bytes;
    this.#uncountedBytes = Math.min(uncountedBytes, bytes * uncountedPart);
  }

  /** Whether an operation that stages so many bytes takes of the budget. */
  counts(bytes: number): boolean {
    return bytes > this.#uncountedBytes;
  }

  /** There is room for `bytes` more, or nothing is taken. */
  holds(bytes: number): boolean {
    return this.#takenBytes === 0 || this.#takenBytes + bytes <= this.#bytes;
  }

  take(bytes: number): void {
    if (this.counts(bytes)) this.#takenBytes += bytes;
  }

  give(bytes: number): void {
    if (this.counts(bytes)) this.#takenBytes -= bytes;
    assert(this.#takenBytes >= 0, () => 'what is given back was taken');
  }
}
