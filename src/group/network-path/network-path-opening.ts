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
import { must } from '../../base/assert.ts';
import { sleep, type Clock } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import { ControlBlock, controlBlockBytes } from '../../collectives/control-block.ts';
import { assumedRates, measuredRates, timedBytes, type NetworkPathRates, type NetworkPathTimings } from '../../collectives/network-path.ts';
import type { SocketSource, TakeDescriptor } from '../../fabric/fabric.ts';
import type { NativeWire } from '../../memory/native-wire.ts';
import type { RegionAllocator } from '../../memory/region.ts';
import type { ControlMessage } from '../comm/links/control-message.ts';
import { signalMaxOf, type GroupSpec } from '../shared/call/group-spec.ts';
import { networkPathMemoryBytes, networkPathRanksMax, NetworkPathWire, type RankSet } from './network-path.ts';

/** Where the network takes longer than this, one way, in seconds, it is what counts, and rounds would take long to time. */
const timedLatencyMax = 100e-6;

export interface NetworkPathOpeningOptions {
  readonly group: GroupSpec;
  /** Name of the world. */
  readonly world: string;
  /** The addon and sockets that this rank needs; undefined when it does without a network path. */
  readonly means: { readonly native: NativeWire; readonly sockets: SocketSource } | undefined;
  /** The memory and clock that timing takes; undefined: rates are assumed. The same choice on all ranks. */
  readonly measure: { readonly allocator: RegionAllocator; readonly clock: Clock } | undefined;
  /** Rates of a group of the same ranks: nothing is timed again. The same on all ranks. */
  readonly known: NetworkPathRates | undefined;
  readonly connectTimeoutMs: number;
  /** Takes what this rank needs beside sockets. @throws what keeps it from that. */
  readonly reserve: () => void;
  readonly tellOthers: (message: ControlMessage) => void;
  readonly onProblem: (thrown: unknown) => void;
}

/** The network path that all ranks have. */
export interface AgreedNetworkPath {
  /** This rank's sockets to the other ranks. */
  readonly descriptors: readonly number[];
  /** The same on all ranks. */
  readonly rates: NetworkPathRates;
}

export class NetworkPathOpening {
  /** Addresses at which this rank can be reached; empty: it cannot. */
  readonly candidates: readonly string[];
  readonly #options: NetworkPathOpeningOptions;
  readonly #candidatesOf: (readonly string[])[];
  readonly #ready: (boolean | undefined)[];
  readonly #roundTripsUs: number[] = [];
  readonly #timings: (NetworkPathTimings | undefined)[] = [];
  /** Ranks that have. */
  readonly #timed = new Set<number>();
  readonly #links: NetworkPathLinks | undefined;
  #descriptors: number[] | undefined;
  #onAgreed: ((agreed: AgreedNetworkPath | undefined) => void) | undefined;
  /** The owner of the sockets is decided. */
  #hasEnded = false;

  constructor(options: NetworkPathOpeningOptions) {
    this.#options = options;
    const { group, world, means, connectTimeoutMs } = options;
    this.candidates = means && group.globalRanks.length <= networkPathRanksMax ? means.sockets.candidates : [];
    if (means && this.candidates.length > 0) this.#links = new NetworkPathLinks({ group, world, ...means, connectTimeoutMs });
    this.#candidatesOf = group.globalRanks.map((_, rank) => (rank === group.rank ? this.candidates : []));
    this.#ready = group.globalRanks.map(() => undefined);
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

  onSocket(rank: number, accept: (take: TakeDescriptor) => number): void {
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
    const others = this.#ready.map((_, rank) => rank).filter((rank) => rank !== this.#options.group.rank);
    const silent = others.filter((rank) => this.#ready[rank] === undefined);
    return silent.length > 0 ? silent : others.filter((rank) => !this.#timed.has(rank));
  }

  /** The group is gone. Before all have been noted, lower ranks may have dialled already. */
  abandon(): void {
    if (this.#hasEnded) return;
    this.#hasEnded = true;
    this.#onAgreed = undefined;
    this.#links?.close();
  }

  async #connect(links: NetworkPathLinks): Promise<void> {
    try {
      this.#options.reserve();
      this.#descriptors = await links.connect(this.#candidatesOf);
    } catch (thrown) {
      this.#options.onProblem(thrown);
    }
    this.#tell({ ok: this.#descriptors !== undefined });
  }

  #tell({ ok }: { readonly ok: boolean }): void {
    if (this.#onAgreed === undefined) return;
    const { group, tellOthers } = this.#options;
    const said = { ok, roundTripUs: this.#roundTripUs() };
    tellOthers({ type: 'network-path-ready', group: group.id, ...said });
    this.onReady(group.rank, said);
  }

  /** Median round trip of the sockets to other hosts. */
  #roundTripUs(): number | undefined {
    const { group, means } = this.#options;
    const local = group.topology.hosts.find((ranks) => ranks.includes(group.rank)) ?? [];
    const others = group.globalRanks.map((_, rank) => rank).filter((rank) => rank !== group.rank);
    const roundTrips = (this.#descriptors ?? []).map((fd, k) =>
      local.includes(others[k]) ? undefined : means?.native.socketRoundTrip(fd),
    );
    return median(roundTrips.filter((each) => each !== undefined));
  }

  #settle(): void {
    if (this.#onAgreed === undefined) return;
    // Without one rank there is none: sockets that it does not accept are not waited for.
    if (this.#ready.includes(false)) {
      this.#decline();
      return;
    }
    if (this.#ready.includes(undefined)) return;
    const descriptors = must(this.#descriptors, () => 'this rank is ready');
    const { group, measure, known } = this.#options;
    if (known) {
      this.#end({ descriptors, rates: known });
      return;
    }
    const roundTripUs = median(this.#roundTripsUs);
    const latency = roundTripUs === undefined ? undefined : roundTripUs / 2e6;
    if (measure && latency !== undefined && latency <= timedLatencyMax) void this.#time(descriptors, measure);
    else this.#end({ descriptors, rates: assumedRates(group.globalRanks.length, latency) });
  }

  async #time(descriptors: readonly number[], measure: NonNullable<NetworkPathOpeningOptions['measure']>): Promise<void> {
    const { group, means, connectTimeoutMs: timeoutMs, tellOthers, onProblem } = this.#options;
    const { native } = must(means, () => 'who has sockets has means');
    const { rank, globalRanks } = group;
    let timings: NetworkPathTimings | undefined;
    try {
      timings = await timeNetworkPath({ native, ...measure, rank, size: globalRanks.length, descriptors, timeoutMs });
    } catch (thrown) {
      onProblem(thrown);
    }
    if (this.#onAgreed === undefined) return;
    tellOthers({ type: 'network-path-timed', group: group.id, timings });
    this.onTimed(rank, timings);
  }

  #decline(): void {
    const { group, tellOthers } = this.#options;
    if (this.#ready[group.rank] === undefined) tellOthers({ type: 'network-path-ready', group: group.id, ok: false });
    this.#ready[group.rank] = false;
    this.#end(undefined);
  }

  #conclude(): void {
    const { globalRanks } = this.#options.group;
    if (this.#timed.size < globalRanks.length) return;
    const known = this.#timings.filter((each) => each !== undefined);
    const of = (round: keyof NetworkPathTimings): number => median(known.map((each) => each[round])) ?? 0;
    const descriptors = this.#descriptors;
    // A rank that could not time it has left messages on the sockets.
    if (descriptors === undefined || known.length < globalRanks.length) this.#end(undefined);
    else this.#end({ descriptors, rates: measuredRates(globalRanks.length, { tree: of('tree'), all: of('all'), bytes: of('bytes') }) });
  }

  #end(agreed: AgreedNetworkPath | undefined): void {
    const onAgreed = this.#onAgreed;
    this.#onAgreed = undefined;
    this.#hasEnded = true;
    if (agreed === undefined) this.#links?.close();
    onAgreed?.(agreed);
  }
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

interface Accepted {
  readonly resolve: () => void;
  readonly reject: (error: ShoalError) => void;
  readonly promise: Promise<void>;
}

/** The sockets of a group's network path: one between each two ranks. The lower rank dials. */
class NetworkPathLinks {
  readonly #options: NetworkPathLinksOptions;
  /** Sockets by group rank; none for this rank. */
  readonly #descriptors: (number | undefined)[];
  #closed = false;
  /** All sockets that others dial. */
  readonly #accepted: Accepted;

  constructor(options: NetworkPathLinksOptions) {
    this.#options = options;
    this.#descriptors = options.group.globalRanks.map(() => undefined);
    let settle: Omit<Accepted, 'promise'> | undefined;
    const promise = new Promise<void>((resolve, reject) => {
      settle = { resolve, reject };
    });
    promise.catch(() => undefined);
    this.#accepted = { ...must(settle, () => 'promises are made at once'), promise };
  }

  /** To all ranks, by group rank, without this one's. @throws ShoalError what `connect` throws. */
  async connect(candidatesOf: readonly (readonly string[])[]): Promise<number[]> {
    const { group, world, sockets, connectTimeoutMs, native } = this.#options;
    const dialled = candidatesOf.map(async (candidates, rank) => {
      if (rank <= group.rank) return;
      const peer = { world, rank: group.globalRanks[rank] };
      const options = { peer, timeoutMs: connectTimeoutMs, tag: group.id };
      this.#keep(rank, await sockets.open({ provider: 'tcp', candidates }, options, (fd) => native.takeSocket(fd)));
    });
    await Promise.all([...dialled, this.#accepted.promise]);
    return this.#descriptors.filter((_, rank) => rank !== group.rank).map((fd) => must(fd, () => 'all are connected'));
  }

  /** A lower rank has dialled. @throws ShoalError when its socket cannot be taken; then no group of them comes about. */
  onSocket(rank: number, accept: (take: TakeDescriptor) => number): void {
    const { group, native } = this.#options;
    if (rank >= group.rank || this.#descriptors[rank] !== undefined) return;
    try {
      this.#keep(
        rank,
        accept((fd) => native.takeSocket(fd)),
      );
    } catch (thrown) {
      const error = ShoalError.from(thrown);
      this.#accepted.reject(error);
      throw error;
    }
  }

  /** Closes what no wire took. */
  close(): void {
    this.#closed = true;
    for (const fd of this.#descriptors.splice(0)) if (fd !== undefined) this.#options.native.closeSocket(fd);
    this.#accepted.resolve();
  }

  #keep(rank: number, descriptor: number): void {
    if (this.#closed) {
      this.#options.native.closeSocket(descriptor);
      throw new ShoalError('closed', 'the group is gone');
    }
    this.#descriptors[rank] = descriptor;
    if (this.#descriptors.every((fd, each) => fd !== undefined || each >= this.#options.group.rank)) this.#accepted.resolve();
  }
}

// ── rates ───────────────────────────────────────────────────────────────────────────────────────────────────────────

/** The quickest of some batches of rounds counts: whatever else the machines do makes them longer. */
const batches = 20;
const rounds = 4;
const probeTurn = 0;
/** The time that a look for the messages of a round takes at most. */
const probeSpinNs = 20e6;

interface NetworkPathProbeOptions {
  readonly native: NativeWire;
  readonly allocator: RegionAllocator;
  readonly clock: Clock;
  readonly rank: number;
  readonly size: number;
  /** Sockets to the other ranks; they stay open. */
  readonly descriptors: readonly number[];
  /** Ranks must keep up with each other so well. */
  readonly timeoutMs: number;
}

/** @throws ShoalError `timeout`, `peer-lost` when some rank does not take part. */
async function timeNetworkPath(options: NetworkPathProbeOptions): Promise<NetworkPathTimings> {
  const { native, allocator, size, descriptors } = options;
  const region = allocator.create(networkPathMemoryBytes(native, size));
  const own = descriptors.map((fd) => native.takeSocket(fd));
  const probe = new NetworkPathProbe(options, new Uint8Array(region.buffer, 0, region.bytes), own);
  try {
    return await probe.run();
  } finally {
    probe.close();
    region.close();
  }
}

/** Times the sockets before they are used, on all ranks at once, by polling threads as in later use.
 *
 *      tree      up a binomial tree to rank 0, and down again, without bytes and with some      few messages, one after another
 *      to all    rank r ─▶ all, wait for all                                                    many messages at once
 *
 *  The two kinds of rounds alternate, so that other load on the machines affects both equally; no rank can be a round ahead.
 *  Afterwards the sockets are empty. It works on memory of its own. */
class NetworkPathProbe {
  readonly #options: NetworkPathProbeOptions;
  readonly #block: ControlBlock;
  readonly #wire: NetworkPathWire;
  readonly #endMs: number;
  /** Messages that each rank has to send to this one in the rounds so far. */
  readonly #expected: number[];

  constructor(options: NetworkPathProbeOptions, memory: Uint8Array, descriptors: readonly number[]) {
    this.#options = options;
    const { native, rank, size, clock, timeoutMs } = options;
    const shape = { slotCount: 2, signalMax: signalMaxOf(size) };
    this.#block = new ControlBlock(new ArrayBuffer(controlBlockBytes(shape)), 0, shape);
    this.#wire = new NetworkPathWire({ native, rank, own: this.#block, firstSlot: 0, signalCount: shape.signalMax, memory, descriptors });
    this.#endMs = clock.now() + timeoutMs;
    this.#expected = Array.from({ length: size }, () => 0);
  }

  async run(): Promise<NetworkPathTimings> {
    const { rank, size } = this.#options;
    const others = Array.from({ length: size }, (_, each) => each).filter((each) => each !== rank);
    const timed = [treeRound(rank, size, 0), [{ to: others, from: others, bytes: 0 }], treeRound(rank, size, timedBytes)];
    const quickest = timed.map(() => Infinity);
    for (let batch = 0; batch < batches; batch++) {
      for (const [index, round] of timed.entries()) quickest[index] = Math.min(quickest[index], await this.#time(round));
    }
    const [tree, all, bytes] = quickest;
    return { tree, all, bytes };
  }

  close(): void {
    this.#wire.close();
  }

  /** Seconds of one of some rounds. */
  async #time(round: Round): Promise<number> {
    const { clock } = this.#options;
    const startMs = clock.now();
    for (let k = 0; k < rounds; k++) {
      for (const leg of round) {
        this.#send(leg);
        while (!this.#came(leg)) await this.#breathe(leg);
      }
    }
    return (clock.now() - startMs) / rounds / 1e3;
  }

  /** A rank's messages raise its own signal. */
  #send({ to, from, bytes }: Leg): void {
    const signal = this.#options.rank;
    for (const peer of to) {
      const put = { kind: 'put', peer, buffer: 'scratch', offset: 0, bytes, targetBuffer: 'scratch', targetOffset: bytes, signal } as const;
      this.#wire.put(probeTurn, bytes === 0 ? { kind: 'signal', peer, signal } : put);
    }
    for (const peer of from) this.#expected[peer]++;
  }

  #came({ from }: Leg): boolean {
    for (;;) {
      let missing: RankSet = 0;
      for (const peer of from) if (this.#block.raised(probeTurn, peer) < this.#expected[peer]) missing |= 1 << peer;
      if (missing === 0) return true;
      const status = this.#wire.progress(missing, { spinNs: probeSpinNs, sleepMs: 0 });
      if (status === 'ended') throw new ShoalError('peer-lost', 'a socket of the network path has ended while it was timed');
      if (status === 'not yet') return false;
    }
  }

  /** Lets this thread do what else it has to. */
  async #breathe({ from }: Leg): Promise<void> {
    const { clock, timeoutMs } = this.#options;
    if (clock.now() > this.#endMs)
      throw new ShoalError('timeout', `rank ${from.join(' or ')} took more than ${timeoutMs} ms to time the network path`, { timeoutMs });
    await sleep(clock, 0);
  }
}

/** Messages of so many bytes to some ranks, then from some. */
interface Leg {
  readonly to: readonly number[];
  readonly from: readonly number[];
  readonly bytes: number;
}

/** The legs of a rank in a round, in order. */
type Round = readonly Leg[];

/** Up to rank 0 and down again: the parent of a rank is the one without its lowest bit. */
function treeRound(rank: number, size: number, bytes: number): Round {
  const below = rank === 0 ? size : rank & -rank;
  const children: number[] = [];
  for (let bit = 1; bit < below && rank + bit < size; bit *= 2) children.push(rank + bit);
  const parent = rank === 0 ? [] : [rank & (rank - 1)];
  return [
    { to: [], from: children, bytes },
    { to: parent, from: parent, bytes },
    { to: children, from: [], bytes },
  ];
}
