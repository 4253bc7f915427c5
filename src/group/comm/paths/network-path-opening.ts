/** The agreement of a group's ranks on a network path while the group opens: either all of them have all its sockets, or there is none.
 *
 *      group-open of all: each says where it can be reached, or that it cannot
 *        │ someone cannot ─▶ no network path
 *        └─▶ sockets between each two ranks, the lower one dials ─▶ network-path-ready of all ─▶ network path, or none
 *
 *  network-path-ready carries the kernel's round-trip times of the sockets. If they are short, all ranks then time the network path
 *  ─▶ network-path-timed of all ─▶ rates. All ranks take the medians of all results.
 *
 *  It must not know the messages on the sockets. */
import { must } from '../../../base/assert.ts';
import { ShoalError } from '../../../base/errors.ts';
import { exhaustion, isExhaustion } from '../../../base/exhaustion.ts';
import { assumedRates, measuredRates, type NetworkPathRates, type NetworkPathTimings } from '../../../collectives/network-path.ts';
import type { GivenSocket, SocketSource, TakeDescriptor } from '../../../fabric/fabric.ts';
import type { NativeWire } from '../../../memory/native-wire.ts';
import type { Region } from '../../../memory/region.ts';
import type { GroupContext } from '../engine/group-context.ts';
import type { GroupSpec } from '../../../call/group-spec.ts';
import { networkPathRanksMax } from '../../../call/network-path.ts';
import { networkPathMemoryBytes } from '../../../call/network-path-wire.ts';
import { timeNetworkPath } from './network-path-timing.ts';

/** Where the network takes longer than this, one way, in seconds, it is what counts, and rounds would take long to time. */
const timedLatencyMax = 100e-6;

/** The network path that all ranks have. */
export interface AgreedNetworkPath {
  /** This rank's sockets to the other ranks. */
  readonly sockets: readonly GivenSocket[];
  /** Memory of the wires; its taker closes it. */
  readonly memory: Region;
  /** The same on all ranks. */
  readonly rates: NetworkPathRates;
}

export class NetworkPathOpening {
  /** Addresses at which this rank can be reached; empty: it cannot. */
  readonly candidates: readonly string[];
  readonly #group: GroupContext;
  /** Rates of a group of the same ranks: nothing is timed again. The same on all ranks. */
  readonly #known: NetworkPathRates | undefined;
  readonly #candidatesOf: (readonly string[])[];
  readonly #ready: (boolean | undefined)[];
  readonly #roundTripsUs: number[] = [];
  readonly #timings: (NetworkPathTimings | undefined)[] = [];
  /** Ranks that have timed the network path. */
  readonly #timed = new Set<number>();
  /** Undefined: this rank does without a network path. */
  readonly #links: NetworkPathLinks | undefined;
  #memory: Region | undefined;
  #sockets: readonly GivenSocket[] | undefined;
  #onAgreed: ((agreed: AgreedNetworkPath | undefined) => void) | undefined;
  /** The owner of the sockets is decided. */
  #hasEnded = false;

  constructor(group: GroupContext) {
    this.#group = group;
    const { spec, world } = group;
    if (isWhole(group)) this.#known = world.networkPathRates;
    const links = linksOf(group);
    this.candidates = links?.candidates ?? [];
    if (this.candidates.length > 0) this.#links = links;
    this.#candidatesOf = spec.globalRanks.map((_, rank) => (rank === spec.rank ? this.candidates : []));
    this.#ready = spec.globalRanks.map(() => undefined);
  }

  /** Notes the addresses at which another rank can be reached. */
  note(rank: number, candidates: readonly string[]): void {
    this.#candidatesOf[rank] = candidates;
  }

  onReady(rank: number, { ok, roundTripUs }: { readonly ok: boolean; readonly roundTripUs?: number }): void {
    this.#ready[rank] = ok;
    if (roundTripUs !== undefined) this.#roundTripsUs.push(roundTripUs);
    this.#settle();
  }

  /** A rank has timed the network path, or could not. */
  onTimed(rank: number, timings: NetworkPathTimings | undefined): void {
    this.#timings[rank] = timings;
    this.#timed.add(rank);
    this.#conclude();
  }

  onSocket(rank: number, accept: (take: TakeDescriptor) => GivenSocket): void {
    this.#links?.onSocket(rank, accept);
  }

  /** Goes on when all ranks have been noted. Tells once; undefined: no network path. */
  agree(onAgreed: (agreed: AgreedNetworkPath | undefined) => void): void {
    const links = this.#links;
    this.#onAgreed = onAgreed;
    if (links === undefined || this.#candidatesOf.some(({ length }) => length === 0)) {
      this.#end(undefined);
      return;
    }
    // A rank that had all of them noted before may have said by then that it has no network path.
    this.#settle();
    if (this.#onAgreed !== undefined) void this.#connect(links);
  }

  /** Ranks that have not said what they must say next. */
  get awaited(): readonly number[] {
    const others = this.#ready.map((_, rank) => rank).filter((rank) => rank !== this.#group.rank);
    const silent = others.filter((rank) => this.#ready[rank] === undefined);
    return silent.length > 0 ? silent : others.filter((rank) => !this.#timed.has(rank));
  }

  /** The group is gone. Before all have been noted, lower ranks may have dialled already. */
  abandon(): void {
    if (this.#hasEnded) return;
    this.#hasEnded = true;
    this.#onAgreed = undefined;
    this.#giveBack();
  }

  #giveBack(): void {
    this.#links?.close();
    this.#memory?.close();
  }

  async #connect(links: NetworkPathLinks): Promise<void> {
    try {
      this.#reserve(links.native);
      this.#sockets = await links.connect(this.#candidatesOf);
    } catch (thrown) {
      this.#logProblem(thrown);
    }
    if (this.#onAgreed === undefined) return;
    const said = { ok: this.#sockets !== undefined, roundTripUs: this.#roundTripUs(links.native) };
    this.#group.members.tellOthers({ type: 'network-path-ready', group: this.#group.spec.id, ...said });
    this.onReady(this.#group.rank, said);
  }

  /** Takes all that this rank needs beside its sockets. @throws ShoalError `out-of-memory`. */
  #reserve(native: NativeWire): void {
    const { spec, size, world } = this.#group;
    const { checkDescriptors, allocator } = world.env;
    // Its sockets, and the calling thread's of the same; a few more to watch them, and while they are dialled.
    checkDescriptors?.(2 * (size - 1) + 6, `opening the network path of group '${spec.name}'`);
    this.#memory = allocator.create(networkPathMemoryBytes(native, size));
  }

  #logProblem(thrown: unknown): void {
    const { rank, log } = this.#group.world.env;
    const error = exhaustion(`rank ${rank}`, thrown, 'opening its network path') ?? ShoalError.from(thrown);
    log[isExhaustion(error) ? 'warn' : 'debug'](`group '${this.#group.spec.name}' has no network path: ${error.message}`);
  }

  /** Median round trip of the sockets to other hosts. */
  #roundTripUs(native: NativeWire): number | undefined {
    const { globalRanks, rank: own, topology } = this.#group.spec;
    const local = topology.hosts.find((ranks) => ranks.includes(own)) ?? [];
    const others = globalRanks.map((_, rank) => rank).filter((rank) => rank !== own);
    const away = (this.#sockets ?? []).filter((_, k) => !local.includes(others[k]));
    return median(away.flatMap(({ descriptor }) => native.socketRoundTrip(descriptor) ?? []));
  }

  #settle(): void {
    if (this.#onAgreed === undefined) return;
    // Without one rank there is none: sockets that it does not accept are not waited for.
    if (this.#ready.includes(false)) {
      this.#decline();
      return;
    }
    if (this.#ready.includes(undefined)) return;
    if (this.#known) {
      this.#end(this.#known);
      return;
    }
    const { size, world } = this.#group;
    const roundTripUs = median(this.#roundTripsUs);
    const latency = roundTripUs === undefined ? undefined : roundTripUs / 2e6;
    const isTimed = world.env.settings.calibration === 'measure' && latency !== undefined && latency <= timedLatencyMax;
    if (isTimed) void this.#time();
    else this.#end(assumedRates(size, latency));
  }

  async #time(): Promise<void> {
    const { spec, rank, size, world } = this.#group;
    const { allocator, clock, settings } = world.env;
    const { native } = must(this.#links, () => 'this rank is ready');
    const descriptors = must(this.#sockets, () => 'this rank is ready').map(({ descriptor }) => descriptor);
    let timings: NetworkPathTimings | undefined;
    try {
      timings = await timeNetworkPath({ native, allocator, clock, rank, size, descriptors, timeoutMs: settings.connectTimeoutMs });
    } catch (thrown) {
      this.#logProblem(thrown);
    }
    if (this.#onAgreed === undefined) return;
    this.#group.members.tellOthers({ type: 'network-path-timed', group: spec.id, timings });
    this.onTimed(rank, timings);
  }

  #decline(): void {
    const { spec, rank } = this.#group;
    if (this.#ready[rank] === undefined) this.#group.members.tellOthers({ type: 'network-path-ready', group: spec.id, ok: false });
    this.#ready[rank] = false;
    this.#end(undefined);
  }

  #conclude(): void {
    const { size } = this.#group;
    if (this.#timed.size < size) return;
    const known = this.#timings.filter((each) => each !== undefined);
    const of = (round: keyof NetworkPathTimings): number => median(known.map((each) => each[round])) ?? 0;
    // A rank that could not time it has left messages on the sockets.
    const isTimed = this.#sockets !== undefined && known.length === size;
    this.#end(isTimed ? measuredRates(size, { tree: of('tree'), all: of('all'), bytes: of('bytes') }) : undefined);
  }

  /** @param rates undefined: there is no network path. */
  #end(rates: NetworkPathRates | undefined): void {
    const onAgreed = this.#onAgreed;
    this.#onAgreed = undefined;
    this.#hasEnded = true;
    const { world } = this.#group;
    // Further groups of all ranks find the same.
    if (isWhole(this.#group)) world.networkPathRates ??= rates;
    if (rates === undefined || !this.#sockets || !this.#memory) {
      this.#giveBack();
      onAgreed?.(undefined);
    } else onAgreed?.({ sockets: this.#sockets, memory: this.#memory, rates });
  }
}

/** The sockets of a rank of a group over several hosts whose calls are made on another thread; undefined: it has none. */
function linksOf(group: GroupContext): NetworkPathLinks | undefined {
  const { spec, size, world, members } = group;
  const { wires: native, allocator, settings, fabrics, name } = world.env;
  const sockets = fabrics.find((fabric) => fabric.sockets)?.sockets;
  const { syncBytesMax, contract, commThread, connectTimeoutMs } = settings;
  const hasPlans = spec.library === undefined && spec.scheduling === undefined;
  const isWanted = hasPlans && members.networkPeers.length > 0 && size <= networkPathRanksMax;
  const isAllowed = syncBytesMax > 0 && contract === 'standard' && commThread === 'worker';
  if (!isWanted || !isAllowed || !native || !sockets || allocator.kind !== 'shared') return undefined;
  return new NetworkPathLinks({ group: spec, world: name, native, sockets, connectTimeoutMs });
}

function median(values: readonly number[]): number | undefined {
  return values.toSorted((a, b) => a - b).at(values.length >> 1);
}

// ── sockets ─────────────────────────────────────────────────────────────────────────────────────────────────────────

interface NetworkPathLinksOptions {
  readonly group: GroupSpec;
  /** Name of the world. */
  readonly world: string;
  readonly native: NativeWire;
  readonly sockets: SocketSource;
  readonly connectTimeoutMs: number;
}

/** The sockets of a group's network path: one between each two ranks. The lower rank dials. */
class NetworkPathLinks {
  readonly native: NativeWire;
  readonly #options: NetworkPathLinksOptions;
  /** Sockets by group rank; none for this rank. */
  readonly #sockets: (GivenSocket | undefined)[];
  #closed = false;
  /** All sockets that others dial. */
  readonly #accepted: Promise<void>;
  #accept!: () => void;
  #refuse!: (error: ShoalError) => void;

  constructor(options: NetworkPathLinksOptions) {
    this.#options = options;
    this.native = options.native;
    this.#sockets = options.group.globalRanks.map(() => undefined);
    this.#accepted = new Promise((resolve, reject) => {
      this.#accept = resolve;
      this.#refuse = reject;
    });
    this.#accepted.catch(() => undefined);
  }

  /** Addresses at which this rank can be reached. */
  get candidates(): readonly string[] {
    return this.#options.sockets.candidates;
  }

  /** Connects to all ranks. @returns sockets by group rank, none for this one. @throws ShoalError as `connect` does. */
  async connect(candidatesOf: readonly (readonly string[])[]): Promise<GivenSocket[]> {
    const { group, world, sockets, connectTimeoutMs, native } = this.#options;
    const dialled = candidatesOf.map(async (candidates, rank) => {
      if (rank <= group.rank) return;
      const peer = { world, rank: group.globalRanks[rank] };
      const options = { peer, timeoutMs: connectTimeoutMs, tag: group.id };
      this.#keep(rank, await sockets.open({ provider: 'tcp', candidates }, options, (fd) => native.takeSocket(fd)));
    });
    await Promise.all([...dialled, this.#accepted]);
    return this.#sockets.filter((_, rank) => rank !== group.rank).map((socket) => must(socket, () => 'all are connected'));
  }

  /** A lower rank has dialled. @throws ShoalError when its socket cannot be taken; then no group of them comes about. */
  onSocket(rank: number, accept: (take: TakeDescriptor) => GivenSocket): void {
    const { group, native } = this.#options;
    if (rank >= group.rank || this.#sockets[rank] !== undefined) return;
    try {
      this.#keep(
        rank,
        accept((fd) => native.takeSocket(fd)),
      );
    } catch (thrown) {
      const error = ShoalError.from(thrown);
      this.#refuse(error);
      throw error;
    }
  }

  /** Closes what no wire took. */
  close(): void {
    this.#closed = true;
    for (const socket of this.#sockets.splice(0)) if (socket) this.#options.native.closeSocket(socket.descriptor);
    this.#accept();
  }

  #keep(rank: number, socket: GivenSocket): void {
    if (this.#closed) {
      this.#options.native.closeSocket(socket.descriptor);
      throw new ShoalError('closed', 'the group is gone');
    }
    this.#sockets[rank] = socket;
    if (this.#sockets.every((each, other) => each !== undefined || other >= this.#options.group.rank)) this.#accept();
  }
}

/** The group has exactly the ranks that the world began with. */
function isWhole({ spec: { globalRanks }, world: { env } }: GroupContext): boolean {
  return globalRanks.length === env.size && globalRanks.every((rank) => rank < env.size);
}
