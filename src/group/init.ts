/** Entry to the library: joins the world that the environment describes and returns its process group. */
import { ShoalError } from '../base/errors.ts';
import { checkDescriptors, exhaustion } from '../base/exhaustion.ts';
import { anyNumber, anyObject, anyText, anything, checkOptions, flag, noOptions, optionTable } from '../base/schema.ts';
import { readSettings, type Environment, type Settings } from '../base/settings/settings.ts';
import { InlineHost, type CommHost, type CommHostHandlers } from '../comm/caller/comm-host.ts';
import { hostGuest } from '../comm/caller/comm-thread.ts';
import { parseSelection } from '../collectives/select.ts';
import { checkBackend, checkTimeout } from './caller/call-arguments.ts';
import { boardMemory } from '../metrics/board.ts';
import { checkMetrics } from '../metrics/rank-teller.ts';
import { CommClient } from './caller/comm-client.ts';
import { chosenBackend } from '../call/collective-libraries.ts';
import type { Command, CommEvent, WorldPlan } from './shared/comm-protocol.ts';
import { detectWorld } from '../store/environment.ts';
import { openWorldGroup } from './api/open-world.ts';
import { checkedScheduling, partitionBytesMin } from './api/scheduling.ts';
import { worldGroupId } from '../membership/group-numbers.ts';
import type { ProcessGroup, ScheduledGroup, SchedulingOptions } from './caller/types.ts';

/** Descriptors that a world of several ranks takes beside the connections. A thread that starts reads many files at once. */
const workerDescriptors = 14;
const inlineDescriptors = 6;
/** The options with which a process joins its world. */
export interface InitOptions {
  /** `auto` chooses an algorithm per call; an algorithm's name (`direct`, `ring`, …) takes that one wherever it has the
   *  collective and chooses automatically elsewhere; `mpi` leaves collectives to Open MPI, for ranks that mpirun started.
   *  Default `auto`. */
  readonly backend?: string;
  /** Where ranks meet: `env://` (variables of the launcher), `tcp://host:port`, `file:///shared/path`. Default `env://`. */
  readonly initMethod?: string;
  /** This process's rank with `tcp://` and `file://`, and the number of ranks. Default: what the environment says. */
  readonly rank?: number;
  /** The number of ranks; given with `rank`. */
  readonly worldSize?: number;
  /** Joins a world that has begun with `worldSize` ranks, without a rank of its own: resolves when its ranks call `grow`. Default:
   *  SHOAL_JOIN. */
  readonly join?: boolean;
  /** Default time limit of operations. Default: SHOAL_TIMEOUT_MS, 5 minutes. */
  readonly timeoutMs?: number;
  /** Time limit for all ranks to appear. Default: `timeoutMs`. */
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
  join: flag,
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
  const joins = options.join ?? settings.join;
  const joinTimeoutMs = options.joinTimeoutMs ?? settings.timeoutMs;
  // A newcomer's rank is none of those that the world began with; launchers' variables are not complete without one.
  const noPlace = { RANK: '0', LOCAL_RANK: undefined, LOCAL_WORLD_SIZE: undefined };
  const variables = joins && environment['WORLD_SIZE'] !== undefined ? { ...environment, ...noPlace } : { ...environment };
  const { rank, size } = placeOf(options, variables, joins);
  const begun: WorldPlan = {
    rank,
    size,
    joins,
    url: options.initMethod ?? 'env://',
    environment: variables,
    joinTimeoutMs,
    settings,
    board: boardMemory({ counts: checkMetrics(settings) }),
    library: chosenBackend(options.backend).library,
    tuning: settings.tuningFile === '' ? undefined : (await import('../call/tuning-file.ts')).loadTuning(settings.tuningFile),
  };
  const { newcomerNumber } = joins ? await import('./caller/newcomer-number.ts') : {};
  const plan = newcomerNumber ? { ...begun, rank: await newcomerNumber(begun, environment['RANK']) } : begun;
  let client: CommClient | undefined;
  try {
    checkDescriptors(`rank ${rank}`, descriptorsOf(plan), `joining a world of ${size}`, { rank });
    // The comm thread starts before this call returns: a script that computes next does not keep it from joining.
    const inline = settings.commThread === 'worker' ? undefined : await inlineHost(plan);
    client = new CommClient(
      (handlers) =>
        inline?.(handlers) ??
        hostGuest({ entry: 'group/comm/world-guest.js', plan, who: `rank ${rank}`, postpones: settings.native }, handlers),
    );
    const group = openWorldGroup(plan, client, await client.ready(), { leavesByItself: options.environment === undefined });
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
    await (await import('./caller/tell-absence.ts')).tellAbsence(plan, error);
  } catch {
    // Its files cannot be read: then nobody can be reached, either.
  }
}

/** Descriptors that a world takes at least: a connection to each rank, listeners, the store, memory, and the comm thread while it
 *  starts. */
function descriptorsOf({ size, settings }: WorldPlan): number {
  if (size === 1 && !settings.grows) return 4;
  return size + (settings.commThread === 'worker' ? workerDescriptors : inlineDescriptors);
}

function settingsOf(options: InitOptions, environment: Environment): Settings {
  const read = readSettings(environment);
  checkBackend(options.backend ?? 'auto');
  const { backend = 'auto' } = chosenBackend(options.backend);
  const chosen = backend === 'auto' ? read.algorithms : [read.algorithms, `*:${backend}`].filter((part) => part !== '').join(';');
  parseSelection(chosen);
  return { ...read, algorithms: chosen, timeoutMs: options.timeoutMs ?? read.timeoutMs };
}

/** @param joins a number for the rank comes later; until then it has that of none. */
function placeOf(options: InitOptions, environment: Environment, joins: boolean): { rank: number; size: number } {
  if (joins && options.rank !== undefined)
    throw new ShoalError('usage', 'initProcessGroup: who joins a world that has begun gets its rank there');
  const given = options.worldSize !== undefined && (joins || options.rank !== undefined);
  if (!given && (options.rank !== undefined || options.worldSize !== undefined)) {
    throw new ShoalError('usage', 'initProcessGroup needs both rank and worldSize, or neither');
  }
  const spec = given ? undefined : detectWorld(environment, { parentPid: process.ppid });
  const rank = options.rank ?? spec?.rank ?? 0;
  const size = options.worldSize ?? spec?.worldSize ?? 1;
  if (joins && spec?.meeting.kind !== 'alone' && Number.isInteger(size) && size > 0) return { rank: size, size };
  if (joins) throw new ShoalError('config', 'initProcessGroup: no world to join: use `shoal run --min`, or give initMethod and worldSize');
  if (spec?.source === 'none' && (options.initMethod ?? 'env://') !== 'env://')
    throw new ShoalError('usage', `initProcessGroup: initMethod '${options.initMethod}' needs rank and worldSize, or a launcher`);
  if (Number.isInteger(rank) && Number.isInteger(size) && rank >= 0 && rank < size) return { rank, size };
  throw new ShoalError('usage', `rank ${rank} of ${size} is not possible; ranks are 0…worldSize−1`);
}

/** The comm thread's code is loaded here only where this thread runs it. */
async function inlineHost(plan: WorldPlan): Promise<(handlers: CommHostHandlers<CommEvent>) => CommHost<Command>> {
  const [{ CommCore }, { systemEnvironment }] = await Promise.all([import('./comm/comm-core.ts'), import('./comm/system-environment.ts')]);
  const environment = systemEnvironment(plan);
  return (handlers) => new InlineHost((emit) => new CommCore(plan, environment, emit), handlers);
}
