/** A group as its parts see it, and the world as its groups see it. The group's engine is the one, the world itself the other: parts hold
 *  them instead of callbacks. */
import type { ShoalError } from '../../../base/errors.ts';
import type { ControlBlock } from '../../../collectives/control-block.ts';
import type { NetworkPathRates } from '../../../collectives/network-path.ts';
import type { RemoteSpan, Span } from '../../../fabric/fabric.ts';
import type { CollectiveCall } from '../../../call/contract.ts';
import type { GroupSpec } from '../../../call/group-spec.ts';
import type { Plans, PreparedPlan, WorldPlanning } from '../../../call/planner.ts';
import type { Wait } from '../diagnosis/wait-chain.ts';
import type { PeerLink } from '../links/peer-link.ts';
import type { ScratchPool } from '../links/scratch-pool.ts';
import type { SharedRegions } from '../links/shared-regions.ts';
import type { Members } from './members.ts';
import type { SubmittedCall } from './call-queue.ts';
import type { PointToPoint, PointToPointWorld } from './point-to-point.ts';
import type { Place } from '../../../call/contract.ts';

export interface GroupWorld extends PointToPointWorld {
  readonly planning: WorldPlanning;
  readonly regions: SharedRegions;
  readonly scratch: ScratchPool;
  readonly pointToPoint: Pick<PointToPoint, 'abandon' | 'isSending'>;
  readonly lastWords: { heard(): Promise<void> };
  /** Rates of groups of all ranks, once one of them has been timed; the same on all ranks. */
  networkPathRates: NetworkPathRates | undefined;
  /** The wait of this rank that has lasted longest, in this group or elsewhere. */
  readonly wait: Wait | undefined;
  /** Tells all ranks why the group fails. */
  tellFailure(group: GroupSpec, error: ShoalError): void;
  /** The link to another world rank. */
  link(rank: number): PeerLink;
  recordFailure(group: GroupSpec, error: ShoalError): void;
}

/** A call that has its place, and may have no plan yet. */
export interface PlacedCall {
  call: CollectiveCall;
  plan: PreparedPlan | undefined;
  /** The error with which it ends without having run, on every rank. */
  refusal: ShoalError | undefined;
}

export interface GroupContext extends Place {
  readonly world: GroupWorld;
  readonly life: GroupLife;
  readonly spec: GroupSpec;
  /** Undefined for this rank itself. */
  readonly links: readonly (PeerLink | undefined)[];
  readonly blocks: readonly ControlBlock[];
  readonly members: Members;
  readonly plans: Plans;
  /** The time that a look around polls shared memory before the thread sleeps; 0 where ranks outnumber CPUs. */
  readonly spinMs: number;
  /** Ranks are found to disagree: nothing new is started. */
  readonly isDisputed: boolean;
  /** Puts an operation behind those that are there; without a plan it waits for one. */
  enqueue(request: SubmittedCall, plan: PreparedPlan | undefined): PlacedCall;
  /** Ranks called different things, or some rank's call went another way. */
  disagree(call: { readonly sequence: number; readonly timeoutMs: number }): void;
  putSignal(rank: number, slot: number, signal: number, source: Span | undefined, target: RemoteSpan | undefined): Promise<void>;
  ring(doorbells: Uint32Array): void;
  pump(): void;
  /** Something has come on the sockets of the network path. */
  onReadable(): void;
}

/** The life of the group that makes the calls. */
export interface GroupLife {
  readonly isOpen: boolean;
  /** True while the group is open and nothing speaks against going on. */
  readonly mayRun: boolean;
  /** Stops, and fails with what was thrown unless the end of a rank explains it first. */
  suspect(thrown: unknown, sequence?: number): void;
  fail(error: ShoalError): void;
  /** All that could advance has. */
  settled(): void;
}
