/** The interface of an algorithm: a name and, per collective, a function that writes the plan. */
import type { PlanBuilder } from '../../plan/builder.ts';
import type { Collective, PlanRequest } from '../../plan/ir.ts';

export interface Algorithm {
  readonly name: string;
  /** One line that says when to use it. */
  readonly summary: string;
  /** Order of sums, for the collectives that reduce: canonical, or one of its own. */
  readonly association: 'canonical' | 'relaxed';
  /** Its plans touch a peer's scratch and mailbox only, never a buffer of the peer's caller: buffers may be private memory. */
  readonly ownBuffersOnly?: true;
  /** The programs of all ranks have one channel, and equally much scratch: one of them tells whether all run whole on a host. */
  readonly alike?: true;
  /** With equal shares, and equally many ranks on every host, all hosts do the same (tiles.ts). */
  readonly tiles?: true;
  /** The reason why it cannot serve a request of a collective that it has; undefined when it can. */
  readonly supports?: (request: PlanRequest) => string | undefined;
  /** Called for at least two ranks and, the barrier excepted, at least one element. */
  readonly build: Partial<Record<Collective, (b: PlanBuilder) => void>>;
}
