/** Which path a call of a group takes. Every rank finds the same, because all that is looked at is the same on all of them: the call
 *  as its contract has it, what the group's ranks have agreed on, and the plan that follows from both.
 *
 *      all ranks share memory      plan runs whole, and is small or has code for private arrays ──▶ host fast path
 *      ranks on several hosts      small, and all that ranks give each other they send ───────────▶ network fast path
 *      everything else, and what ranks still have to agree on ────────────────────────────────────▶ engine
 *
 *  It must not know where a buffer lies, nor what was called before. */
import { dtypeInfo } from '../../memory/dtype.ts';
import type { CollectiveCall } from './contract.ts';
import type { HostPathPlans, PreparedPlan } from './plan-runner.ts';

/** Plans of a group, by the path they are for. */
export interface PathPlans {
  /** Where all ranks share memory. */
  readonly host?: {
    /** Larger calls take the path only as far as it has code for private arrays; bytes. */
    readonly bytesMax: number;
    prepare(call: CollectiveCall): PreparedPlan;
  };
  /** Where ranks of several hosts have agreed on one. */
  readonly network?: {
    /** Larger calls take the engine; bytes. */
    readonly bytesMax: number;
    prepare(call: CollectiveCall): PreparedPlan;
    /** Whether all that its ranks give each other, they send. */
    fits(call: CollectiveCall, plan: PreparedPlan): boolean;
  };
}

export type Route =
  | { readonly path: 'host'; readonly plans: HostPathPlans; readonly isSmall: boolean }
  | { readonly path: 'network'; readonly plan: PreparedPlan }
  | { readonly path: 'engine' };

const engine: Route = { path: 'engine' };

/** @throws ShoalError `usage`, `unsupported` when there is no plan for the call. */
export function route(call: CollectiveCall, { host, network }: PathPlans): Route {
  if (call.parts !== undefined) return engine;
  const bytes = call.count * dtypeInfo(call.dtype).bytes;
  if (host) {
    const { hostPath: plans } = host.prepare(call);
    const isSmall = bytes <= host.bytesMax;
    if (plans && (isSmall || plans.hasPrivate)) return { path: 'host', plans, isSmall };
  }
  if (network && bytes <= network.bytesMax) {
    const plan = network.prepare(call);
    if (network.fits(call, plan)) return { path: 'network', plan };
  }
  return engine;
}
