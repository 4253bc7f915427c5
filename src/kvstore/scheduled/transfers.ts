/** A scheduled store's operations on parts in the store underneath. It must not know when they start. */
import { ShoalError } from '../../base/errors.ts';
import { noOptions } from '../../base/schema.ts';
import type { OnComplete } from '../../engine/operation.ts';
import type { KVStore, KVWork, TransferOptions } from '../values/types.ts';
import type { PartViews, StoreOperation } from './store-operation.ts';

interface Transfer {
  readonly work: KVWork;
  end(error: ShoalError | undefined): void;
}

/** Who blocks looks for others in between. */
const blockMs = 100;

/** For each of so many. @param onEnd when all have ended, with the first error. */
export function whenAll(count: number, onEnd: (error?: ShoalError) => void): OnComplete {
  let left = count;
  let failure: ShoalError | undefined;
  return (error) => {
    if (error !== undefined) failure ??= ShoalError.from(error);
    if (--left === 0) onEnd(failure);
  };
}

export class Transfers {
  readonly #store: KVStore;
  /** Of an operation without one of its own. Undefined: the store's. */
  readonly #timeoutMs: number | undefined;
  /** The oldest first. */
  readonly #underWay = new Set<Transfer>();

  constructor(store: KVStore, timeoutMs: number | undefined) {
    this.#store = store;
    this.#timeoutMs = timeoutMs;
  }

  /** All of these parts. @param onAllComplete when all are, with the first error. */
  start(operation: StoreOperation, views: readonly PartViews[], onAllComplete: (error?: ShoalError) => void): void {
    const onComplete = whenAll(views.length, onAllComplete);
    for (const view of views) {
      try {
        if (operation.kind === 'init') this.#init(operation, view, onComplete);
        else this.#add(this.#beginPart(operation, view), onComplete);
      } catch (thrown) {
        onComplete(thrown);
      }
    }
  }

  /** Another call of the store underneath. */
  begin(call: (store: KVStore) => KVWork, onComplete: OnComplete): void {
    try {
      this.#add(call(this.#store), onComplete);
    } catch (thrown) {
      onComplete(thrown);
    }
  }

  /** Those that have arrived end. @returns whether there were any. */
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

  #init({ key, shape }: StoreOperation, { part, values }: PartViews, onComplete: OnComplete): void {
    // A whole one is as it was given; a tensor has its shape.
    const options = shape === undefined ? noOptions : { shape: part.key === key ? shape : part.shape };
    this.#store.init(part.key, values, options).then(() => onComplete(), onComplete);
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

  #beginPart({ kind, priority, timeoutMs = this.#timeoutMs }: StoreOperation, { part: { key }, values, outs }: PartViews): KVWork {
    const options: TransferOptions = timeoutMs === undefined ? { priority } : { priority, timeoutMs };
    switch (kind) {
      case 'push':
        return this.#store.push(key, values, options);
      case 'pull':
        return this.#store.pull(key, outs, options);
      default:
        return this.#store.pushPull(key, values, outs, options);
    }
  }
}
