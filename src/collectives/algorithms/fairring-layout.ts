/** Layout of fairring: cuts a tensor and assigns owners. Pure arithmetic; the same on every rank.
 *
 *      tensor ─▶ slices ─▶ slots, one per local rank (rail) ─▶ shards, one owner in every group of hosts ─▶ parts, one root each
 *
 *  Up to a certain fan-out all hosts are one group: a shard is its only part, its owner its root, and there are two hops. Beyond,
 *  groups of about √M hosts reduce their shards first, and the owners of a shard then share its parts: four hops, but a rank
 *  talks to 2√M others instead of M, and messages are √M times as large. The bytes are the same.
 *
 *  Groups are runs of a power of two hosts, the last may be shorter: those are subtrees of the balanced tree over hosts, so sums
 *  have the bits of the canonical association either way. */
import { clamp } from '../../base/numbers.ts';
import type { PlanRequest } from '../../plan/ir.ts';
import { lineCount, pieces, split, type Range } from '../../plan/ranges.ts';
import { shardCountOf, sliceCountOf, stagingCountOf } from './limits.ts';

const unlimited = Number.MAX_SAFE_INTEGER;
/** Most hosts that a rank talks to. */
const fanOutMax = 64;
/** Up to this many hosts are talked to whatever the size of messages. */
const fanOutLeast = 8;
/** Shards of this many times the floor are large enough: a message costs its ranks' time half of the time on the wire, and two
 *  hops save more than fewer messages. */
const largeShards = 2;

export interface FairringLayout {
  readonly slices: readonly Range[];
  /** Hosts of each group, as indices: all in one, or groups of a power of two. */
  readonly groups: readonly (readonly number[])[];
  /** Shards per slot, each with an owner in every group. */
  readonly owners: number;
  /** Parts per shard, each with a root among the shard's owners. */
  readonly parts: number;
  /** Number of slices in flight. */
  readonly inFlight: number;
  /** Elements of the largest shard and of the largest part. */
  readonly shardMost: number;
  readonly partMost: number;
  /** Scratch of the rank that needs most. */
  readonly scratchCount: number;
}

export function fairringLayout(request: PlanRequest): FairringLayout {
  const { topology, count } = request;
  // A caller that says how large slices are lets the staging decide how many are in flight.
  const { pieceCount = unlimited, window = unlimited } = request.sliceCount === undefined ? request : {};
  const [hosts, local] = [topology.hosts.length, topology.hosts[0].length];
  const most = Math.min(sliceCountOf(request), count);
  const floor = shardCountOf(request);
  const groupSize = Math.min(hosts, request.groupHosts ?? groupSizeOf(hosts, most / local, floor));
  const groups = groupsOf(hosts, groupSize);
  const room = Math.floor(most / local / floor);
  // When shards of half the floor let all ranks own, none is left idle for the sake of larger messages.
  const owners = clamp(2 * room >= groupSize ? groupSize : room, 1, groupSize);
  const parts = clamp(Math.floor(most / local / owners / floor), 1, groups.length);
  const staging = stagingCountOf(request);
  // Shares are whole lines; the first bound keeps shards within a piece, the second one keeps a slice within the staging.
  const lines = (elements: number): number => Math.max(1, Math.floor(elements / lineCount)) * lineCount;
  const perShard = Math.max(...groups.map(({ length }) => Math.ceil(owners / length) * (length - 1 + (groups.length - 1) / parts)));
  const rounding =
    groups.length === 1 ? 0 : Math.max(...groups.map(({ length }) => Math.ceil(owners / length))) * (groups.length - 1) * lineCount;
  const staged = hosts === 1 ? unlimited : lines((staging - rounding) / perShard);
  const shardLimit = Math.min(lines(pieceCount), staged);
  const slices = pieces({ offset: 0, count }, Math.max(1, Math.min(most, shardLimit * owners * local)));
  const shardMost = largest(split(largest(split(largest(slices), local)), owners));
  const partMost = largest(split(shardMost, parts));
  const perSlice = Math.max(
    1,
    ...groups.map(({ length }) => stagingPerSlice({ owners, shardMost, partMost, groups: groups.length }, length)),
  );
  const inFlight = clamp(Math.floor(staging / perSlice), 1, Math.min(slices.length, window));
  return { slices, groups, owners, parts, inFlight, shardMost, partMost, scratchCount: hosts === 1 ? 0 : inFlight * perSlice };
}

/** Most elements that a rank of a group of `length` hosts stages of a slice. */
function stagingPerSlice(
  { owners, shardMost, partMost, groups }: { owners: number; shardMost: number; partMost: number; groups: number },
  length: number,
): number {
  return Math.ceil(owners / length) * ((length - 1) * wholeLines(shardMost) + (groups - 1) * wholeLines(partMost));
}

export function wholeLines(count: number): number {
  return Math.ceil(count / lineCount) * lineCount;
}

/** Hosts per group: all while they are few or their shards are large; else about as many as there are groups. */
function groupSizeOf(hosts: number, slotCount: number, floor: number): number {
  const direct = hosts <= fanOutLeast || (hosts <= fanOutMax && slotCount / hosts >= largeShards * floor);
  return direct ? hosts : 2 ** Math.round(Math.log2(hosts) / 2);
}

function groupsOf(hosts: number, size: number): number[][] {
  return Array.from({ length: Math.ceil(hosts / size) }, (_, group) =>
    Array.from({ length: Math.min(size, hosts - group * size) }, (__, index) => group * size + index),
  );
}

function largest(ranges: readonly Range[]): number {
  return ranges.reduce((most, { count }) => Math.max(most, count), 0);
}
