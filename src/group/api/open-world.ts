/** Opens the calling thread's part of a world that its comm thread has joined: tensors' memory, timeline, store and fast paths; and closes
 *  it. */
import { systemClock } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import { createLogger, type Logger } from '../../base/log.ts';
import { parseSelection } from '../../collectives/select.ts';
import { UnheededWorks } from '../../comm/caller/work.ts';
import { LeaveSignal } from '../../base/leave-signal.ts';
import { Board } from '../../metrics/board.ts';
import { loadNative, nativeUnavailableReason } from '../../memory/native.ts';
import { createRegionAllocator } from '../../memory/regions/allocator.ts';
import { createStepMachine } from '../../memory/step-machine/create-step-machine.ts';
import type { JobStore } from '../../store/store.ts';
import { schedulingOf, worldSpec } from '../../call/group-spec.ts';
import { openHostPath } from '../caller/paths/host-path-caller.ts';
import { openNetworkPath } from '../caller/paths/network-path-caller.ts';
import { TensorMemory } from '../caller/tensor-memory.ts';
import type { WorldHandle } from '../caller/world-handle.ts';
import type { WorldInfo, WorldPlan } from '../shared/comm-protocol.ts';
import type { CommClient } from '../caller/comm-client.ts';
import { CommStore } from '../caller/comm-store.ts';
import { CommGroup } from './process-group.ts';
import { ScheduledCommGroup } from './scheduled-group.ts';
import { partitionBytesMin } from './scheduling.ts';
import { WorldTrace } from './world-trace.ts';

/** Bytes of freed large tensors that are kept for the next ones. */
const cacheBytesMax = 256 * 2 ** 20;
/** Time for links and threads to end after the work has. */
const graceMs = 2000;
/** The most places that a warning names. */
const unheededMax = 5;

/** The group of all ranks of a world that this process has joined. @param leavesByItself the script may end without `destroy`. */
export function openWorldGroup(
  plan: WorldPlan,
  client: CommClient,
  info: WorldInfo,
  { leavesByItself }: { readonly leavesByItself: boolean },
): CommGroup {
  const world = openWorld(plan, client, info);
  warnWithoutAddon(plan, info);
  const spec = info.spec ?? worldSpec(plan, info.topology);
  client.groupNumbers.use(spec.id, spec.serial);
  if (!leavesByItself) return new CommGroup(world, spec);
  // A script that ends without `destroy` still leaves as one that calls it: what it has done last, others may not have yet.
  const leave = (): void => void group.destroy();
  const exit = (code: number): void => {
    client.drain();
    if (code === 0) warnOfUnheeded(plan, world.unheeded);
  };
  const close: WorldHandle['close'] = (timeoutMs) => {
    process.off('beforeExit', leave);
    process.off('exit', exit);
    return world.close(timeoutMs);
  };
  const group = new CommGroup({ ...world, close }, spec);
  process.once('beforeExit', leave);
  process.once('exit', exit);
  return group;
}

/** Makes the handle that the groups of this world share. */
function openWorld(plan: WorldPlan, client: CommClient, info: WorldInfo): WorldHandle {
  const { settings } = plan;
  const budget = settings.sharedMemoryMax > 0 ? { budget: settings.sharedMemoryMax } : {};
  const native = loadNative({ enabled: settings.native });
  const allocator = createRegionAllocator({ native, owner: `rank ${plan.rank}`, ...budget });
  const trace = new WorldTrace(plan, client, info, loggerOf(plan));
  const memory = new TensorMemory({
    allocator,
    cacheBytesMax,
    onCreate: (region, key) => client.post({ type: 'map', key, share: region.share }),
    onDrop: (region) => client.post({ type: 'unmap', regionId: region.id }),
  });
  const unheeded = new UnheededWorks();
  const store = new CommStore(client);
  const planning: WorldHandle['planning'] = {
    machine: createStepMachine({ native, clock: systemClock }),
    tuning: plan.tuning?.tuning,
    settings,
    selection: parseSelection(settings.algorithms),
  };
  const world: WorldHandle = {
    settings,
    library: plan.library,
    client,
    allocator,
    memory,
    native,
    planning,
    info,
    trace: trace.recorder,
    board: new Board(plan.board, systemClock),
    leaveSignal: new LeaveSignal(),
    store,
    unheeded,
    scheduling: schedulingOf(settings),
    partitionBytesMin,
    openFastPath: (spec, planner) => openHostPath(world, spec) ?? openNetworkPath(world, spec, planner),
    scheduledGroup: (group, spec, how) => new ScheduledCommGroup({ world, group: group as CommGroup, spec, ...how }),
    close: (timeoutMs) => closeWorld(world, plan, trace, timeoutMs),
  };
  return world;
}

/** Leaves the world within its time, whatever goes wrong, and writes the trace where one is asked for. */
async function closeWorld(world: WorldHandle, plan: WorldPlan, trace: WorldTrace, timeoutMs: number): Promise<void> {
  const { client, store, memory, unheeded } = world;
  const late = new Promise<false>((resolve) => systemClock.setTimer(timeoutMs + graceMs, () => resolve(false)));
  try {
    await trace.write();
    client.drain();
    const hasUnheeded = unheeded.count + unheeded.running > 0;
    const speaks = hasUnheeded && (await Promise.race([isFirst(plan, store), late]));
    await Promise.race([client.start({ type: 'close', timeoutMs }, 'closing the world'), late]);
    if (speaks) warnOfUnheeded(plan, unheeded);
  } catch (thrown) {
    loggerOf(plan).warn(`closing the world: ${ShoalError.from(thrown).message}`);
  } finally {
    await client.leave(new ShoalError('closed', 'the process group was destroyed', { rank: plan.rank }));
    memory.close();
    world.board.close();
    world.leaveSignal.close();
  }
}

/** One rank of each host says so; nobody does when it was asked for. */
function warnWithoutAddon(plan: WorldPlan, { hosts }: WorldInfo): void {
  const { rank, size, settings, environment } = plan;
  if (size === 1 || !settings.native || environment['SHOAL_NATIVE'] === '0' || !hosts.some(([first]) => first === rank)) return;
  const reason = nativeUnavailableReason();
  if (reason === undefined) return;
  loggerOf(plan).warn(`ranks of this host share no memory and compute in JavaScript, which is several times slower: ${reason}`);
}

/** True on one of the ranks whose scripts may have left works unheeded: it tells people. */
async function isFirst({ rank }: WorldPlan, store: JobStore): Promise<boolean> {
  const own = Buffer.from(String(rank));
  return own.equals(await store.compareSet('shoal/unheeded', '', own).catch(() => own));
}

/** Calls that were not complete when they returned, and that the script has not waited for. */
function warnOfUnheeded(plan: WorldPlan, unheeded: UnheededWorks): void {
  const { count } = unheeded;
  if (count === 0) return;
  const what = unheeded.describe().slice(0, unheededMax).join('; ');
  loggerOf(plan).warn(
    `${count === 1 ? 'one call was' : `${count} calls were`} never awaited: ${what}. What follows such a call may find the data as it was, on some ranks; write await, or waitSync()`,
  );
}

function loggerOf({ rank, settings }: WorldPlan): Logger {
  return createLogger({ level: settings.logLevel, clock: systemClock, speaker: `rank ${rank}` });
}
