/** Fairring: a sharded all-reduce on two levels, 2(M−1)/M·S/D bytes per rank between M hosts with D ranks each, in two network
 *  hops; in four among more hosts than a rank should talk to (fairring-layout.ts).
 *
 *      tensor   │ slice 0 │ slice 1 │ …        as many in flight as the staging holds
 *      slice    │ slot 0 │ slot 1 │ … D        slot d belongs to local rank d of every host (a rail)
 *      slot     │ shard 0 │ shard 1 │ … ≤ B    shard e belongs to one host of every group, its owner
 *      shard    │ part 0 │ part 1 │ … ≤ M/B    part p belongs to one of the owners, its root; in a single group the shard is the part
 *
 *      host, rank d    data of local ranks ═⊕═▶ shard e ──put──▶ owner: staging
 *      owner           its group's hosts ═⊕═▶ data ──put──▶ root: staging                    └ only where there are
 *      root            all groups' ═⊕═▶ data of its local ranks ──put──▶ owners: data          several groups
 *      owner           data ──put──▶ hosts of its group: data
 *      every rank      data ═══copies═══▶ data of its local ranks
 *
 *  Channels per rank: 0 reduces inside the host and sends, 1 owns, 2 takes results and spreads them inside the host; with several groups 3
 *  is the root's, and 4 passes on the roots' results. No rank of the host waits for another: rail d alone reads and writes the slots d of
 *  its host. At step k host m sends to the host k after it. A message goes to its place in the staging when the result of the slice that
 *  used the place before is back; that needs no extra message. Shards are never cut below `shardCount`: with many hosts fewer of them own.
 *
 *  After Herring (Thangakrishnan et al., SC 2020) and Fairring, which shards without a floor and stages 2M + 1 shards. */
import { assert } from '../../base/assert.ts';
import { getOrMake } from '../../base/collections/lists.ts';
import { balancedTree, type ReduceTree } from '../../memory/kernels.ts';
import { canonicalTree, postfix } from '../../plan/association.ts';
import { at, span, within, type Arrival, type PlanBuilder } from '../../plan/builder.ts';
import type { Location, Span } from '../../plan/ir.ts';
import { split, type Range } from '../../plan/ranges.ts';
import type { Topology } from '../../plan/topology.ts';
import type { Algorithm } from './algorithm.ts';
import { fairringLayout, wholeLines, type FairringLayout } from './fairring-layout.ts';
import { FairringPlaces } from './fairring-places.ts';
import { FairringShards, rotated, runsOf, type Part, type Shard } from './fairring-shards.ts';

export const fairring: Algorithm = {
  name: 'fairring',
  summary: 'large sizes on hosts with equally many ranks: least bytes between hosts, two hops or four, bounded staging',
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
const channels = { send: 0, own: 1, gather: 2, root: 3, pass: 4 } as const;

class Fairring {
  readonly #b: PlanBuilder;
  readonly #hosts: Topology['hosts'];
  readonly #layout: FairringLayout;
  readonly #places: FairringPlaces;
  readonly #shards: FairringShards;
  /** The host and the rail of the only rank whose program is kept; undefined: all are kept. Then only its rail is considered, and
   *  on it only its own steps and the messages to it. */
  readonly #only: { readonly host: number; readonly rail: number } | undefined;
  /** Fewest elements that ranks of a host sum or copy at a time. */
  readonly #runCount: number;
  /** Trees by host: its ranks' contributions → the host's. */
  readonly #hostTrees: ReduceTree[] = [];
  /** Trees by host: its ranks' contributions, then the sums of its group's other hosts, beginning with the next one → the group's. */
  readonly #groupTrees: ReduceTree[] = [];
  /** Places in the staging, by their offsets. */
  readonly #spans = new Map<number, Span[]>();

  constructor(b: PlanBuilder) {
    this.#b = b;
    this.#hosts = b.topology.hosts;
    this.#layout = fairringLayout(b.request);
    this.#places = new FairringPlaces(this.#layout, this.#hosts[0].length);
    this.#shards = new FairringShards(this.#layout, this.#places);
    this.#runCount = Math.min(b.request.pieceCount ?? runBytes, runBytes / (b.request.elementBytes ?? 8));
    const { onlyRank } = b;
    if (onlyRank !== undefined) {
      const host = b.hostOf[onlyRank];
      this.#only = { host, rail: this.#hosts[host].indexOf(onlyRank) };
    }
  }

  emit(): void {
    const b = this.#b;
    const { slices, groups } = this.#layout;
    const several = this.#hosts[0].length > 1 || groups.length > 1;
    if (several && this.#hosts.length > 1 && slices.length > 0) b.movePartials();
    const rails = this.#only === undefined ? [...this.#hosts[0].keys()] : [this.#only.rail];
    slices.forEach((slice, index) => {
      const slots = split(slice.count, this.#hosts[0].length);
      for (const rail of rails) {
        const slot = { offset: slice.offset + slots[rail].offset, count: slots[rail].count };
        const shards = this.#shards.of(slot, { rail, place: index % this.#layout.inFlight });
        b.onChannel(channels.send, () => this.#send(shards));
        b.onChannel(channels.own, () => shards.forEach((shard) => this.#own(shard)));
        if (groups.length > 1) {
          b.onChannel(channels.root, () => shards.forEach((shard) => this.#reduceParts(shard)));
          b.onChannel(channels.pass, () => shards.forEach((shard) => this.#passOn(shard)));
        }
        b.onChannel(channels.gather, () => this.#gather(shards));
      }
    });
    this.#endTogether();
  }

  // ── ownership ───────────────────────────────────────────────────────────────────────────────────────────────────

  #rankOf(host: number, { rail }: Pick<Shard, 'rail'>): number {
    return this.#hosts[host][rail];
  }

  #ownerFor(host: number, shard: Shard): number {
    return shard.owners[this.#places.groupOf[host]];
  }

  /** True when the host's program is kept. */
  #keeps(host: number): boolean {
    return this.#only === undefined || this.#only.host === host;
  }

  /** The targets of `host` whose programs need the message. */
  #heard(host: number, targets: readonly number[]): readonly number[] {
    return this.#keeps(host) ? targets : targets.filter((target) => this.#keeps(target));
  }

  // ── the way there ───────────────────────────────────────────────────────────────────────────────────────────────

  /** Channel 0 of every rank: sends the host's sums of shards that others of its group own to the owners, the next host's first. */
  #send(shards: readonly Shard[]): void {
    const b = this.#b;
    for (const m of this.#only === undefined ? this.#hosts.keys() : this.#places.groupWith(this.#only.host)) {
      for (const { items: run, range } of runsOf(this.#turn(shards, m, 'to owners'), this.#runCount)) {
        if (this.#keeps(m)) this.#sumHost(this.#rankOf(m, run[0]), range);
        for (const shard of run) {
          const owner = this.#ownerFor(m, shard);
          if (this.#heard(m, [owner]).length === 0) continue;
          // The place in the owner's staging is free when the result of the shard before in it has come back. The last arrival of
          // each channel comes first: it stands for those before it.
          if (this.#keeps(m))
            for (const part of rotated(shard.before?.parts ?? [], this.#places.groupOf[m]).reverse()) b.wait(part.returned[m]);
          shard.contributed[m] = this.#put(shard, { from: m, to: owner, range: shard.range }, this.#placeOf(shard, m), {
            signal: this.#places.sentSignal(owner, m),
          });
        }
      }
    }
  }

  /** A host's sum, in place of the rank's own contribution, which no other rank reads. */
  #sumHost(rank: number, data: Span): void {
    const host = this.#hosts[this.#b.hostOf[rank]];
    if (host.length === 1) return;
    const tree = this.#hostTree(this.#b.hostOf[rank]);
    this.#b.reduce(rank, { targets: [data], sources: host.map((peer) => at(peer, data)), tree, final: false });
  }

  /** Channel 1 of the shard's owners: sums their groups' hosts. With a single group that is the whole, which goes into the data
   *  of all ranks of the host, and back; else it goes part by part to the roots. */
  #own(shard: Shard): void {
    const b = this.#b;
    const { groups } = this.#layout;
    shard.owners.forEach((m, group) => {
      const rank = this.#rankOf(m, shard);
      if (this.#keeps(m)) for (const other of this.#places.othersOf(m)) b.wait(shard.contributed[other]);
      if (groups.length === 1) {
        for (const part of shard.parts) this.#finish(shard, part, channels.own);
        return;
      }
      if (this.#heard(m, shard.owners).length === 0) return;
      for (const part of rotated(shard.parts, group)) {
        const root = shard.owners[part.group];
        if (part.group === group || this.#heard(m, [root]).length === 0) continue;
        if (this.#keeps(m)) {
          const sources = this.#groupSources(shard, part, { m, local: this.#locally(m, part.range) });
          if (sources.length > 1) b.reduce(rank, { targets: [part.range], sources, tree: this.#groupTree(m), final: false });
          b.wait(part.before?.finished[group]);
        }
        part.contributed[group] = this.#put(shard, { from: m, to: root, range: part.range }, this.#rootPlaceOf(shard, part, group), {
          signal: this.#places.contributedSignal(root, shard, group),
        });
      }
    });
  }

  /** Channel 3 of the roots: takes the sums of their own group's hosts and of the other groups. */
  #reduceParts(shard: Shard): void {
    const b = this.#b;
    for (const part of shard.parts) {
      const root = shard.owners[part.group];
      if (this.#keeps(root)) {
        for (const other of this.#places.othersOf(root)) b.wait(shard.contributed[other]);
        for (const arrival of part.contributed) b.wait(arrival);
      }
      this.#finish(shard, part, channels.root);
    }
  }

  /** Sends the whole sum into the data of all ranks of the root's host, to the other owners, and to the hosts of the root's own group. */
  #finish(shard: Shard, part: Part, channel: number): void {
    const m = shard.owners[part.group];
    if (this.#keeps(m)) this.#sumAll(shard, part, m);
    for (const k of shard.owners.slice(1).keys()) {
      const group = (part.group + 1 + k) % shard.owners.length;
      const to = shard.owners[group];
      if (this.#heard(m, [to]).length === 0) continue;
      const signal = this.#places.finishedSignal(to, shard, part.group);
      part.finished[group] = this.#put(shard, { from: m, to, range: part.range }, part.range, { signal });
    }
    this.#return(shard, { range: part.range, parts: [part] }, { from: m, channel });
  }

  /** The sum of a part at its root `m`. */
  #sumAll(shard: Shard, part: Part, m: number): void {
    const groups = shard.owners.length;
    const targets = this.#locally(m, part.range);
    const sources = this.#groupSources(shard, part, { m, local: targets });
    const first = sources.length - 1;
    const tree = balancedTree(groups).flatMap((entry) => {
      if (entry === -1) return -1;
      return entry === part.group ? [...this.#groupTree(m)] : first + ((entry - part.group + groups) % groups);
    });
    for (let k = 1; k < groups; k++) sources.push(this.#rootPlaceOf(shard, part, (part.group + k) % groups));
    this.#b.reduce(this.#rankOf(m, shard), { targets, sources, tree, final: true });
  }

  /** A range of the data of the host's ranks. */
  #locally(m: number, range: Span): Location[] {
    return this.#hosts[m].map((peer) => at(peer, range));
  }

  /** `local`, contributions of a host's ranks to a part, and the sums of the group's other hosts. */
  #groupSources(shard: Shard, { range }: Part, { m, local }: { readonly m: number; readonly local: readonly Location[] }): Location[] {
    const offset = range.offset - shard.range.offset;
    return [...local, ...this.#places.othersOf(m).map((other) => this.#placeOf(shard, other, { offset, count: range.count }))];
  }

  // ── the way back ────────────────────────────────────────────────────────────────────────────────────────────────

  /** Channel 4 of owners: passes the roots' results on to the ranks of the host and to the hosts of the group. Neighbouring parts
   *  go together, so messages are as large as those to the owner. */
  #passOn(shard: Shard): void {
    shard.owners.forEach((m, group) => {
      if (this.#heard(m, this.#places.groupWith(m)).length === 0) return;
      const foreign = rotated(shard.parts, group).filter((part) => part.group !== group);
      for (const { items: parts, range } of runsOf(foreign, Infinity)) {
        if (this.#keeps(m)) for (const part of parts) this.#b.wait(part.finished[group]);
        this.#return(shard, { range, parts }, { from: m, channel: channels.pass });
        if (this.#keeps(m)) this.#spread(this.#rankOf(m, shard), range);
      }
    });
  }

  /** Sends a result from an owner to the other hosts of its group. */
  #return(
    shard: Shard,
    { range, parts }: { readonly range: Span; readonly parts: readonly Part[] },
    { from, channel }: { readonly from: number; readonly channel: number },
  ): void {
    for (const to of this.#heard(from, this.#places.othersOf(from))) {
      const signal = channel === channels.pass ? this.#places.passedSignal(to, from) : this.#places.returnedSignal(to, from);
      const arrival = this.#put(shard, { from, to, range }, range, { signal });
      for (const part of parts) part.returned[to] = arrival;
    }
  }

  /** Channel 2 of every rank: copies results as they come back, in runs, into the data of the host's other ranks. */
  #gather(shards: readonly Shard[]): void {
    for (const m of this.#only === undefined ? this.#hosts.keys() : [this.#only.host]) {
      for (const { items: run, range } of runsOf(this.#turn(shards, m, 'from owners'), this.#runCount)) {
        for (const { parts } of run) for (const part of parts) this.#b.wait(part.returned[m]);
        this.#spread(this.#rankOf(m, run[0]), range);
      }
    }
  }

  /** Copies a result into the data of the host's other ranks. */
  #spread(rank: number, data: Span): void {
    const host = this.#hosts[this.#b.hostOf[rank]];
    for (const peer of after(host, rank)) this.#b.copy(rank, at(peer, data), data);
  }

  /** The ranks of a host tell each other that they have written their last, on every channel on which they may write. */
  #endTogether(): void {
    const b = this.#b;
    const arrivals: Arrival[] = [];
    for (const [m, host] of this.#hosts.entries()) {
      if (host.length === 1 || !this.#keeps(m)) continue;
      host.forEach((rank, rail) => {
        const owns = this.#places.ownedBy(m, rail).length > 0;
        const writing = [
          channels.gather,
          ...(!owns ? [] : this.#layout.groups.length === 1 ? [channels.own] : [channels.root, channels.pass]),
        ];
        writing.forEach((channel, place) => {
          b.onChannel(channel, () => {
            for (const peer of after(host, rank)) {
              const signal = this.#places.endSignal(m, { to: host.indexOf(peer), from: rail }, place);
              arrivals.push(b.notify(rank, peer, signal));
            }
          });
        });
      });
    }
    b.onChannel(channels.gather, () => arrivals.forEach((arrival) => b.wait(arrival)));
  }

  // ── places and sums ─────────────────────────────────────────────────────────────────────────────────────────────

  /** Sends between the hosts' ranks of the shard's rail. @returns the last arrival: the others come before. */
  #put(
    shard: Shard,
    { from, to, range }: { readonly from: number; readonly to: number; readonly range: Span },
    target: Span,
    { signal }: { readonly signal: number },
  ): Arrival {
    const b = this.#b;
    let arrival: Arrival;
    for (const piece of b.pieces(range)) {
      const place = within(target, piece.offset - range.offset, piece.count);
      const source = piece === range ? range : span('data', piece);
      arrival = b.send(this.#rankOf(from, shard), this.#rankOf(to, shard), source, place, signal);
    }
    return arrival;
  }

  /** Place where the owner of the shard in `from`'s group keeps the message of host `from`, or a range of it. */
  #placeOf(shard: Shard, from: number, { offset, count }: Range = { offset: 0, count: shard.range.count }): Span {
    const owner = this.#ownerFor(from, shard);
    const size = wholeLines(this.#layout.shardMost);
    return this.#staged(shard, owner, { offset: (this.#places.distance(owner, from) - 1) * size + offset, count });
  }

  /** Place where the root of a part keeps the message of the owner in `group`. */
  #rootPlaceOf(shard: Shard, part: Part, group: number): Span {
    const { shardMost, partMost, groups } = this.#layout;
    const root = shard.owners[part.group];
    const first = this.#places.othersOf(root).length * wholeLines(shardMost);
    const distance = (group - part.group + groups.length) % groups.length;
    return this.#staged(shard, root, { offset: first + (distance - 1) * wholeLines(partMost), count: part.range.count });
  }

  /** A range of an owner's staging for a slice. Its shards lie one after the other, each with all its places. Owners keep equal places at
   *  equal offsets, so that they share one span. */
  #staged(shard: Shard, owner: number, { offset, count }: Range): Span {
    const { shardMost, partMost, groups, inFlight } = this.#layout;
    const size = this.#places.othersOf(owner).length * wholeLines(shardMost) + (groups.length - 1) * wholeLines(partMost);
    const owned = this.#places.ownedBy(owner, shard.rail);
    const all = this.#b.scratchOf(this.#rankOf(owner, shard), owned.length * inFlight * size);
    assert(offset + count <= size, () => `[${offset}, ${offset + count}) is outside a shard's staging of ${size}`);
    const start = all.offset + (owned.indexOf(shard.index) * inFlight + shard.place) * size + offset;
    const spans = getOrMake(this.#spans, start, (): Span[] => []);
    let span = spans.find((each) => each.count === count);
    if (span === undefined) spans.push((span = within(all, start - all.offset, count)));
    return span;
  }

  /** The shards of a rail that others of the host's group own, nearest first; if the host's program is not kept, only those that
   *  matter to the kept one. */
  #turn(shards: readonly Shard[], m: number, way: 'to owners' | 'from owners'): Shard[] {
    const distance = (shard: Shard): number => {
      const owner = this.#ownerFor(m, shard);
      return way === 'to owners' ? this.#places.distance(m, owner) : this.#places.distance(owner, m);
    };
    const foreign = shards.filter((shard) => {
      const owner = this.#ownerFor(m, shard);
      return owner !== m && this.#heard(m, [owner]).length > 0;
    });
    return foreign.sort((x, y) => distance(x) - distance(y));
  }

  #hostTree(m: number): ReduceTree {
    const host = this.#hosts[m];
    return (this.#hostTrees[m] ??= postfix(canonicalTree({ hosts: [host] }), (rank) => host.indexOf(rank)));
  }

  #groupTree(m: number): ReduceTree {
    const group = this.#places.groupWith(m);
    return (this.#groupTrees[m] ??= balancedTree(group.length).flatMap((entry) => {
      if (entry === -1) return -1;
      const distance = this.#places.distance(m, group[entry]);
      return distance === 0 ? [...this.#hostTree(m)] : this.#hosts[m].length + distance - 1;
    }));
  }
}

/** The other ranks of a host, beginning with the next one. */
function after(host: readonly number[], rank: number): number[] {
  const index = host.indexOf(rank);
  return [...host.slice(index + 1), ...host.slice(0, index)];
}
