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
 *  Channels per rank: 0 reduces inside the host and sends, 1 owns, 2 takes results and spreads them inside the host; with several
 *  groups 3 is the root's, and 4 passes on what roots return. No rank of the host waits for another: rail d alone reads and writes the
 *  slots d of its host. At step k host m sends to the host k after it. What is sent goes to its place in the staging when the result
 *  of the slice that used the place before is back; that needs no extra message. Shards are never cut below `shardCount`: with
 *  many hosts fewer of them own.
 *
 *  After Herring (Thangakrishnan et al., SC 2020) and Fairring, which shards without a floor and stages 2M + 1 shards. */
import { balancedTree, type ReduceTree } from '../../memory/kernels.ts';
import { canonicalTree, postfix } from '../../plan/association.ts';
import { at, span, within, type Arrival, type PlanBuilder } from '../../plan/builder.ts';
import type { Location, Span } from '../../plan/ir.ts';
import { split, type Range } from '../../plan/partition.ts';
import type { Topology } from '../../plan/topology.ts';
import type { Algorithm } from './algorithm.ts';
import { fairringLayout, wholeLines, type FairringLayout } from './fairring-layout.ts';

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

/** One of the pieces that a shard is reduced in. */
interface Part {
  /** Group whose owner of the shard is the root. */
  readonly group: number;
  readonly range: Range;
  /** What had its place in the root's staging before. */
  readonly before: Part | undefined;
  /** At the root, by the sending owner's group. */
  readonly contributed: Arrival[];
  /** At the owners, by their group. */
  readonly finished: Arrival[];
  /** At the hosts that own nothing of it, by host. */
  readonly returned: Arrival[];
}

interface Shard {
  /** Index in every host of the ranks that exchange it. */
  readonly rail: number;
  /** Index in its slot. */
  readonly index: number;
  readonly range: Range;
  /** Index of its place in its owners' staging, and what had that before. */
  readonly place: number;
  readonly before: Shard | undefined;
  /** Hosts, by group. */
  readonly owners: readonly number[];
  readonly parts: readonly Part[];
  /** At the owner of the sending host's group, by host. */
  readonly contributed: Arrival[];
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
  /** Group of every host, and its index there. */
  readonly #groupOf: readonly number[];
  readonly #indexOf: readonly number[];
  /** By owner's rank and index of the shard: its staging for all slices in flight. */
  readonly #staging = new Map<string, Span>();
  /** Elements that ranks of a host sum or copy at a time, at least. */
  readonly #runCount: number;
  /** By rail, index and place: the last shard there. */
  readonly #last = new Map<string, Shard>();
  /** Per host: its ranks' contributions → the host's. */
  readonly #hostTrees: readonly ReduceTree[];
  /** Per host: its ranks' contributions, then the sums of its group's other hosts, beginning with the next one → the group's. */
  readonly #groupTrees: readonly ReduceTree[];
  /** Per rank: channels that write to other ranks of the host. */
  readonly #writers: readonly Set<number>[];

  constructor(b: PlanBuilder) {
    this.#b = b;
    this.#hosts = b.topology.hosts;
    this.#layout = fairringLayout(b.request);
    const { groups } = this.#layout;
    this.#groupOf = groups.flatMap((group, g) => group.map(() => g));
    this.#indexOf = groups.flatMap((group) => [...group.keys()]);
    this.#runCount = Math.min(b.request.pieceCount ?? runBytes, runBytes / (b.request.elementBytes ?? 8));
    this.#writers = b.ranks.map(() => new Set());
    this.#hostTrees = this.#hosts.map((host) => postfix(canonicalTree({ hosts: [host] }), (rank) => host.indexOf(rank)));
    this.#groupTrees = this.#hosts.map((host, m) =>
      balancedTree(this.#groupWith(m).length).flatMap((entry) => {
        if (entry === -1) return -1;
        const distance = this.#distance(m, this.#groupWith(m)[entry]);
        return distance === 0 ? [...this.#hostTrees[m]] : host.length + distance - 1;
      }),
    );
  }

  emit(): void {
    const b = this.#b;
    const { slices, groups } = this.#layout;
    slices.forEach((slice, index) => {
      const shards = this.#shardsOf(slice, index);
      const rails = this.#hosts[0].map((_, rail) => shards.filter((shard) => shard.rail === rail));
      b.onChannel(channels.send, () => this.#send(rails));
      b.onChannel(channels.own, () => shards.forEach((shard) => this.#own(shard)));
      if (groups.length > 1) {
        b.onChannel(channels.root, () => shards.forEach((shard) => this.#reduceParts(shard)));
        b.onChannel(channels.pass, () => shards.forEach((shard) => this.#passOn(shard)));
      }
      b.onChannel(channels.gather, () => this.#gather(rails));
    });
    this.#endTogether();
  }

  // ── who owns what ───────────────────────────────────────────────────────────────────────────────────────────────

  /** The shards of a slice, rail by rail. */
  #shardsOf(slice: Range, sliceIndex: number): Shard[] {
    const place = sliceIndex % this.#layout.inFlight;
    return split(slice.count, this.#hosts[0].length).flatMap((slot, rail) =>
      split(slot.count, this.#layout.owners).flatMap((own, index): Shard[] => {
        if (own.count === 0) return [];
        const range = { offset: slice.offset + slot.offset + own.offset, count: own.count };
        const key = `${rail} ${index} ${place}`;
        const before = this.#last.get(key);
        const owners = this.#layout.groups.map((group) => this.#ownerIn(group, rail, index));
        const shard: Shard = {
          rail,
          index,
          range,
          place,
          before,
          owners,
          parts: this.#partsOf(range, rail, index, before),
          contributed: [],
        };
        this.#last.set(key, shard);
        return [shard];
      }),
    );
  }

  /** Where there are fewer owners than hosts, those of different rails are different hosts. */
  #ownerIn(group: readonly number[], rail: number, index: number): number {
    const [B, D, E] = [group.length, this.#hosts[0].length, this.#layout.owners];
    return group[(Math.floor((index * B) / E) + Math.floor((rail * B) / (D * Math.min(E, B)))) % B];
  }

  #partsOf(range: Range, rail: number, index: number, before: Shard | undefined): Part[] {
    const { parts, groups } = this.#layout;
    return split(range.count, parts).flatMap((part, p): Part[] => {
      if (part.count === 0) return [];
      const group = (Math.floor((p * groups.length) / parts) + rail + index) % groups.length;
      return [
        {
          group,
          range: { offset: range.offset + part.offset, count: part.count },
          before: before?.parts.find((each) => each.group === group),
          contributed: [],
          finished: [],
          returned: [],
        },
      ];
    });
  }

  #rankOf(host: number, { rail }: Shard): number {
    return this.#hosts[host][rail];
  }

  #ownerFor(host: number, shard: Shard): number {
    return shard.owners[this.#groupOf[host]];
  }

  // ── the way there ───────────────────────────────────────────────────────────────────────────────────────────────

  /** Channel 0 of every rank: the host's sums of what others of its group own, to the owners, the next host's first. */
  #send(rails: readonly (readonly Shard[])[]): void {
    const b = this.#b;
    this.#hosts.forEach((host, m) =>
      host.forEach((rank, rail) => {
        for (const { shards, range } of runsOf(this.#turn(rails[rail], m, 'to owners'), this.#runCount)) {
          this.#sumHost(rank, span('data', range));
          for (const shard of shards) {
            // The place in the owner's staging is free when what the owner made of the shard before in it has come back.
            // The last to come of each channel first: it stands for those before it.
            for (const part of rotated(shard.before?.parts ?? [], this.#groupOf[m]).reverse()) b.wait(part.returned[m]);
            shard.contributed[m] = this.#put(rank, this.#rankOf(this.#ownerFor(m, shard), shard), shard.range, this.#placeOf(shard, m));
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

  /** Channel 1 of the shard's owners: the sums of their groups' hosts; where that is the whole, into the data of all ranks of the host,
   *  and back; else part by part to the roots. */
  #own(shard: Shard): void {
    const b = this.#b;
    shard.owners.forEach((m, group) => {
      const rank = this.#rankOf(m, shard);
      for (const other of this.#others(m)) b.wait(shard.contributed[other]);
      if (shard.owners.length === 1) {
        for (const part of shard.parts) this.#finish(shard, part, channels.own);
        return;
      }
      for (const part of rotated(shard.parts, group)) {
        if (part.group === group) continue;
        const data = span('data', part.range);
        const sources = this.#groupSources(shard, part, m);
        if (sources.length > 1) b.reduce(rank, { targets: [data], sources, tree: this.#groupTrees[m], final: false });
        b.wait(part.before?.finished[group]);
        part.contributed[group] = this.#put(
          rank,
          this.#rankOf(shard.owners[part.group], shard),
          part.range,
          this.#rootPlaceOf(shard, part, group),
        );
      }
    });
  }

  /** Channel 3 of the roots, which take their own group's hosts and the other groups' sums. */
  #reduceParts(shard: Shard): void {
    const b = this.#b;
    for (const part of shard.parts) {
      for (const other of this.#others(shard.owners[part.group])) b.wait(shard.contributed[other]);
      for (const arrival of part.contributed) b.wait(arrival);
      this.#finish(shard, part, channels.root);
    }
  }

  /** The whole sum, into the data of all ranks of the root's host; to the other owners, and to the hosts of the own group. */
  #finish(shard: Shard, part: Part, channel: number): void {
    const b = this.#b;
    const m = shard.owners[part.group];
    const rank = this.#rankOf(m, shard);
    const groups = shard.owners.length;
    const sources = this.#groupSources(shard, part, m);
    const first = sources.length - 1;
    const tree = balancedTree(groups).flatMap((entry) => {
      if (entry === -1) return -1;
      return entry === part.group ? [...this.#groupTrees[m]] : first + ((entry - part.group + groups) % groups);
    });
    const others = Array.from({ length: groups - 1 }, (_, k) => (part.group + 1 + k) % groups);
    for (const group of others) sources.push(this.#rootPlaceOf(shard, part, group));
    const data = span('data', part.range);
    b.reduce(rank, { targets: this.#hosts[m].map((peer) => at(peer, data)), sources, tree, final: true });
    this.#writers[rank].add(channel);
    for (const group of others) part.finished[group] = this.#put(rank, this.#rankOf(shard.owners[group], shard), part.range, data);
    this.#return(shard, { range: part.range, parts: [part] }, m);
  }

  /** What the ranks of the host contribute to a part, and the sums of the group's other hosts. */
  #groupSources(shard: Shard, { range }: Part, m: number): Location[] {
    const local = this.#hosts[m].map((peer): Location => at(peer, span('data', range)));
    const offset = range.offset - shard.range.offset;
    return [...local, ...this.#others(m).map((other) => within(this.#placeOf(shard, other), offset, range.count))];
  }

  // ── the way back ────────────────────────────────────────────────────────────────────────────────────────────────

  /** Channel 4 of owners: what roots return, to the ranks of the host and to the hosts of the group. Neighbouring parts go together:
   *  messages are as large as those to the owner. */
  #passOn(shard: Shard): void {
    shard.owners.forEach((m, group) => {
      for (const parts of neighbours(rotated(shard.parts, group).filter((part) => part.group !== group))) {
        for (const part of parts) this.#b.wait(part.finished[group]);
        const range = { offset: parts[0].range.offset, count: parts.reduce((sum, part) => sum + part.range.count, 0) };
        this.#return(shard, { range, parts }, m);
        this.#spread(m, shard.rail, range, channels.pass);
      }
    });
  }

  /** From the owner `m` to the other hosts of its group. */
  #return(shard: Shard, { range, parts }: { readonly range: Range; readonly parts: readonly Part[] }, m: number): void {
    for (const other of this.#others(m)) {
      const arrival = this.#put(this.#rankOf(m, shard), this.#rankOf(other, shard), range, span('data', range));
      for (const part of parts) part.returned[other] = arrival;
    }
  }

  /** Channel 2 of every rank: results as they come back, in runs, into the data of the host's other ranks. */
  #gather(rails: readonly (readonly Shard[])[]): void {
    this.#hosts.forEach((host, m) =>
      host.forEach((_, rail) => {
        for (const { shards, range } of runsOf(this.#turn(rails[rail], m, 'from owners'), this.#runCount)) {
          for (const { parts } of shards) for (const part of parts) this.#b.wait(part.returned[m]);
          this.#spread(m, rail, range, channels.gather);
        }
      }),
    );
  }

  /** Copies a result into the data of the host's other ranks. */
  #spread(m: number, rail: number, range: Range, channel: number): void {
    const host = this.#hosts[m];
    const data = span('data', range);
    for (const k of host.keys()) if (k > 0) this.#b.copy(host[rail], at(host[(rail + k) % host.length], data), data);
    this.#writers[host[rail]].add(channel);
  }

  /** Ranks of a host tell each other that they have written their last. */
  #endTogether(): void {
    const b = this.#b;
    const arrivals: Arrival[] = [];
    for (const host of this.#hosts) {
      if (host.length === 1) return;
      host.forEach((rank, rail) => {
        for (const channel of [...this.#writers[rank]].sort((x, y) => x - y)) {
          b.onChannel(channel, () => {
            for (const k of host.keys()) if (k > 0) arrivals.push(b.notify(rank, host[(rail + k) % host.length]));
          });
        }
      });
    }
    b.onChannel(channels.gather, () => arrivals.forEach((arrival) => b.wait(arrival)));
  }

  // ── places and distances ────────────────────────────────────────────────────────────────────────────────────────

  /** @returns the last arrival: of one sender and channel, the others come before. */
  #put(from: number, to: number, range: Range, target: Span): Arrival {
    const b = this.#b;
    let arrival: Arrival;
    for (const piece of b.pieces(range)) {
      const offset = piece.offset - range.offset;
      arrival = b.send(from, to, span('data', piece), within(target, offset, piece.count));
    }
    return arrival;
  }

  /** Where the owner of the shard in `from`'s group keeps what host `from` sends it. */
  #placeOf(shard: Shard, from: number): Span {
    const owner = this.#ownerFor(from, shard);
    const size = wholeLines(this.#layout.shardMost);
    return within(this.#stagingOf(shard, owner), (this.#distance(owner, from) - 1) * size, shard.range.count);
  }

  /** Where the root of a part keeps what the owner in `group` sends it. */
  #rootPlaceOf(shard: Shard, part: Part, group: number): Span {
    const { shardMost, partMost, groups } = this.#layout;
    const root = shard.owners[part.group];
    const first = (this.#groupWith(root).length - 1) * wholeLines(shardMost);
    const distance = (group - part.group + groups.length) % groups.length;
    return within(this.#stagingOf(shard, root), first + (distance - 1) * wholeLines(partMost), part.range.count);
  }

  /** An owner's staging for a slice. */
  #stagingOf(shard: Shard, owner: number): Span {
    const { shardMost, partMost, groups, inFlight } = this.#layout;
    const size = (this.#groupWith(owner).length - 1) * wholeLines(shardMost) + (groups.length - 1) * wholeLines(partMost);
    const rank = this.#rankOf(owner, shard);
    const key = `${rank} ${shard.index}`;
    let all = this.#staging.get(key);
    if (all === undefined) {
      all = this.#b.scratch(rank, inFlight * size);
      this.#staging.set(key, all);
    }
    return within(all, shard.place * size, size);
  }

  /** The shards of a rail that others of the host's group own, nearest first. */
  #turn(shards: readonly Shard[], m: number, way: 'to owners' | 'from owners'): Shard[] {
    const distance = (shard: Shard): number => {
      const owner = this.#ownerFor(m, shard);
      return way === 'to owners' ? this.#distance(m, owner) : this.#distance(owner, m);
    };
    return shards.filter((shard) => this.#ownerFor(m, shard) !== m).sort((x, y) => distance(x) - distance(y));
  }

  #groupWith(m: number): readonly number[] {
    return this.#layout.groups[this.#groupOf[m]];
  }

  /** The other hosts of the group, beginning with the next one. */
  #others(m: number): number[] {
    const group = this.#groupWith(m);
    return group.slice(1).map((_, k) => group[(this.#indexOf[m] + 1 + k) % group.length]);
  }

  /** How many hosts after `from` `to` comes in their group. */
  #distance(from: number, to: number): number {
    const { length } = this.#groupWith(from);
    return (this.#indexOf[to] - this.#indexOf[from] + length) % length;
  }
}

/** Runs of parts that follow each other in the shard. */
function neighbours(parts: readonly Part[]): Part[][] {
  const runs: Part[][] = [];
  for (const part of parts) {
    const last = runs.at(-1)?.at(-1)?.range;
    if (last && last.offset + last.count === part.range.offset) runs.at(-1)?.push(part);
    else runs.push([part]);
  }
  return runs;
}

/** The parts beginning after `start`, so that no root hears everybody first. */
function rotated(parts: readonly Part[], start: number): Part[] {
  const after = parts.filter(({ group }) => group > start);
  return [...after, ...parts.filter(({ group }) => group <= start)];
}
