/** Bootstrap: the ranks of a world find each other through the store, agree that they belong together, connect, and
 *  learn which ranks can load and store each other's memory.
 *
 *      rank r   info/r ──▶ store ──▶ info/0…n−1    checked: size, version, settings that must agree
 *               dials every lower rank (shm where the host may be the same, else tcp), accepts every higher one
 *               links/r ──▶ store ──▶ links/0…n−1  → topology: ranks that all map each other form a host
 *               rates/r ──▶ store ──▶ rates of some hosts → the cost model, by which algorithms are chosen between hosts
 *
 *  One time limit covers all of it. It ends early when the store says that a rank has ended or given up (`joinTogether`). A rank that gives
 *  up names the ranks that it waited for; if these wait for another rank themselves, it names that one:
 *
 *      rank 0, half its time over, has no link to rank 2   waits/0 ──▶ store      rank 1: all have links but 0 and 2; 0 waits for 2 */
import { setServedTimer, within, type Timer } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import { isExhaustion } from '../../base/exhaustion.ts';
import { anyText, integer, list, number, object, record, type Shape, type ValueOf } from '../../base/schema.ts';
import type { Settings } from '../../base/settings/settings.ts';
import { groupBy } from '../../base/collections/lists.ts';
import type { Connection, Fabric, FabricAddress } from '../../fabric/fabric.ts';
import type { CostModel } from '../../plan/cost.ts';
import type { Topology } from '../../plan/topology.ts';
import { agreedModel, measureArithmetic, measuringRanks, networkRates, timedPeer, type MeasuredRates } from './links/calibrate.ts';
import { noteJoined } from '../../store/ended-ranks.ts';
import type { Joined } from '../shared/comm-protocol.ts';
import { rangesOf } from '../../membership/rank-ranges.ts';
import { cliques, linkInfo, reachOf, type LinkInfo } from '../../membership/newcomers.ts';
import type { Store } from '../../store/store.ts';
import type { JoinLimit } from '../../membership/join-limit.ts';
import { decodeJson, encodeJson } from '../../base/bytes.ts';
import { storeAnswerMs } from '../../membership/joining.ts';
import type { World } from './world.ts';

export const rankInfo = object({
  rank: integer(),
  worldSize: integer(),
  hostId: anyText,
  hostName: anyText,
  pid: integer(),
  addresses: list(object({ provider: anyText, candidates: list(anyText) })),
  version: anyText,
  /** JSON of an `AgreedSettings`: equal texts need no second look. */
  agreed: anyText,
});

export type RankInfo = ValueOf<typeof rankInfo>;

const rateInfo: Shape<MeasuredRates> = record(number({ min: 0 }));

/** World ranks. */
const waitsInfo = list(integer());

/** Settings that change what ranks do together: they must be the same on every rank. */
const agreedNames = [
  'algorithms',
  'calibration',
  'order',
  'contract',
  'inFlightMax',
  'stagingBytes',
  'sliceBytes',
  'groupHosts',
  'syncBytesMax',
  'commThread',
] as const;

type AgreedSettings = Readonly<Record<string, string | number | boolean>>;

function agreedSettings(settings: Settings, tuningHash: string): AgreedSettings {
  return { tuningHash, ...Object.fromEntries(agreedNames.map((name) => [name, settings[name]])) };
}

export interface BootstrapOptions {
  readonly world: World;
  readonly store: Store;
  /** Rates that need not be measured. */
  readonly ratesOf: (topology: Topology) => CostModel | undefined;
  readonly limit: JoinLimit;
  /** Joining has ended, well or not. */
  readonly signal: AbortSignal;
}

type DialOptions = Pick<BootstrapOptions, 'world' | 'limit' | 'signal'>;

/** Ranks that a rank dials at once: who is dialled bounds the connections that have not proved themselves, and drops the oldest. */
export const dialsMax = 8;

/** Joins the world. @throws ShoalError `timeout`, `config`, `peer-lost`, `auth`: each names the ranks concerned. */
export async function bootstrap(options: BootstrapOptions): Promise<Joined> {
  const { world, store } = options;
  const info = await listen(world);
  const infos = await exchange(options, 'info', info, rankInfo);
  checkAgreement(infos, info);
  await connectAll(options, infos);
  const linkLost = lossOf(world);
  const links = (await Promise.race([linkLost, exchange(options, 'links', linksOf(world), linkInfo)])).map((info) =>
    reachOf(info, world.env.size),
  );
  const topology = { hosts: cliques(links.map(({ loadStore }) => loadStore)) };
  const tuned = options.ratesOf(topology);
  const measured = tuned === undefined ? await Promise.race([linkLost, measuredModel(options, topology)]) : undefined;
  await noteJoined(store, world.rank);
  world.lossWatchers.clear();
  return {
    hosts: [...groupBy(infos, (each) => each.hostId).values()].map((each) => each.map(({ rank }) => rank)),
    topology,
    model: tuned ?? measured?.model,
    linkFrom: tuned ? 'tuning' : measured?.hasLink ? 'start' : undefined,
    fabricOf: links.map(({ fabricOf }, rank) => infos.map((_, peer) => (peer === rank ? 'self' : (fabricOf.get(peer) ?? '?')))),
  };
}

/** Takes connections from now on. @returns what others need to know of this rank. */
export async function listen(world: World): Promise<RankInfo> {
  const { hostId, hostName, pid, version, settings, tuning, fabrics, size } = world.env;
  const listening = await Promise.all(fabrics.map((fabric) => fabric.listen((connection) => world.addLink(connection, fabric))));
  return {
    rank: world.rank,
    worldSize: size,
    hostId,
    hostName,
    pid,
    addresses: listening.map(({ provider, candidates }) => ({ provider, candidates: [...candidates] })),
    version,
    agreed: JSON.stringify(agreedSettings(settings, tuning?.hash ?? '')),
  };
}

/** Times links between hosts, on one rank of each, and makes one model of what all have measured. */
async function measuredModel(
  options: BootstrapOptions,
  topology: Topology,
): Promise<{ readonly model: CostModel | undefined; readonly hasLink: boolean } | undefined> {
  const { world } = options;
  const ranks = measuringRanks(topology);
  if (world.env.settings.calibration !== 'measure' || ranks.length === 0) return undefined;
  const measured = ranks.includes(world.rank) ? await ratesTo(world, timedPeer(world.rank, topology)) : {};
  const all = await exchange(options, 'rates', measured, rateInfo, ranks);
  const model = agreedModel(all);
  world.env.log.debug(`rates: ${model === undefined ? 'not measured' : JSON.stringify(model)}`);
  return { model, hasLink: all.some(({ networkByte = 0 }) => networkByte > 0) };
}

/** Times the link to a rank, and this rank's copies and sums. */
export async function ratesTo(world: World, peer: number): Promise<MeasuredRates> {
  const network = await world.linkProbe.measure(world.link(peer));
  return { ...measureArithmetic(world.env), ...(network && networkRates(network)) };
}

/** Publishes this rank's value and returns everyone's, or those of `ranks`. */
async function exchange<T>(
  options: BootstrapOptions,
  name: string,
  value: T,
  schema: Shape<T>,
  ranks: readonly number[] = Array.from({ length: options.world.env.size }, (_, rank) => rank),
): Promise<T[]> {
  const { world, store, limit, signal } = options;
  const keys = ranks.map((rank) => `${name}/${rank}`);
  if (ranks.includes(world.rank)) await store.set(`${name}/${world.rank}`, encodeJson(value));
  const waiting = store.multiGet(keys, { timeoutMs: limit.leftMs, signal });
  const texts = await waiting.catch(async (thrown: unknown) => {
    const error = ShoalError.from(thrown);
    throw error.code === 'timeout' && error.operation === 'store wait' ? await absence(options, { keys, ranks, error }) : error;
  });
  return texts.map((published, index) => {
    const peer = ranks[index];
    const given = decodeJson(published);
    const problem = schema.problem(given);
    if (problem === undefined) return given as T;
    throw new ShoalError('protocol', `rank ${peer} published a malformed ${name}; do all ranks run the same version?`, { peer });
  });
}

/** The links of a rank as it publishes them. */
export function linksOf(world: World): LinkInfo {
  const over = groupBy(world.links, (link) => link.fabric);
  return {
    fabrics: Object.fromEntries([...over].map(([fabric, links]) => [fabric, rangesOf(links.map(({ rank }) => rank))])),
    loadStore: [...over].flatMap(([fabric, links]) => (links[0].loadStore ? [fabric] : [])),
  };
}

interface Awaited {
  readonly keys: readonly string[];
  readonly ranks: readonly number[];
  readonly error: ShoalError;
}

/** The error that names the ranks to blame for keys that were not published in time: those of them that do not wait for others. */
async function absence({ world, store, limit }: BootstrapOptions, { keys, ranks, error }: Awaited): Promise<ShoalError> {
  const fields = { rank: world.rank, timeoutMs: limit.timeoutMs, cause: error };
  const found = await within<Absent | undefined>(world.env.clock, storeAnswerMs, missingRanks(store, keys, ranks), () => undefined);
  if (found === undefined) return error;
  const { missing, waiting } = found;
  if (missing.length === 0) {
    const late = `the last of ${ranks.length} ranks joined after more than ${limit.timeoutMs} ms, too late for rank ${world.rank}`;
    const message = `${late}; start them closer together, or give them more time (joinTimeoutMs, SHOAL_TIMEOUT_MS)`;
    return new ShoalError('timeout', message, fields);
  }
  const idle = missing.filter((rank) => !waiting.has(rank));
  const [peer] = idle.length > 0 ? idle : missing;
  const why = [...waiting].map(([rank, others]) => `; rank ${rank} waits for a connection with rank ${others.join(', ')}`).join('');
  const message = `${ranks.length - missing.length} of ${ranks.length} ranks joined within ${limit.timeoutMs} ms; missing: rank ${missing.join(', ')}${why}. Were all of them started, and with the same MASTER_ADDR and MASTER_PORT? Is one of them stopped?`;
  return new ShoalError('timeout', message, { ...fields, peer });
}

interface Absent {
  readonly missing: readonly number[];
  /** The ranks that some of them say they wait for. */
  readonly waiting: ReadonlyMap<number, readonly number[]>;
}

async function missingRanks(store: Store, keys: readonly string[], ranks: readonly number[]): Promise<Absent> {
  const there = await Promise.all(keys.map((key) => store.check([key])));
  const missing = ranks.filter((_, index) => !there[index]);
  const waiting = new Map<number, number[]>();
  for (const rank of missing) {
    if (!(await store.check([waitsKey(rank)]))) continue;
    const waits = decodeJson(await store.get(waitsKey(rank)));
    if (waitsInfo.problem(waits) === undefined) waiting.set(rank, waits as number[]);
  }
  return { missing, waiting };
}

/** Rejects when a link ends before joining has. */
function lossOf(world: World): Promise<never> {
  const lost = new Promise<never>((_, reject) => {
    const watch = (peer: number, error: ShoalError | undefined): void => {
      const message = `rank ${peer} was lost while the ranks joined: ${error?.message ?? 'it closed its connection'}`;
      reject(new ShoalError('peer-lost', message, { rank: world.rank, peer, cause: error }));
    };
    world.lossWatchers.add(watch);
    for (const link of world.links) if (link.closed) watch(link.rank, link.loss);
  });
  lost.catch(() => undefined);
  return lost;
}

const waitsKey = (rank: number): string => `waits/${rank}`;

export function checkAgreement(infos: readonly RankInfo[], own: RankInfo): void {
  for (const info of infos) {
    const differ = (what: string, theirs: unknown, ours: unknown): never => {
      const message = `rank ${info.rank} has ${what} ${String(theirs)}, rank ${own.rank} has ${String(ours)}; start every rank with the same`;
      throw new ShoalError('config', message, { rank: own.rank, peer: info.rank });
    };
    if (info.worldSize !== own.worldSize) differ('world size', info.worldSize, own.worldSize);
    if (info.version !== own.version) differ('package version', info.version, own.version);
    if (info.agreed === own.agreed) continue;
    const theirs = JSON.parse(info.agreed) as AgreedSettings;
    for (const [key, value] of Object.entries(JSON.parse(own.agreed) as AgreedSettings)) {
      if (theirs[key] !== value) differ(`setting ${key}`, theirs[key], value);
    }
  }
}

/** Dials the lower ranks, awaits the higher ones. */
async function connectAll(options: BootstrapOptions, infos: readonly RankInfo[]): Promise<void> {
  const { world, store, limit } = options;
  const { rank, clock, settings } = world.env;
  const timeoutMs = Math.min(settings.connectTimeoutMs * 2, limit.leftMs);
  const dialled = dialAll(options, infos.slice(0, rank), infos[rank]);
  const halfTime = clock.setTimer(timeoutMs / 2, () => {
    // Without the store there is nobody to tell.
    store.set(waitsKey(rank), encodeJson(world.missingLinks())).catch(() => undefined);
  });
  let deadline: Timer | undefined;
  const late = new Promise<never>((_, reject) => {
    // A process that gets no CPU has not waited in vain.
    deadline = setServedTimer(clock, timeoutMs, () => reject(noConnection(world, timeoutMs)));
  });
  try {
    await Promise.race([Promise.all([dialled, world.linked()]), late]);
  } finally {
    halfTime.cancel();
    deadline?.cancel();
  }
}

/** The last first: the ranks of a large world do not all dial the same one. */
export async function dialAll(options: DialOptions, infos: readonly RankInfo[], own: RankInfo): Promise<void> {
  const queue = [...infos];
  const dialNext = async (): Promise<void> => {
    for (let info = queue.pop(); info !== undefined; info = queue.pop()) await dial(options, info, own);
  };
  await Promise.all(Array.from({ length: dialsMax }, dialNext));
}

function noConnection(world: World, timeoutMs: number): ShoalError {
  const missing = world.missingLinks();
  const message = `no connection with rank ${missing.join(', ')} after ${Math.round(timeoutMs)} ms; is it stopped? can these hosts reach each other? (SHOAL_INTERFACES)`;
  return new ShoalError('timeout', message, { rank: world.rank, peer: missing[0], timeoutMs });
}

async function dial({ world, limit, signal }: DialOptions, info: RankInfo, own: RankInfo): Promise<void> {
  const reasons: string[] = [];
  for (const fabric of world.env.fabrics) {
    const address = info.addresses.find((each) => each.provider === fabric.name);
    if (!address || (fabric.capabilities.loadStore && info.hostId !== own.hostId)) continue;
    const timeoutMs = Math.min(world.env.settings.connectTimeoutMs, limit.leftMs);
    try {
      world.addLink(await connectWith(world, { fabric, address, rank: info.rank, timeoutMs, signal }), fabric);
      return;
    } catch (thrown) {
      const error = ShoalError.from(thrown);
      if (error.code === 'auth' || error.code === 'config' || isExhaustion(error)) throw error;
      reasons.push(`${fabric.name}: ${error.message}`);
      world.env.log.debug(`rank ${info.rank} is not reached over ${fabric.name}: ${error.message}`);
    }
  }
  const message = `rank ${info.rank} on ${info.hostName} cannot be reached: ${reasons.join('; ') || 'no fabric in common'}`;
  throw new ShoalError('peer-lost', message, { rank: world.rank, peer: info.rank });
}

interface Dialling {
  readonly fabric: Fabric;
  readonly address: FabricAddress;
  readonly rank: number;
  readonly timeoutMs: number;
  readonly signal: AbortSignal;
}

function connectWith(world: World, { fabric, address, rank, timeoutMs, signal }: Dialling): Promise<Connection> {
  return fabric.connect(address, { peer: { world: world.env.name, rank }, timeoutMs, signal });
}
