/** What an algorithm is: a name and, per collective, a function that writes the plan. */
import type { PlanBuilder } from '../../plan/builder.ts';
import type { Collective, PlanRequest } from '../../plan/ir.ts';

export interface Algorithm {
  readonly name: string;
  /** When to use it, in one line. */
  readonly summary: string;
  /** Of the collectives that reduce. */
  readonly association: 'canonical' | 'relaxed';
  /** Its plans touch a peer's scratch and mailbox only, never what a peer's caller gave: buffers may be private memory. */
  readonly ownBuffersOnly?: true;
  /** The programs of all ranks have one channel, and equally much scratch: one of them tells whether all run whole on a host. */
  readonly alike?: true;
  /** Why it cannot serve a request whose collective it has; undefined when it can. */
  readonly supports?: (request: PlanRequest) => string | undefined;
  /** Called for at least two ranks and, the barrier excepted, at least one element. */
  readonly build: Partial<Record<Collective, (b: PlanBuilder) => void>>;
}
