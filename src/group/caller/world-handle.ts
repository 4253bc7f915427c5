/** The calling thread's part of a world: one object, which all groups of the world and their fast paths share. */
import type { LeaveSignal } from '../../base/leave-signal.ts';
import type { Settings } from '../../base/settings/settings.ts';
import type { UnheededWorks } from '../../comm/caller/work.ts';
import type { Board } from '../../metrics/board.ts';
import type { NativeWire } from '../../memory/native-wire.ts';
import type { RegionAllocator } from '../../memory/region.ts';
import type { JobStore } from '../../store/store.ts';
import type { TraceRecorder } from '../../trace/recorder.ts';
import type { GroupSpec, Scheduling } from '../../call/group-spec.ts';
import type { Planner, WorldPlanning } from '../../call/planner.ts';
import type { WorldInfo } from '../shared/comm-protocol.ts';
import type { CommClient } from './comm-client.ts';
import type { OpenFastPath } from './fast-path.ts';
import type { ProcessGroup, ScheduledGroup } from './types.ts';
import type { TensorMemory } from './tensor-memory.ts';

export interface WorldHandle {
  readonly settings: Settings;
  /** The library that runs collectives of groups that name no backend. Default: none. */
  readonly library?: string | undefined;
  readonly client: CommClient;
  readonly allocator: RegionAllocator;
  readonly memory: TensorMemory;
  /** Sockets of the addon; undefined without it. */
  readonly native: NativeWire | undefined;
  /** The rules by which both threads find the same plans, beside the rates in `info`. */
  readonly planning: Omit<WorldPlanning, 'model'>;
  readonly info: WorldInfo;
  /** The calls and steps of this thread, counted. */
  readonly board: Board;
  readonly leaveSignal: Pick<LeaveSignal, 'hasCome' | 'close'>;
  /** The timeline of this thread. */
  readonly trace: TraceRecorder;
  readonly store: JobStore;
  /** Scheduling of groups that say nothing. */
  readonly scheduling: Scheduling;
  /** The works of programs' calls that nobody looks at. */
  readonly unheeded: UnheededWorks;
  /** The smallest parts that a program may ask for. */
  readonly partitionBytesMin: number;
  /** Opens the fast path of a group; undefined: all its calls are the engine's. */
  openFastPath(spec: GroupSpec, planner: Planner): OpenFastPath | undefined;
  /** The scheduled group of a group, once its spec has been opened. @param how `ownsGroup`: the group ends with it. */
  scheduledGroup(group: ProcessGroup, spec: GroupSpec, how: { readonly ownsGroup?: boolean }): ScheduledGroup;
  /** Ends the world; called when its first group is destroyed. */
  close(timeoutMs: number): Promise<void>;
}
