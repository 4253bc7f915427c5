/** Commands and events between the main thread and the comm thread. Plain data only: it is cloned between threads. */
import type { ErrorData } from '../../base/errors.ts';
import type { Environment, Settings } from '../../base/settings/settings.ts';
import type { GuestEvent } from '../../comm/shared/thread-protocol.ts';
import type { NetworkPathRates } from '../../collectives/network-path.ts';
import type { DType } from '../../memory/dtype.ts';
import type { RegionShare } from '../../memory/region.ts';
import type { BufferName } from '../../plan/ir.ts';
import type { Change } from '../../membership/agreement.ts';
import type { WorldFacts } from '../../membership/newcomers.ts';
import type { StoreOperation } from '../../store/store.ts';
import type { CollectiveCall } from '../../call/contract.ts';
import type { EnginePath } from '../../call/route.ts';
import type { NetworkPathRest } from '../../call/network-path.ts';
import type { GroupSpec, Scheduling, SchedulingStatus } from '../../call/group-spec.ts';
import type { HostPathRest } from '../../call/host-path.ts';
import type { LoadedTuning } from '../../call/tuning-file.ts';
import type { Place } from '../../call/contract.ts';

/** The plan by which a rank joins a world. */
export interface WorldPlan extends Place {
  /** Where ranks meet: `env://`, `tcp://host:port`, `file:///path`. */
  readonly url: string;
  /** Variables of the launcher. */
  readonly environment: Environment;
  readonly joinTimeoutMs: number;
  /** The world has begun without this rank, whose number is none of its `size`. Default: all begin together. */
  readonly joins?: boolean;
  readonly settings: Settings;
  /** The library that runs collectives of groups that name no backend. Default: none. */
  readonly library?: string;
  /** The same as in GroupSpec, for the group of all ranks. */
  readonly callsBefore?: number;
  /** Memory in which the calling thread counts what the comm thread tells (src/metrics/board.ts). */
  readonly board: SharedArrayBuffer;
  /** The file of `shoal tune`, where there is one. */
  readonly tuning?: LoadedTuning;
}

/** Part of a region that both threads map. */
export interface SharedBuffer {
  readonly regionId: string;
  readonly offset: number;
  readonly bytes: number;
}

/** The way of a call through the comm thread. A call of a fast path is handed over with what is left of it. */
export type CallWay = { readonly path: EnginePath } | HostPathRest | NetworkPathRest;

export type Command =
  | { readonly type: 'map'; readonly key: number; readonly share: RegionShare }
  | { readonly type: 'unmap'; readonly regionId: string }
  | {
      readonly type: 'collective';
      readonly work: number;
      readonly group: number;
      readonly way: CallWay;
      /** Position among the group's calls. */
      readonly sequence: number;
      readonly call: CollectiveCall;
      readonly buffers: Partial<Record<BufferName, SharedBuffer>>;
      readonly timeoutMs: number;
    }
  /** An all-reduce of a scheduled group. */
  | {
      readonly type: 'scheduled';
      readonly work: number;
      readonly group: number;
      /** Name of the tensor. */
      readonly name: string;
      /** It has this name in every step. */
      readonly isNamed: boolean;
      readonly priority: number;
      readonly call: CollectiveCall;
      readonly buffer: SharedBuffer;
      readonly timeoutMs: number;
    }
  /** The scheduling of a group from the next all-reduce on. */
  | { readonly type: 'schedule'; readonly group: number; readonly scheduling: Partial<Scheduling> }
  /** Ranks of the group that sleep and whose host path has moved; bits as in the machine's doorbell set. */
  | { readonly type: 'ring'; readonly group: number; readonly doorbells: Uint32Array }
  | {
      readonly type: 'message';
      readonly work: number;
      readonly group: number;
      readonly direction: 'send' | 'recv';
      /** Undefined: whoever sends first. A receive is answered with the rank that sent. */
      readonly peer: number | undefined;
      readonly tag: number;
      readonly dtype: DType;
      readonly count: number;
      readonly buffer: SharedBuffer;
      readonly timeoutMs: number;
    }
  | { readonly type: 'open-group'; readonly work: number; readonly spec: GroupSpec; readonly timeoutMs: number }
  | { readonly type: 'close-group'; readonly work: number; readonly group: number; readonly timeoutMs: number }
  /** The group's ranks agree on those that go on, and open their group; the answer is a `ChangedGroup`. */
  | ({ readonly type: 'change-group'; readonly work: number } & ChangeRequest)
  /** This rank cannot go on with the group, for a reason of its own: all ranks hear of it. */
  | { readonly type: 'fail-group'; readonly work: number; readonly group: number; readonly error: ErrorData }
  /** The reason that this rank may end for; undefined: it is over. */
  | { readonly type: 'trouble'; readonly work: number; readonly error: ErrorData | undefined }
  | (StoreCommand & { readonly work: number })
  /** Nobody waits for this call of the store any more. */
  | { readonly type: 'store-abort'; readonly ticket: number }
  | { readonly type: 'trace'; readonly work: number }
  | { readonly type: 'close'; readonly work: number; readonly timeoutMs: number };

/** A rank's request that its group goes on without some ranks, or with others. */
export interface ChangeRequest extends Change {
  readonly group: number;
}

/** The group that follows, and what is known of its ranks. */
export interface ChangedGroup {
  readonly spec: GroupSpec;
  readonly info: Joined;
}

/** A call of the world's store. */
export interface StoreCommand {
  readonly type: 'store';
  /** Tells calls apart. */
  readonly ticket: number;
  readonly operation: StoreOperation;
  readonly timeoutMs: number | undefined;
}

/** The means by which the calling thread uses the fast path of a group, as the comm thread shares them. */
export type FastPathShare = HostPathShare | NetworkPathShare;

/** The means of the host path. */
interface HostPathShare {
  readonly path: 'host';
  /** The control blocks, by group rank. */
  readonly blocks: readonly RegionShare[];
  /** Ranks have to share CPUs, and give way to each other while they wait. */
  readonly yields: boolean;
}

/** The means of the network path. */
export interface NetworkPathShare {
  readonly path: 'network';
  /** This rank's control block. */
  readonly own: RegionShare;
  /** Memory of the wires. */
  readonly memory: RegionShare;
  /** Rates as all ranks have them. */
  readonly rates: NetworkPathRates;
  /** Sockets of the comm thread's wire; the main thread makes descriptors of its own of them. */
  readonly descriptors: readonly number[];
}

/** The world as it is known once it is set up. */
export interface WorldInfo extends WorldFacts {
  /** The origin of a byte's time between hosts; undefined: nobody has measured it. */
  readonly linkFrom: 'start' | 'tuning' | undefined;
  /** Seconds per byte that this rank copies; undefined: not measured. For its trace. */
  readonly copyByte: number | undefined;
  /** The difference to add to this rank's wall time to get rank 0's, milliseconds. */
  readonly clockOffsetMs: number;
  /** The group that has taken this rank in. Absent: it was there when the world began. */
  readonly spec?: GroupSpec | undefined;
}

/** The part of it that is known before the world's group is open. */
export type Joined = WorldFacts & Pick<WorldInfo, 'linkFrom'>;

/** Events that the comm side tells of its own accord. */
export type WorldTold =
  /** The fast path of a group; comes before the group is used. */
  | { readonly type: 'fast-path'; readonly group: number; readonly share: FastPathShare }
  /** A region of a rank of this host, to be mapped when the host path needs it; undefined: it is gone. */
  | { readonly type: 'peer-region'; readonly rank: number; readonly key: number; readonly share: RegionShare | undefined }
  /** The credit and partition of a scheduled group from now on. */
  | { readonly type: 'scheduled-by'; readonly group: number; readonly status: SchedulingStatus }
  /** The number of ranks that wait to be taken in. */
  | { readonly type: 'waiting'; readonly count: number }
  /** A rank has aborted the group. */
  | { readonly type: 'aborted'; readonly group: number }
  /** All ranks have left the group, or are gone: its number may be another's. */
  | { readonly type: 'group-ended'; readonly group: number };

export type CommEvent = WorldTold | GuestEvent<WorldInfo, unknown>;
