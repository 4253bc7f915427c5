/** Entry to the library: joins the world that the environment describes and returns its process group. */
import { systemClock } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import { checkDescriptors, exhaustion } from '../../base/exhaustion.ts';
import { createLogger, type Logger } from '../../base/log.ts';
import { anyNumber, anyObject, anyText, anything, checkOptions, noOptions, optionTable } from '../../base/schema.ts';
import { readSettings, type Environment, type Settings } from '../../base/settings/settings.ts';
import { InlineHost, type CommHost, type CommHostHandlers } from '../../comm/comm-host.ts';
import { hostGuest } from '../../comm/comm-thread.ts';
import { parseSelection } from '../../collectives/select.ts';
import { loadNative, nativeUnavailableReason } from '../../memory/native.ts';
import { createRegionAllocator } from '../../memory/regions/allocator.ts';
import { createStepMachine } from '../../memory/step-machine/create-step-machine.ts';
import { checkBackend, checkTimeout } from '../dispatch/call-arguments.ts';
import { CommClient } from '../thread/comm-client.ts';
import { CommStore } from '../thread/comm-store.ts';
import type { Command, CommEvent, WorldInfo, WorldPlan } from '../engine/comm-protocol.ts';
import { detectWorld } from '../../store/environment.ts';
import type { JobStore } from '../../store/store.ts';
import { UnheededWorks } from '../../comm/work.ts';
import { CommGroup, type WorldHandle } from './process-group.ts';
import { checkedScheduling, partitionBytesMin } from './scheduled-group.ts';
import { schedulingOf, worldGroupId, worldSpec } from '../call/group-spec.ts';
import { openNetworkPath } from './open-network-path.ts';
import { WorldTrace } from './world-trace.ts';
import { openHostPath } from './open-host-path.ts';
import { PeerRegions } from '../thread/peer-regions.ts';
import { plannerOf, type WorldPlanning } from '../call/planner.ts';
import { TensorMemory } from '../dispatch/tensor-memory.ts';
import type { ProcessGroup, ScheduledGroup, SchedulingOptions } from '../call/types.ts';

/** Freed large tensors whose memory is kept for the next ones. */
const cacheBytesMax = 256 * 2 ** 20;
/** What a world of several ranks takes beside the connections. A thread that starts reads many files at once. */
const workerDescriptors = 14;
const inlineDescriptors = 6;
/** Time for links and threads to end after the work has. */
const graceMs = 2000;
/** Places that a warning names. */
const unheededMax = 5;

/** How a process joins its world. */
export interface InitOptions {
  /** `auto` chooses an algorithm per call; an algorithm's name (`direct`, `ring`, …) takes that one wherever it has the
   *  collective and chooses automatically elsewhere; `mpi` leaves collectives to Open MPI, for ranks that mpirun started.
   *  Default `auto`. */
  readonly backend?: string;
  /** Where ranks meet: `env://` (variables of the launcher), `tcp://host:port`, `file:///shared/path`. Default `env://`. */
  readonly initMethod?: string;
  /** With `tcp://` and `file://`: this process's rank and the number of ranks. Default: what the environment says. */
  readonly rank?: number;
  /** With `rank`: how many ranks there are. */
  readonly worldSize?: number;
  /** Default time limit of operations. Default: SHOAL_TIMEOUT_MS, 5 minutes. */
  readonly timeoutMs?: number;
  /** How long to wait for all ranks to appear. Default: `timeoutMs`. */
  readonly joinTimeoutMs?: number;
  /** All-reduces of the group are scheduled, as in `group.scheduled`; the same on all ranks. Default: SHOAL_SCHEDULING. */
  readonly scheduling?: SchedulingOptions | boolean;
  /** Instead of `process.env`: two worlds can live in one process. */
  readonly environment?: Environment;
}

const initOptions = optionTable<InitOptions>({
  backend: anyText,
  initMethod: anyText,
  rank: anyNumber,
  worldSize: anyNumber,
  timeoutMs: anyNumber,
  joinTimeoutMs: anyNumber,
  scheduling: anything,
  environment: anyObject,
});

/** Joins the world; resolves when all ranks have. Without a launcher and options: a world of one.
 *  @throws ShoalError `config` for contradictory settings, `timeout` naming the ranks that did not come, `peer-lost`,
 *          `auth`, `usage`. */
export async function initProcessGroup(options: InitOptions & { readonly scheduling: SchedulingOptions | true }): Promise<ScheduledGroup>;
export async function initProcessGroup(options?: InitOptions): Promise<ProcessGroup>;
export async function initProcessGroup(options: InitOptions = noOptions): Promise<ProcessGroup> {
  checkOptions('initProcessGroup', options, initOptions);
  for (const limitMs of [options.timeoutMs, options.joinTimeoutMs]) if (limitMs !== undefined) checkTimeout(limitMs);
  const { scheduling: given } = options;
  if (given !== undefined && typeof given !== 'boolean') checkedScheduling('initProcessGroup: scheduling', given, partitionBytesMin);
  const environment = options.environment ?? process.env;
  const settings = settingsOf(options, environment);
  const { rank, size } = placeOf(options, environment);
  const joinTimeoutMs = options.joinTimeoutMs ?? settings.timeoutMs;
  const variables = { ...environment };
  const plan: WorldPlan = {
    rank,
    size,
    url: options.initMethod ?? 'env://',
    environment: variables,
    joinTimeoutMs,
    settings,
    ...(options.backend === 'mpi' ? { backend: 'mpi' } : {}),
    tuning: settings.tuningFile === '' ? undefined : (await import('../call/tuning-file.ts')).loadTuning(settings.tuningFile),
  };
  let client: CommClient | undefined;
  try {
    checkDescriptors(`rank ${rank}`, descriptorsOf(plan), `joining a world of ${size}`, { rank });
    // The comm thread starts before this call returns: a script that computes next does not keep it from joining.
    const inline = settings.commThread === 'worker' ? undefined : await inlineHost(plan);
    client = new CommClient(
      (handlers) =>
        inline?.(handlers) ??
        hostGuest({ entry: 'group/thread/world-guest.js', plan, who: `rank ${rank}`, postpones: settings.native }, handlers),
    );
    const group = openWorldGroup(options, plan, client, await client.ready());
    const scheduling = given ?? settings.scheduling;
    if (scheduling === false) return group;
    return await group.openScheduled({ ...(scheduling === true ? {} : scheduling), timeoutMs: joinTimeoutMs }, { ownsGroup: true });
  } catch (thrown) {
    const error = exhaustion(`rank ${rank}`, thrown, 'joining the world', { rank }) ?? ShoalError.from(thrown);
    // The others wait for this rank, and may have joined already.
    await client?.failGroup(worldGroupId, error);
    await client?.leave(error);
    if (client?.hasBegun !== true) await tellAbsence(plan, error);
    throw error;
  }
}

/** A rank that cannot even begin to join says so to those that wait for it. */
async function tellAbsence(plan: WorldPlan, error: ShoalError): Promise<void> {
  try {
    await (await import('../thread/tell-absence.ts')).tellAbsence(plan, error);
  } catch {
    // Its files cannot be read: then nobody can be reached, either.
  }
}

/** At least so many a world takes: a connection to each rank, the listeners, the store, memory, and the comm thread while it starts. */
function descriptorsOf({ size, settings }: WorldPlan): number {
  if (size === 1) return 4;
  return size + (settings.commThread === 'worker' ? workerDescriptors : inlineDescriptors);
}

/** One rank of each host says so; nobody does when it was asked for. */
function warnWithoutAddon(plan: WorldPlan, { hosts }: WorldInfo): void {
  const { rank, size, settings, environment } = plan;
  if (size === 1 || !settings.native || environment['SHOAL_NATIVE'] === '0' || !hosts.some(([first]) => first === rank)) return;
  const reason = nativeUnavailableReason();
  if (reason === undefined) return;
  loggerOf(plan).warn(`ranks of this host share no memory and compute in JavaScript, which is several times slower: ${reason}`);
}

function loggerOf({ rank, settings }: WorldPlan): Logger {
  return createLogger({ level: settings.logLevel, clock: systemClock, speaker: `rank ${rank}` });
}

/** Of the ranks whose scripts may have left works unheeded, one tells people. */
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

/** The group of all ranks of a world that this process has joined. */
function openWorldGroup(options: InitOptions, plan: WorldPlan, client: CommClient, info: WorldInfo): CommGroup {
  const world = openWorld(plan, client, info);
  warnWithoutAddon(plan, info);
  if (options.environment !== undefined) return new CommGroup(world, worldSpec(plan, info.topology));
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
  const group = new CommGroup({ ...world, close }, worldSpec(plan, info.topology));
  process.once('beforeExit', leave);
  process.once('exit', exit);
  return group;
}

function settingsOf(options: InitOptions, environment: Environment): Settings {
  const read = readSettings(environment);
  const backend = options.backend ?? 'auto';
  checkBackend(backend);
  const chosen =
    backend === 'auto' || backend === 'mpi' ? read.algorithms : [read.algorithms, `*:${backend}`].filter((part) => part !== '').join(';');
  parseSelection(chosen);
  return { ...read, algorithms: chosen, timeoutMs: options.timeoutMs ?? read.timeoutMs };
}

function placeOf(options: InitOptions, environment: Environment): { rank: number; size: number } {
  const given = options.rank !== undefined && options.worldSize !== undefined;
  if (!given && (options.rank !== undefined || options.worldSize !== undefined)) {
    throw new ShoalError('usage', 'initProcessGroup needs both rank and worldSize, or neither');
  }
  const spec = given ? undefined : detectWorld(environment, { parentPid: process.ppid });
  const rank = options.rank ?? spec?.rank ?? 0;
  const size = options.worldSize ?? spec?.worldSize ?? 1;
  if (Number.isInteger(rank) && Number.isInteger(size) && rank >= 0 && rank < size) return { rank, size };
  throw new ShoalError('usage', `rank ${rank} of ${size} is not possible; ranks are 0…worldSize−1`);
}

/** The comm thread's code is loaded here only where this thread runs it. */
async function inlineHost(plan: WorldPlan): Promise<(handlers: CommHostHandlers<CommEvent>) => CommHost<Command>> {
  const [{ CommCore }, { systemEnvironment }] = await Promise.all([
    import('../thread/comm-core.ts'),
    import('../thread/system-environment.ts'),
  ]);
  const environment = systemEnvironment(plan);
  return (handlers) => new InlineHost((emit) => new CommCore(plan, environment, emit), handlers);
}

/** What the groups of this world share, and how it ends. */
function openWorld(plan: WorldPlan, client: CommClient, info: WorldInfo): WorldHandle {
  const { settings } = plan;
  const budget = settings.sharedMemoryMax > 0 ? { budget: settings.sharedMemoryMax } : {};
  const native = loadNative({ enabled: settings.native });
  const allocator = createRegionAllocator({ native, owner: `rank ${plan.rank}`, ...budget });
  const trace = new WorldTrace(plan, client, info, loggerOf(plan));
  client.usePeerRegions(new PeerRegions(allocator));
  const memory = new TensorMemory({
    allocator,
    cacheBytesMax,
    onCreate: (region, key) => client.post({ type: 'map', key, share: region.share }),
    onDrop: (region) => client.post({ type: 'unmap', regionId: region.id }),
  });
  const unheeded = new UnheededWorks();
  const store = new CommStore(client);
  const close = (timeoutMs: number): Promise<void> => closeWorld({ plan, client, trace, memory, store, unheeded, timeoutMs });
  const planning: WorldPlanning = {
    machine: createStepMachine({ native, clock: systemClock }),
    tuning: plan.tuning?.tuning,
    model: info.model,
    settings,
    selection: parseSelection(settings.algorithms),
  };
  const opening = { plan, settings, client, allocator, native, trace: trace.recorder, memory, planning };
  return {
    client,
    memory,
    info,
    timeoutMs: settings.timeoutMs,
    trace: trace.recorder,
    store,
    unheeded,
    scheduling: schedulingOf(settings),
    partitionBytesMin,
    planner: (spec) => plannerOf(planning, spec),
    openFastPath: (spec, planner) => openHostPath(opening, spec) ?? openNetworkPath(opening, spec, planner),
    close,
  };
}

interface ClosingWorld {
  readonly plan: WorldPlan;
  readonly client: CommClient;
  readonly trace: WorldTrace;
  readonly memory: TensorMemory;
  readonly store: JobStore;
  readonly unheeded: UnheededWorks;
  readonly timeoutMs: number;
}

/** Leaves the world within its time, whatever goes wrong, and writes the trace where one is asked for. */
async function closeWorld({ plan, client, trace, memory, store, unheeded, timeoutMs }: ClosingWorld): Promise<void> {
  const { rank } = plan;
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
    await client.leave(new ShoalError('closed', 'the process group was destroyed', { rank }));
    memory.close();
  }
}
