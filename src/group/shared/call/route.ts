/** The path of a call. Every rank finds the same one, because all inputs are the same on all ranks: the call's contract, the facts that
 *  the group's ranks have agreed on, and the plan that follows from both.
 *
 *      all ranks share memory      plan runs whole, and is small or has code for private arrays ──▶ host fast path
 *      ranks on several hosts      small, and the plan only sends, without loads from peers ──────▶ network fast path
 *      all other calls, and calls on which ranks must first agree ────────────────────────────────▶ engine
 *
 *  It must not know where a buffer lies, nor earlier calls. */
import { dtypeInfo } from '../../../memory/dtype.ts';
import type { CollectiveCall } from './contract.ts';
import type { HostPathPlans, Planner, PreparedPlan } from './planner.ts';

/** What the ranks of a group have found or agreed on: the same on all of them. */
export interface GroupFacts {
  readonly planner: Pick<Planner, 'prepare'>;
  /** Where all ranks share memory: larger calls take the host path only as far as it has code for private arrays; bytes. */
  readonly hostBytesMax?: number;
  /** Where ranks of several hosts have agreed on a network path: larger calls take the engine; bytes. */
  readonly networkBytesMax?: number;
}

export type Route =
  | { readonly path: 'host'; readonly plans: HostPathPlans; readonly isSmall: boolean }
  | { readonly path: 'network'; readonly plan: PreparedPlan }
  | { readonly path: 'engine' };

const engine: Route = { path: 'engine' };

/** @throws ShoalError `usage`, `unsupported` when there is no plan for the call. */
export function route(call: CollectiveCall, { planner, hostBytesMax, networkBytesMax }: GroupFacts): Route {
  if (call.parts !== undefined) return engine;
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
  return engine;
}
