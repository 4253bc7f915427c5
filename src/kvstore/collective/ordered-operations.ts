/** Operations that take effect in the order of their calls, although their communication may end in another: values and the state
 *  of optimisers must change alike on every worker. It must not know the effects.
 *
 *    communication  ━━━━━━━ a      ends when it ends
 *                   ━━━ b
 *    effects               a b     in order: b waits for a */
import type { Clock } from '../../base/clock.ts';
import { isShoalError, ShoalError } from '../../base/errors.ts';
import { PendingWork, type WorkWaiter } from '../../comm/caller/work.ts';
import type { Work } from '../../group/caller/types.ts';
import type { KVWork } from '../calls/types.ts';

export interface Operation {
  /** A name for errors: `push of 'w1'`. */
  readonly what: string;
  /** Communication that has begun. */
  readonly works: readonly Work[];
  /** Runs when `works` have succeeded and all operations before have ended: takes effect. It may yield communication that it
   *  has begun, and goes on when that has succeeded. What it throws fails the operation. */
  readonly effect: () => Generator<readonly Work[], void>;
  /** It has ended, whatever became of it. */
  readonly ended?: () => void;
}

export interface OrderedOperationsOptions {
  readonly clock: Clock;
  /** Unfinished operations. */
  readonly operationsMax: number;
}

interface Pending {
  readonly effect: Generator<readonly Work[], void>;
  readonly ended: (() => void) | undefined;
  readonly work: PendingWork;
  works: readonly Work[];
  /** The works whose end will be heard of. */
  watched: readonly Work[] | undefined;
}

export class OrderedOperations {
  readonly #options: OrderedOperationsOptions;
  readonly #pending: Pending[] = [];
  /** Index of the first that has not ended; the array is cut from time to time. */
  #first = 0;
  #proceeding = false;
  readonly #waiter: WorkWaiter;

  constructor(options: OrderedOperationsOptions) {
    this.#options = options;
    const { clock } = options;
    this.#waiter = { now: () => clock.now(), drain: () => this.proceed(), pump: (timeoutMs) => this.#pump(timeoutMs) };
  }

  /** Called before communication begins. @throws ShoalError `usage` when there are too many. */
  checkRoom(): void {
    const { operationsMax } = this.#options;
    if (this.#pending.length - this.#first < operationsMax) return;
    throw new ShoalError('usage', `${operationsMax} operations are unfinished; await some before the next`);
  }

  start(operation: Operation): KVWork {
    // Looks for what has arrived, as the works of its communication do.
    const work = new PendingWork(this.#waiter, operation.what, { onWait: () => this.proceed() });
    const { effect, ended, works } = operation;
    this.#pending.push({ effect: effect(), ended, work, works, watched: undefined });
    if (this.#pending.length - this.#first === 1) this.proceed();
    return work;
  }

  /** Until everything that has been started has ended, well or not. */
  async idle(): Promise<void> {
    const last = this.#pending.at(-1);
    if (last !== undefined && !last.work.done) {
      await last.work.then(
        () => undefined,
        () => undefined,
      );
    }
  }

  /** Waits for what the first of them waits for. */
  #pump(timeoutMs: number): boolean {
    const unfinished = this.#pending[this.#first].works.find(({ done }) => !done);
    try {
      unfinished?.waitSync(timeoutMs);
    } catch (error) {
      // A failure of the operation is found again below; everything else is ours to report.
      if (unfinished?.done !== true) throw error;
    }
    this.proceed();
    return true;
  }

  /** Ends what can be ended, in order. */
  proceed(): void {
    // An updater that calls the store comes here again.
    if (this.#proceeding) return;
    this.#proceeding = true;
    try {
      while (this.#first < this.#pending.length) {
        const head = this.#pending[this.#first];
        const unfinished = head.works.filter(({ done }) => !done);
        if (unfinished.length > 0) {
          if (head.watched !== head.works) void Promise.allSettled(unfinished).then(() => this.proceed());
          head.watched = head.works;
          return;
        }
        this.#proceedWith(head);
      }
    } finally {
      this.#proceeding = false;
    }
  }

  #proceedWith(head: Pending): void {
    let failure = head.works.find(({ error }) => error !== undefined)?.error;
    try {
      const more = failure === undefined ? head.effect.next() : undefined;
      if (more?.done === false) {
        head.works = more.value;
        return;
      }
    } catch (thrown) {
      failure = isShoalError(thrown) ? thrown : ShoalError.from(thrown, 'usage');
    }
    // The effect gives back the memory that it holds.
    if (failure !== undefined) head.effect.return();
    this.#first++;
    if (this.#first > 64 && this.#first * 2 > this.#pending.length) {
      this.#pending.splice(0, this.#first);
      this.#first = 0;
    }
    head.ended?.();
    head.work.settle(failure);
  }
}
