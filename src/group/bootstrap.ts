/** Bootstrap: the ranks of a world find each other through the store, agree that they belong together, connect, and
 *  learn who can load and store whose memory.
 *
 *      rank r   info/r ──▶ store ──▶ info/0…n−1    checked: size, version, settings that must agree
 *               dials every lower rank (shm where the host may be the same, else tcp), accepts every higher one
 *               links/r ──▶ store ──▶ links/0…n−1  → topology: ranks that all map each other form a host
 *               rates/r ──▶ store ──▶ rates of some hosts → the cost model, by which algorithms are chosen between hosts
 *
 *  Every wait ends early when the store says that a rank has ended. */
import * as z from 'zod';
import type { Timer } from '../base/clock.ts';
import { ShoalError } from '../base/errors.ts';
import type { Settings } from '../base/settings.ts';
import type { Connection, Fabric, FabricAddress } from '../fabric/fabric.ts';
import type { CostModel } from '../plan/cost.ts';
import type { Topology } from '../plan/topology.ts';
import { agreedModel, measureRates, measuringRanks, type MeasuredRates } from './calibrate.ts';
import { noteJoined, rankEnded } from './ended-ranks.ts';
import type { Store } from './store/store.ts';
import type { World } from './world.ts';

const rankInfo = z.object({
  rank: z.int(),
  worldSize: z.int(),
  hostId: z.string(),
  hostName: z.string(),
  pid: z.int(),
  addresses: z.array(z.object({ provider: z.string(), candidates: z.array(z.string()) })),
  version: z.string(),
  /** Settings that change what ranks do together. */
  agreed: z.record(z.string(), z.union([z.string(), z.number(), z.boolean()])),
});

export type RankInfo = z.infer<typeof rankInfo>;

const linkInfo = z.object({
  /** World rank → fabric name. */
  fabrics: z.record(z.string(), z.string()),
  /** World ranks whose memory this rank maps. */
  loadStore: z.array(z.int()),
});

const rate = z.number().nonnegative().optional();
const rateInfo: z.ZodType<MeasuredRates> = z.object({
  networkLatency: rate,
  networkOverhead: rate,
  networkByte: rate,
  hostLatency: rate,
  hostByte: rate,
  selfByte: rate,
  reduceByte: rate,
});

const encoder = new TextEncoder();
const decoder = new TextDecoder();

/** Settings that must be the same on every rank. */
function agreedSettings(settings: Settings, tuningHash: string): RankInfo['agreed'] {
  const { algorithms, calibration, order, contract, inFlightMax, stagingBytes, sliceBytes, syncBytesMax, commThread } = settings;
  return { algorithms, calibration, tuningHash, order, contract, inFlightMax, stagingBytes, sliceBytes, syncBytesMax, commThread };
}

export interface BootstrapOptions {
  readonly world: World;
  readonly store: Store;
  readonly hostId: string;
  readonly hostName: string;
  readonly pid: number;
  readonly version: string;
  /** Of the tuning file that is used; empty: none. */
  readonly tuningHash: string;
  /** Rates that need not be measured. */
  readonly ratesOf: (topology: Topology) => CostModel | undefined;
  /** Ends the wait for ranks to appear. */
  readonly joinTimeoutMs: number;
}

export interface Joined {
  /** Ranks by machine, as people see it. */
  readonly hosts: readonly (readonly number[])[];
  /** Ranks by shared memory, as plans see it. */
  readonly topology: Topology;
  /** fabricOf[a][b]: what rank a reaches rank b over. */
  readonly fabricOf: readonly (readonly string[])[];
  /** Rates of this world; undefined where nothing is chosen by them. */
  readonly model: CostModel | undefined;
}

/** Joins the world. @throws ShoalError `timeout`, `config`, `peer-lost`, `auth`: each names the ranks concerned. */
export async function bootstrap(options: BootstrapOptions): Promise<Joined> {
  const { world, store } = options;
  await claimRank(store, world.rank);
  const listening = await Promise.all(world.fabrics.map((fabric) => fabric.listen((connection) => world.addLink(connection, fabric))));
  const info: RankInfo = {
    rank: world.rank,
    worldSize: world.size,
    hostId: options.hostId,
    hostName: options.hostName,
    pid: options.pid,
    addresses: listening.map(({ provider, candidates }) => ({ provider, candidates: [...candidates] })),
    version: options.version,
    agreed: agreedSettings(world.settings, options.tuningHash),
  };
  const infos = await exchange(options, 'info', info, rankInfo);
  checkAgreement(infos, world.rank);
  await connectAll(options, infos);
  const fabrics = Object.fromEntries(world.links.map((link) => [String(link.rank), link.fabric]));
  const loadStore = world.links.filter((link) => link.loadStore).map((link) => link.rank);
  const links = await exchange(options, 'links', { fabrics, loadStore }, linkInfo);
  await noteJoined(store, world.rank);
  const topology = { hosts: cliques(links.map((each) => new Set(each.loadStore))) };
  return {
    hosts: groupBy(infos.map((each) => each.hostId)),
    topology,
    model: options.ratesOf(topology) ?? (await measuredModel(options, topology)),
    fabricOf: links.map((each, rank) => infos.map((_, peer) => (peer === rank ? 'self' : (each.fabrics[String(peer)] ?? '?')))),
  };
}

/** Times links between hosts, on one rank of each, and makes one model of what all have measured. */
async function measuredModel(options: BootstrapOptions, topology: Topology): Promise<CostModel | undefined> {
  const { world } = options;
  const ranks = measuringRanks(topology);
  if (world.settings.calibration !== 'measure' || ranks.length === 0) return undefined;
  const { rank, clock, kernels } = world;
  const measured = ranks.includes(rank)
    ? await measureRates({
        rank,
        topology,
        clock,
        kernels,
        link: (peer) => world.link(peer),
        measureLink: (link) => world.linkProbe.measure(link),
      })
    : {};
  const model = agreedModel(await exchange(options, 'rates', measured, rateInfo, ranks));
  world.log.debug(`rates: ${model === undefined ? 'not measured' : JSON.stringify(model)}`);
  return model;
}

async function claimRank(store: Store, rank: number): Promise<void> {
  if ((await store.add(`claim/${rank}`, 1)) > 1) {
    throw new ShoalError(
      'config',
      `two processes claim rank ${rank} of the same world; give every process its own RANK, or a fresh store to every job`,
      { rank },
    );
  }
}

/** Publishes this rank's value and returns everyone's, or those of `ranks`. */
async function exchange<T>(
  options: BootstrapOptions,
  name: string,
  value: T,
  schema: z.ZodType<T>,
  ranks: readonly number[] = Array.from({ length: options.world.size }, (_, rank) => rank),
): Promise<T[]> {
  const { world, store, joinTimeoutMs } = options;
  const keys = ranks.map((rank) => `${name}/${rank}`);
  if (ranks.includes(world.rank)) await store.set(`${name}/${world.rank}`, encoder.encode(JSON.stringify(value)));
  const done = new AbortController();
  try {
    await Promise.race([
      waitForRanks(options, { keys, ranks }, done.signal),
      rankEnded(store, world.rank, { timeoutMs: joinTimeoutMs, signal: done.signal }),
    ]);
  } finally {
    done.abort();
  }
  return Promise.all(
    keys.map(async (key, index) => {
      const parsed = schema.safeParse(JSON.parse(decoder.decode(await store.get(key))));
      if (!parsed.success)
        throw new ShoalError('protocol', `rank ${ranks[index]} published a malformed ${name}; do all ranks run the same version?`, {
          peer: ranks[index],
        });
      return parsed.data;
    }),
  );
}

async function waitForRanks(
  options: BootstrapOptions,
  { keys, ranks }: { readonly keys: readonly string[]; readonly ranks: readonly number[] },
  signal: AbortSignal,
): Promise<void> {
  const { world, store, joinTimeoutMs } = options;
  try {
    await store.wait(keys, { timeoutMs: joinTimeoutMs, signal });
  } catch (thrown) {
    const error = ShoalError.from(thrown);
    if (error.code !== 'timeout') throw error;
    const there = await Promise.all(keys.map((key) => store.check([key])));
    const missing = there.flatMap((present, index) => (present ? [] : [ranks[index]]));
    throw new ShoalError(
      'timeout',
      `${ranks.length - missing.length} of ${ranks.length} ranks joined within ${joinTimeoutMs} ms; missing: rank ${missing.join(', ')}. Were all of them started, and with the same MASTER_ADDR and MASTER_PORT?`,
      { rank: world.rank, peer: missing[0], timeoutMs: joinTimeoutMs, cause: error },
    );
  }
}

function checkAgreement(infos: readonly RankInfo[], ownRank: number): void {
  const own = infos[ownRank];
  for (const info of infos) {
    const differ = (what: string, theirs: unknown, ours: unknown): never => {
      throw new ShoalError(
        'config',
        `rank ${info.rank} has ${what} ${String(theirs)}, rank ${ownRank} has ${String(ours)}; start every rank with the same`,
        {
          rank: ownRank,
          peer: info.rank,
        },
      );
    };
    if (info.worldSize !== own.worldSize) differ('world size', info.worldSize, own.worldSize);
    if (info.version !== own.version) differ('package version', info.version, own.version);
    for (const [key, value] of Object.entries(own.agreed)) {
      if (info.agreed[key] !== value) differ(`setting ${key}`, info.agreed[key], value);
    }
  }
}

/** Dials the lower ranks, awaits the higher ones. */
async function connectAll(options: BootstrapOptions, infos: readonly RankInfo[]): Promise<void> {
  const { world, store } = options;
  const timeoutMs = world.settings.connectTimeoutMs * 2;
  const done = new AbortController();
  const dialled = Promise.all(infos.slice(0, world.rank).map((info) => dial(options, info, infos[world.rank], done.signal)));
  let timer: Timer | undefined;
  const deadline = new Promise<never>((_, reject) => {
    timer = world.clock.setTimer(timeoutMs, () => reject(notLinked(world, timeoutMs)), { keepAlive: true });
  });
  try {
    await Promise.race([
      Promise.all([dialled, world.linked()]),
      rankEnded(store, world.rank, { timeoutMs, signal: done.signal }),
      deadline,
    ]);
  } finally {
    done.abort();
    timer?.cancel();
  }
}

function notLinked(world: World, timeoutMs: number): ShoalError {
  const missing = world.missingLinks();
  return new ShoalError(
    'timeout',
    `no connection with rank ${missing.join(', ')} after ${timeoutMs} ms; can these hosts reach each other? (SHOAL_INTERFACES)`,
    { rank: world.rank, peer: missing[0], timeoutMs },
  );
}

async function dial(options: BootstrapOptions, info: RankInfo, own: RankInfo, signal: AbortSignal): Promise<void> {
  const { world } = options;
  const reasons: string[] = [];
  for (const fabric of world.fabrics) {
    const address = info.addresses.find((each) => each.provider === fabric.name);
    if (!address || (fabric.capabilities.loadStore && info.hostId !== own.hostId)) continue;
    try {
      world.addLink(await connectWith(world, fabric, address, info.rank, signal), fabric);
      return;
    } catch (thrown) {
      const error = ShoalError.from(thrown);
      if (error.code === 'auth' || error.code === 'config') throw error;
      reasons.push(`${fabric.name}: ${error.message}`);
      world.log.debug(`rank ${info.rank} is not reached over ${fabric.name}: ${error.message}`);
    }
  }
  throw new ShoalError(
    'peer-lost',
    `rank ${info.rank} on ${info.hostName} cannot be reached: ${reasons.join('; ') || 'no fabric in common'}`,
    {
      rank: world.rank,
      peer: info.rank,
    },
  );
}

function connectWith(world: World, fabric: Fabric, address: FabricAddress, rank: number, signal: AbortSignal): Promise<Connection> {
  const peer = { world: world.name, rank };
  return fabric.connect(address, { peer, timeoutMs: world.settings.connectTimeoutMs, signal });
}

/** Positions with equal values, grouped; groups in order of their first position. */
function groupBy(values: readonly string[]): number[][] {
  const groups = new Map<string, number[]>();
  values.forEach((value, rank) => groups.set(value, [...(groups.get(value) ?? []), rank]));
  return [...groups.values()];
}

/** Hosts for plans: a rank joins the first group all of whose ranks it maps and that map it. */
function cliques(maps: readonly ReadonlySet<number>[]): number[][] {
  const hosts: number[][] = [];
  maps.forEach((mapped, rank) => {
    const host = hosts.find((ranks) => ranks.every((other) => mapped.has(other) && maps[other].has(rank)));
    if (host) host.push(rank);
    else hosts.push([rank]);
  });
  return hosts;
}
