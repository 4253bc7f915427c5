/** The way of a call: every way that a call of a group can take is decided here, with one exception, the all-reduces of a scheduled group.
 *  The first line that fits a call is its way:
 *
 *      call                                                                         way
 *      ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
 *      the same collective, data and options as before, which took a fast path      repeat: as before, without preparation
 *      several calls of a batch that are alike and small                            pack: one call on one buffer, routed again
 *      some data lies in a device's memory                                          device: pieces, as calls of a group of their own
 *      an all-to-all with splits, of which a rank knows only its own                exchange: the splits first, then the engine
 *      the group's collectives are a library's, such as Open MPI                    library: the engine compares the call, the library runs it
 *      all ranks share memory; the plan runs whole; small, or for private arrays    host
 *      ranks on several hosts; small; the plan only sends                           network
 *      any other call                                                               engine
 *
 *  An all-reduce of a scheduled group has one way only: parts, in the order of all ranks (ScheduledCommGroup sends it there).
 *  Every rank finds the same way, because all inputs are the same on all ranks: the call's contract, the facts that the group's ranks
 *  have agreed on, and the plan that follows from both. Repeats alone are a rank's own matter: they take the way that the call took
 *  before. It must not know where a buffer lies in host memory. */
import { isPlainObject, noOptions } from '../base/schema.ts';
import { dtypeInfo } from '../memory/dtype.ts';
import type { CollectiveCall } from './contract.ts';
import type { HostPathPlans, Planner, PreparedPlan } from './planner.ts';

/** Facts that the ranks of a group have found or agreed on: the same on all of them. */
export interface GroupFacts {
  readonly planner: Pick<Planner, 'prepare'>;
  /** Most bytes of a small call, where all ranks share memory: larger calls take the host path only as far as it has code for private
   *  arrays. */
  readonly hostBytesMax?: number;
  /** Most bytes on the network path, where ranks of several hosts have agreed on one: larger calls take the engine. */
  readonly networkBytesMax?: number;
  readonly usesLibrary?: boolean;
}

export type Route =
  | { readonly path: 'host'; readonly plans: HostPathPlans; readonly isSmall: boolean }
  | { readonly path: 'network'; readonly plan: PreparedPlan }
  | { readonly path: 'device' | EnginePath };

/** Ways through the engine. */
export type EnginePath = 'engine' | 'exchange' | 'library';

/** Most bytes of a call that is packed with others: two copies of larger data cost more than a call. */
const packedBytesMax = 32_768;

/** @param isOnDevice some data lies in a device's memory.
 *  @throws ShoalError `usage`, `unsupported` when there is no plan for the call. */
export function route(call: CollectiveCall, facts: GroupFacts, { isOnDevice }: { readonly isOnDevice: boolean }): Route {
  const { planner, hostBytesMax, networkBytesMax, usesLibrary } = facts;
  if (isOnDevice) return { path: 'device' };
  if (call.parts !== undefined) return { path: 'exchange' };
  if (usesLibrary) return { path: 'library' };
  const bytes = call.count * dtypeInfo(call.dtype).bytes;
  if (hostBytesMax !== undefined) {
    const { hostPath: plans } = planner.prepare(call);
    const isSmall = bytes <= hostBytesMax;
    if (plans && (isSmall || plans.hasPrivate)) return { path: 'host', plans, isSmall };
  }
  if (networkBytesMax !== undefined && bytes <= networkBytesMax) {
    const plan = planner.prepare(call, 'network');
    if (plan.isForNetworkPath) return { path: 'network', plan };
  }
  return { path: 'engine' };
}

/** Calls of a batch with the same key travel as one; undefined: the call travels by itself. */
export function packOf({ kind, dtype, op, factor, root, counts, count }: CollectiveCall): string | undefined {
  const isSmall = counts === undefined && count > 0 && count * dtypeInfo(dtype).bytes <= packedBytesMax;
  // A factor is each rank's own: whether there is one is known to all.
  return isSmall && factor === undefined ? `${kind} ${dtype} ${op ?? ''} ${root ?? ''}` : undefined;
}

/** True for options that give nothing but operator and root: nothing else is checked when a call is repeated, and no other call is. */
export function mayRepeat(options: { readonly op?: unknown; readonly root?: unknown }): boolean {
  if (options === noOptions) return true;
  for (const key in options) if (key !== 'op' && key !== 'root') return othersUndefined(options);
  return options?.op !== undefined || options?.root !== undefined || isPlainObject(options);
}

function othersUndefined(options: object): boolean {
  return isPlainObject(options) && Object.entries(options).every(([key, value]) => key === 'op' || key === 'root' || value === undefined);
}
