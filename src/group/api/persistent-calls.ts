/** Persistent collectives, MPI-4's `MPI_Allreduce_init` and so on: calls that are checked once, and started again and again on the same
 *  data. It must not know which way calls take. */
import { isPlainObject, noOptions } from '../../base/schema.ts';
import type { Work } from '../../comm/caller/work.ts';
import type { CallChecks } from '../caller/call-checks.ts';
import type { PersistentCall, PersistentMethod, ProcessGroup } from '../caller/types.ts';
import { checkComposed, isPlanned } from './composed-calls.ts';

type Call = (...args: unknown[]) => unknown;

export abstract class PersistentCalls {
  readonly allReduceInit = this.#binder('allReduce', 1);
  readonly broadcastInit = this.#binder('broadcast', 1);
  readonly reduceInit = this.#binder('reduce', 1);
  readonly allGatherInit = this.#binder('allGather', 2);
  readonly gatherInit = this.#binder('gather', 2);
  readonly scatterInit = this.#binder('scatter', 2);
  readonly reduceScatterInit = this.#binder('reduceScatter', 2);
  readonly allToAllInit = this.#binder('allToAll', 2);
  readonly barrierInit = this.#binder('barrier', 0);

  /** @throws ShoalError `closed` after `destroy`. */
  protected abstract usableChecks(): CallChecks;

  /** @param dataCount number of arguments before the options. */
  #binder<M extends PersistentMethod>(method: M, dataCount: number): (...args: Parameters<ProcessGroup[M]>) => PersistentCall {
    return (...args) => {
      const [data, options = noOptions] = [args.slice(0, dataCount), args[dataCount] as object | undefined];
      const checks = this.usableChecks();
      // The first start checks more of what no plan has.
      if (!isPlanned(options)) checkComposed(method, options);
      else (checks[method] as Call).apply(checks, [...(method === 'barrier' ? [method] : data), options]);
      // The program may change its options afterwards.
      const bound = isPlainObject(options) && options !== noOptions ? { ...options } : options;
      const start = (this as unknown as Record<PersistentMethod, Call>)[method].bind(this, ...data, bound);
      return { start: start as () => Work };
    };
  }
}
