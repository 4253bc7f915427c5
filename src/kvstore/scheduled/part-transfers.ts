/** A scheduled store's operations on parts in the store underneath. It must not know when they start. */
import { ShoalError } from '../../base/errors.ts';
import type { OnComplete } from '../../engine/operation.ts';
import type { Backend } from '../calls/operation.ts';
import type { KVWork } from '../calls/types.ts';
import type { PartCall } from './part-calls.ts';

interface Transfer {
  readonly work: KVWork;
  end(error: ShoalError | undefined): void;
}

/** A thread that blocks looks for other transfers in between. */
const blockMs = 100;

/** A callback that each of so many calls once. @param onEnd when all have ended, with the first error. */
export function whenAll(count: number, onEnd: (error?: ShoalError) => void): OnComplete {
  let left = count;
  let failure: ShoalError | undefined;
  return (error) => {
    if (error !== undefined) failure ??= ShoalError.from(error);
    if (--left === 0) onEnd(failure);
  };
}

export class PartTransfers {
  readonly #inner: Backend;
  /** The oldest first. */
  readonly #underWay = new Set<Transfer>();

  constructor(inner: Backend) {
    this.#inner = inner;
  }

  /** Begins these calls. @param onAllComplete when all are complete, with the first error. */
  start(calls: readonly PartCall[], onAllComplete: (error?: ShoalError) => void): void {
    const onComplete = whenAll(calls.length, onAllComplete);
    for (const { operation } of calls) {
      try {
        if (operation.type === 'init') this.#inner.ask(operation).then(() => onComplete(), onComplete);
        else this.#add(this.#inner.start(operation), onComplete);
      } catch (thrown) {
        onComplete(thrown);
      }
    }
  }

  /** Ends transfers that have arrived. @returns whether there were any. */
  advance(): boolean {
    let moved = false;
    for (const transfer of this.#underWay) {
      if (!transfer.work.done) continue;
      transfer.end(transfer.work.error);
      moved = true;
    }
    return moved;
  }

  /** Blocks this thread for the oldest, a little. @returns false when there is none. */
  waitSync(leftMs: number): boolean {
    const [oldest] = this.#underWay;
    if (oldest === undefined) return false;
    try {
      oldest.work.waitSync(Math.min(leftMs, blockMs));
    } catch {
      // Its own error is told to its task; the limit is this call's.
    }
    return true;
  }

  #add(work: KVWork, onComplete: OnComplete): void {
    const transfer: Transfer = {
      work,
      end: (error) => {
        if (this.#underWay.delete(transfer)) onComplete(error);
      },
    };
    this.#underWay.add(transfer);
    work.then(
      () => transfer.end(undefined),
      (error: ShoalError) => transfer.end(error),
    );
  }
}
