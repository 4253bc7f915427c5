/** The comm side's surroundings: the machine, and the world that it has joined on it. One object, made once, which all parts of a world
 *  hold; tests and simulation make their own. */
import type { Clock } from '../../../base/clock.ts';
import type { ShoalError } from '../../../base/errors.ts';
import type { CheckDescriptors } from '../../../base/exhaustion.ts';
import type { Logger } from '../../../base/log.ts';
import type { GiveWay } from '../../../comm/thread/guest.ts';
import type { Fabric } from '../../../fabric/fabric.ts';
import type { Kernels } from '../../../memory/kernels.ts';
import type { NativeWire } from '../../../memory/native-wire.ts';
import type { RegionAllocator } from '../../../memory/region.ts';
import type { StepMachine } from '../../../memory/step-machine.ts';
import type { Arbiter } from '../../../scheduler/arbiter.ts';
import type { Store } from '../../../store/store.ts';
import type { serveStatus } from '../../../metrics/status-socket.ts';
import type { GroupSpec } from '../../../call/group-spec.ts';
import type { WorldPlan, WorldTold } from '../../shared/comm-protocol.ts';
import type { OperationLog } from '../diagnosis/operation-log.ts';

/** The machine as the comm side sees it. */
export interface CommEnvironment {
  readonly clock: Clock;
  readonly log: Logger;
  readonly recorder: OperationLog;
  readonly allocator: RegionAllocator;
  readonly kernels: Kernels;
  readonly machine: StepMachine;
  readonly hostId: string;
  readonly hostName: string;
  readonly pid: number;
  readonly version: string;
  /** CPUs this process may use: with more ranks than that on a host, waiting must give the CPU away at once. */
  readonly cpus: number;
  /** Sockets of the addon's own, for calls that another thread makes; undefined without such a thread or the addon. */
  readonly wires?: NativeWire;
  /** @throws ShoalError `out-of-memory` when no more can be opened. Absent: they do not run out. */
  readonly checkDescriptors?: CheckDescriptors;
  /** Asks whether others wait for their turn of the event loop. Absent: nobody does. */
  readonly giveWay?: GiveWay;
  /** The arbiter of all that this process sends. Absent: there is no other traffic. */
  readonly arbiter?: Arbiter;
  /** Resident memory of this process. Absent: its memory is not in its trace. */
  readonly residentBytes?: () => number;
  /** Lets `shoal status` ask this process. Absent: nobody can. */
  readonly serveStatus?: typeof serveStatus;
  /** Opens the store and, with the secret learnt there, the fabrics. */
  meet(plan: WorldPlan): Promise<Meeting>;
  /** A group failed: the moment to write what is known. */
  readonly onFailure?: (group: GroupSpec, error: ShoalError) => void;
}

export interface Meeting {
  /** Name of the world: connections of others are refused. */
  readonly name: string;
  readonly store: Store;
  /** The rank that serves the store; undefined: no rank does. */
  readonly servedBy: number | undefined;
  /** A launcher says there when the job has failed. */
  readonly isLaunched: boolean;
  /** Fabrics, the best first. */
  readonly fabrics: readonly Fabric[];
}

/** A world on this machine: its plan, its name and fabrics, and the way to the calling thread. */
export interface WorldEnvironment extends CommEnvironment, WorldPlan, Pick<Meeting, 'name' | 'fabrics'> {
  /** Tells the calling thread what it did not ask for. */
  tell(event: WorldTold): void;
}
