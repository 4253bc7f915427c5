/** Fairring: a sharded all-reduce on two levels, two network hops whatever the number of hosts, 2(M−1)/M·S/D bytes per rank
 *  between M hosts with D ranks each.
 *
 *      tensor   │ slice 0 │ slice 1 │ …        as many in flight as the staging holds
 *      slice    │ slot 0 │ slot 1 │ … D        slot d belongs to local rank d of every host (a rail)
 *      slot     │ shard 0 │ shard 1 │ … ≤ M    shard e belongs to one host of the rail, its owner
 *
 *      host 0, rank d   data of local ranks ═⊕═▶ shard e ──put──▶ owner: staging
 *      host 1, rank d   data of local ranks ═⊕═▶ shard e ──put──▶   … all hosts ═⊕═▶ data of its local ranks
 *                                                                   │ put
 *      host m, rank d   data of local ranks ◀══ copies ═══ data ◀───┘
 *
 *  Three channels per rank: 0 reduces inside the host and sends, 1 owns, 2 takes results and spreads them inside the host.
 *  No rank of the host waits for another: rail d alone reads and writes the slots d of its host. At step k host m sends to
 *  host m + k. A shard goes to its owner when the owner's result of the slice that used its place in the staging is back;
 *  that needs no extra message. Shards are never cut below `shardCount`: with many hosts fewer of them own.
 *
 *  After Herring (Thangakrishnan et al., SC 2020) and Fairring, which shards without a floor and stages 2M + 1 shards. */
import { balancedTree, type ReduceTree } from '../../memory/kernels.ts';
import { canonicalTree, postfix } from '../../plan/association.ts';
import { at, span, within, type Arrival, type PlanBuilder } from '../../plan/builder.ts';
import type { Location, PlanRequest, Span } from '../../plan/ir.ts';
import { lineCount, pieces, split, type Range } from '../../plan/partition.ts';
import type { Topology } from '../../plan/topology.ts';
import type { Algorithm } from './algorithm.ts';
import { shardCountOf, sliceCountOf, stagingCountOf } from './limits.ts';

export const fairring: Algorithm = {
  name: 'fairring',
  summary: 'large sizes on hosts with equally many ranks: least bytes between hosts, two hops, bounded staging',
  association: 'canonical',
  supports: ({ topology }) => {
    const { hosts } = topology;
    if (hosts.every((host) => host.length === hosts[0].length)) return undefined;
    const counts = hosts.map((host, index) => `host ${index} has ${host.length}`).join(', ');
    return `it needs equally many ranks on every host and ${counts}; use halving-doubling`;
  },
  build: { 'all-reduce': (b) => new Fairring(b).emit() },
};

const runBytes = 256 * 1024;
const channels = { send: 0, own: 1, gather: 2 } as const;

/** How a request is cut; exported for tests and documentation. */
export interface FairringLayout {
  readonly slices: readonly Range[];
  /** Owners per slot: 1…M. */
  readonly owners: number;
  /** Slices in flight. */
  readonly inFlight: number;
  /** Elements of the largest shard. */
  readonly shardMost: number;
  /** Scratch per rank: inFlight × (M − 1) shards. */
  readonly scratchCount: number;
}

export function fairringLayout(request: PlanRequest): FairringLayout {
  const { topology, count, pieceCount = Number.MAX_SAFE_INTEGER, window = Number.MAX_SAFE_INTEGER } = request;
  const [hosts, local] = [topology.hosts.length, topology.hosts[0].length];
  const most = Math.min(sliceCountOf(request), count);
  const owners = clamp(Math.floor(most / local / shardCountOf(request)), 1, hosts);
  // Shares are whole lines; the first bound keeps shards within a piece, the second one slice within the staging.
  const lines = (elements: number): number => Math.max(1, Math.floor(elements / lineCount)) * lineCount;
  const shardMost = Math.min(lines(pieceCount), hosts === 1 ? Number.MAX_SAFE_INTEGER : lines(stagingCountOf(request) / (hosts - 1)));
  const slices = pieces({ offset: 0, count }, Math.max(1, Math.min(most, shardMost * owners * local)));
  const slot = largest(split(largest(slices), local));
  const shard = largest(split(slot, owners));
  const perSlice = Math.max(1, (hosts - 1) * Math.ceil(shard / lineCount) * lineCount);
  const inFlight = clamp(Math.floor(stagingCountOf(request) / perSlice), 1, Math.min(slices.length, window));
  return { slices, owners, inFlight, shardMost: shard, scratchCount: hosts === 1 ? 0 : inFlight * perSlice };
}

function largest(ranges: readonly Range[]): number {
  return ranges.reduce((most, { count }) => Math.max(most, count), 0);
}

function clamp(value: number, least: number, most: number): number {
  return Math.max(least, Math.min(most, value));
}

/** Shards that adjoin each other, and what they cover. */
interface Run {
  readonly shards: Shard[];
  range: Range;
}

/** Shards in their order, those that adjoin the ones before together until they cover `least` elements. */
function runsOf(shards: readonly Shard[], least: number): Run[] {
  const runs: Run[] = [];
  for (const shard of shards) {
    const { offset, count } = shard.range;
    const last = runs.at(-1);
    const after = last !== undefined && last.range.offset + last.range.count === offset;
    const before = last !== undefined && offset + count === last.range.offset;
    if (last === undefined || last.range.count >= least || !(after || before)) {
      runs.push({ shards: [shard], range: shard.range });
      continue;
    }
    last.shards.push(shard);
    last.range = { offset: after ? last.range.offset : offset, count: last.range.count + count };
  }
  return runs;
}

class Fairring {
  readonly #b: PlanBuilder;
  readonly #hosts: Topology['hosts'];
  readonly #layout: FairringLayout;
  /** Per rank: one ring per other host, beginning with the next one. */
  readonly #staging: readonly (readonly Span[])[];
  /** Elements that ranks of a host sum or copy at a time, at least. */
  readonly #runCount: number;
  /** By owner, rail and place: the last shard there. */
  readonly #last = new Map<number, Shard>();
  /** Per host: its ranks' contributions → the host's. */
  readonly #hostTrees: readonly ReduceTree[];
  /** Per host: its ranks' contributions, then the other hosts' sums, beginning with the next one → the whole. */
  readonly #ownerTrees: readonly ReduceTree[];

  constructor(b: PlanBuilder) {
    this.#b = b;
    this.#hosts = b.topology.hosts;
    this.#layout = fairringLayout(b.request);
    const { scratchCount } = this.#layout;
    const ring = scratchCount / Math.max(1, this.#hosts.length - 1);
    this.#staging = b.ranks.map((rank) => this.#hosts.slice(1).map(() => b.scratch(rank, ring)));
    this.#runCount = Math.min(b.request.pieceCount ?? runBytes, runBytes / (b.request.elementBytes ?? 8));
    this.#hostTrees = this.#hosts.map((host) => postfix(canonicalTree({ hosts: [host] }), (rank) => host.indexOf(rank)));
    const M = this.#hosts.length;
    this.#ownerTrees = this.#hosts.map((host, m) =>
      balancedTree(M).flatMap((entry) => {
        if (entry === m) return [...this.#hostTrees[m]];
        return entry === -1 ? -1 : host.length + this.#distance(m, entry) - 1;
      }),
    );
  }

  emit(): void {
    const b = this.#b;
    const { slices } = this.#layout;
    slices.forEach((slice, index) => {
      const shards = this.#shardsOf(slice, index);
      const rails = this.#hosts[0].map((_, rail) => shards.filter((shard) => shard.rail === rail));
      b.onChannel(channels.send, () => this.#send(rails));
      b.onChannel(channels.own, () => shards.forEach((shard) => this.#own(shard)));
      b.onChannel(channels.gather, () => this.#gather(rails));
    });
    this.#endTogether();
  }

  /** The shards of a slice, rail by rail. Owners are spread: each rail and slice begins with another host. */
  #shardsOf(slice: Range, index: number): Shard[] {
    const [M, D] = [this.#hosts.length, this.#hosts[0].length];
    const { owners, inFlight } = this.#layout;
    return split(slice.count, D).flatMap((slot, rail) => {
      const first = (rail * Math.max(1, Math.floor(M / D)) + index) % M;
      return split(slot.count, owners).flatMap((part, e): Shard[] => {
        if (part.count === 0) return [];
        const range = { offset: slice.offset + slot.offset + part.offset, count: part.count };
        const owner = (first + Math.floor((e * M) / owners)) % M;
        const place = index % inFlight;
        const key = (owner * D + rail) * inFlight + place;
        const shard: Shard = { rail, owner, range, place, before: this.#last.get(key)?.returned, contributed: [], returned: [] };
        this.#last.set(key, shard);
        return [shard];
      });
    });
  }

  /** Channel 0 of every rank: the host's sums of what others own, to the owners, the next host's first. */
  #send(rails: readonly (readonly Shard[])[]): void {
    const b = this.#b;
    this.#hosts.forEach((host, m) =>
      host.forEach((rank, rail) => {
        const turn = rails[rail].filter(({ owner }) => owner !== m).sort((x, y) => this.#distance(m, x.owner) - this.#distance(m, y.owner));
        for (const { shards, range } of runsOf(turn, this.#runCount)) {
          this.#sumHost(rank, span('data', range));
          for (const shard of shards) {
            const distance = this.#distance(shard.owner, m);
            // The place in the owner's staging is free when what the owner made of the shard before in it has come back.
            b.wait(shard.before?.[distance]);
            const place = this.#placeOf(shard, m);
            let arrival: Arrival;
            for (const { offset, count } of b.pieces({ offset: 0, count: shard.range.count })) {
              const data = span('data', { offset: shard.range.offset + offset, count });
              arrival = b.send(rank, this.#hosts[shard.owner][rail], data, within(place, offset, count));
            }
            shard.contributed[distance] = arrival;
          }
        }
      }),
    );
  }

  /** A host's sum, in the place of the rank's own contribution, which nobody else reads. */
  #sumHost(rank: number, data: Span): void {
    const host = this.#hosts[this.#b.hostOf[rank]];
    if (host.length === 1) return;
    const tree = this.#hostTrees[this.#b.hostOf[rank]];
    this.#b.reduce(rank, { targets: [data], sources: host.map((peer) => at(peer, data)), tree, final: false });
  }

  /** Channel 1 of the shard's owner: all hosts' sums, into the data of all ranks of its host; and back to the other hosts. */
  #own(shard: Shard): void {
    const b = this.#b;
    const { owner: m, rail, range } = shard;
    const host = this.#hosts[m];
    const rank = host[rail];
    const data = span('data', range);
    const others = this.#others(m);
    for (const other of others) b.wait(shard.contributed[this.#distance(m, other)]);
    const local: Location[] = host.map((peer) => at(peer, data));
    const sources = [...local, ...others.map((other) => this.#placeOf(shard, other))];
    b.reduce(rank, { targets: local, sources, tree: this.#ownerTrees[m], final: true });
    for (const other of others) {
      for (const piece of b.pieces(range)) {
        shard.returned[this.#distance(m, other)] = b.send(rank, this.#hosts[other][rail], span('data', piece), span('data', piece));
      }
    }
  }

  /** Channel 2 of every rank: results as they come back, in runs, into the data of the host's other ranks. */
  #gather(rails: readonly (readonly Shard[])[]): void {
    const b = this.#b;
    this.#hosts.forEach((host, m) =>
      host.forEach((rank, rail) => {
        const turn = rails[rail].filter(({ owner }) => owner !== m).sort((x, y) => this.#distance(x.owner, m) - this.#distance(y.owner, m));
        for (const { shards, range } of runsOf(turn, this.#runCount)) {
          for (const shard of shards) b.wait(shard.returned[this.#distance(shard.owner, m)]);
          const data = span('data', range);
          for (const k of host.keys()) if (k > 0) b.copy(rank, at(host[(rail + k) % host.length], data), data);
        }
      }),
    );
  }

  /** Ranks of a host tell each other that they have written their last. */
  #endTogether(): void {
    const b = this.#b;
    const [M, D] = [this.#hosts.length, this.#hosts[0].length];
    if (D === 1) return;
    const shards = [...this.#last.values()];
    const owns = new Set(shards.map(({ rail, owner }) => owner * D + rail));
    const takes = new Set(shards.flatMap(({ rail, owner }) => this.#others(owner).map((m) => m * D + rail)));
    const arrivals: Arrival[] = [];
    for (let m = 0; m < M; m++) {
      this.#hosts[m].forEach((rank, rail) => {
        for (const [channel, busy] of [
          [channels.own, owns],
          [channels.gather, takes],
        ] as const) {
          if (!busy.has(m * D + rail)) continue;
          b.onChannel(channel, () => {
            for (const k of this.#hosts[m].keys()) if (k > 0) arrivals.push(b.notify(rank, this.#hosts[m][(rail + k) % D]));
          });
        }
      });
    }
    b.onChannel(channels.gather, () => arrivals.forEach((arrival) => b.wait(arrival)));
  }

  /** Where the shard's owner keeps what host `from` sends it. */
  #placeOf(shard: Shard, from: number): Span {
    const ring = this.#staging[this.#hosts[shard.owner][shard.rail]][this.#distance(shard.owner, from) - 1];
    const size = ring.count / this.#layout.inFlight;
    return within(ring, shard.place * size, shard.range.count);
  }

  #others(m: number): number[] {
    return this.#hosts.slice(1).map((_, index) => (m + 1 + index) % this.#hosts.length);
  }

  /** How many hosts after `from` `to` comes. */
  #distance(from: number, to: number): number {
    return (to - from + this.#hosts.length) % this.#hosts.length;
  }
}

interface Shard {
  /** Index in every host of the ranks that exchange it. */
  readonly rail: number;
  /** Host that owns it. */
  readonly owner: number;
  readonly range: Range;
  /** Index of its place in the owner's staging, and the `returned` of the shard that had it before. */
  readonly place: number;
  readonly before: readonly Arrival[] | undefined;
  /** By the sending host's distance from the owner. */
  readonly contributed: Arrival[];
  /** By the receiving host's distance from the owner. */
  readonly returned: Arrival[];
}
