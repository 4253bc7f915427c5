/** How the ranks of a group agree on a network path while the group opens: either all of them have all its sockets, or there is none.
 *
 *      group-open of all: each says where it can be reached, or that it cannot
 *        │ someone cannot ─▶ no network path
 *        └─▶ sockets between each two ranks (network-path-links.ts) ─▶ network-path-ready of all ─▶ network path, or none
 *
 *  network-path-ready carries the kernel's round-trip times of the sockets. If they are short, all ranks then time the network path
 *  (network-path-probe.ts) ─▶ network-path-timed of all ─▶ rates. All ranks take the medians of all results.
 *
 *  It must not know the messages on the sockets. */
import { must } from '../../base/assert.ts';
import type { Clock } from '../../base/clock.ts';
import { assumedRates, measuredRates, type NetworkPathRates, type NetworkPathTimings } from '../../collectives/network-path.ts';
import type { SocketSource, TakeDescriptor } from '../../fabric/fabric.ts';
import type { NativeWire } from '../../memory/native-wire.ts';
import type { RegionAllocator } from '../../memory/region.ts';
import { NetworkPathLinks } from './network-path-links.ts';
import { networkPathRanksMax } from './network-path.ts';
import { timeNetworkPath } from './network-path-probe.ts';
import type { GroupSpec } from '../shared/call/group-spec.ts';
import type { ControlMessage } from '../comm/links/control-message.ts';

/** Where the network takes longer than this, one way, in seconds, it is what counts, and rounds would take long to time. */
const timedLatencyMax = 100e-6;

export interface NetworkPathOpeningOptions {
  readonly group: GroupSpec;
  /** Name of the world. */
  readonly world: string;
  /** What this rank needs; undefined when it does without a network path. */
  readonly means: { readonly native: NativeWire; readonly sockets: SocketSource } | undefined;
  /** What timing it takes; undefined: rates are assumed. The same choice on all ranks. */
  readonly measure: { readonly allocator: RegionAllocator; readonly clock: Clock } | undefined;
  /** Rates of a group of the same ranks: nothing is timed again. The same on all ranks. */
  readonly known: NetworkPathRates | undefined;
  readonly connectTimeoutMs: number;
  /** Takes what this rank needs beside sockets. @throws what keeps it from that. */
  readonly reserve: () => void;
  readonly tellOthers: (message: ControlMessage) => void;
  readonly onProblem: (thrown: unknown) => void;
}

/** What all ranks have. */
export interface AgreedNetworkPath {
  /** This rank's sockets to the other ranks. */
  readonly descriptors: readonly number[];
  /** The same on all ranks. */
  readonly rates: NetworkPathRates;
}

export class NetworkPathOpening {
  /** Where this rank can be reached; empty: it cannot. */
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
  /** Whose the sockets are is decided. */
  #hasEnded = false;

  constructor(options: NetworkPathOpeningOptions) {
    this.#options = options;
    const { group, world, means, connectTimeoutMs } = options;
    this.candidates = means && group.globalRanks.length <= networkPathRanksMax ? means.sockets.candidates : [];
    if (means && this.candidates.length > 0) this.#links = new NetworkPathLinks({ group, world, ...means, connectTimeoutMs });
    this.#candidatesOf = group.globalRanks.map((_, rank) => (rank === group.rank ? this.candidates : []));
    this.#ready = group.globalRanks.map(() => undefined);
  }

  /** Where another rank can be reached. */
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

  /** To be called when all ranks have been noted. Tells once; undefined: no network path. */
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

  /** Of the sockets to other hosts. */
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
    // Who could not time it has left messages on the sockets.
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
