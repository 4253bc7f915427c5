/** Ranks that wait to be taken into a world which has begun, as its members see them: what all know of all ranks, with the newcomers. It
 *  must not know how they have connected. */
import { anyObject, anyText, count, list, object, optional, parse, record, type ValueOf } from '../base/schema.ts';
import type { CostModel } from '../plan/cost.ts';
import type { Topology } from '../plan/topology.ts';
import type { Store } from '../store/store.ts';
import type { Members, Newcomers } from './agreement.ts';
import { decodeJson } from '../base/bytes.ts';
import { ranksIn } from './rank-ranges.ts';

/** The facts that are known of all ranks of a world; ranks are the world's. */
export interface WorldFacts {
  /** Ranks by machine. */
  readonly hosts: readonly (readonly number[])[];
  /** Ranks by shared memory. */
  readonly topology: Topology;
  /** fabricOf[a][b]: what rank a reaches rank b over. */
  readonly fabricOf: readonly (readonly string[])[];
  /** Rates of this world; undefined where nothing is chosen by them. */
  readonly model: CostModel | undefined;
}

/** Ranks that are taken in, and what is known of all with them. */
export interface KnownNewcomers extends Newcomers {
  readonly facts: WorldFacts;
}

/** The shape of a rank's links as it tells of them. */
export const linkInfo = object({
  /** Fabric name → world ranks reached over it, as text: on one host no more for many ranks than for few. */
  fabrics: record(anyText),
  /** The fabrics, of those, over which this rank maps memory. */
  loadStore: list(anyText),
});
export type LinkInfo = ValueOf<typeof linkInfo>;

/** One that waits may be connected with others that have come later, and have not said so yet. */
const numbersMax = 2 ** 20;
const waitingInfo = object({ hostId: anyText, links: linkInfo });
const hostInfo = object({ rank: count, hostId: anyText });
const ranksByHost = list(list(count));
const factsShape = object({
  hosts: ranksByHost,
  topology: object({ hosts: ranksByHost }),
  fabricOf: list(list(anyText)),
  model: optional(anyObject),
});

/** Newcomers that wait and reach all of `ranks`, which stay. Earlier newcomers have lower numbers. */
export async function newcomersOf(
  world: { readonly joined: WorldFacts; reaches(rank: number): boolean },
  store: Store,
  ranks: readonly number[],
): Promise<KnownNewcomers | undefined> {
  const waiting = store.prefix('waiting');
  const numbers = (await waiting.listKeys()).map(Number).toSorted((a, b) => a - b);
  const taken: number[] = [];
  let facts = world.joined;
  for (const rank of numbers) {
    if (ranks.includes(rank) || !world.reaches(rank)) continue;
    // It may have given up since.
    const value = await waiting.get(String(rank), { timeoutMs: 0 }).catch(() => undefined);
    if (value === undefined) continue;
    const { hostId, links } = parse('what a rank that waits says', waitingInfo, decodeJson(value));
    const reach = reachOf(links, numbersMax);
    const all = [...ranks, ...taken];
    if (!all.every((each) => reach.fabricOf.has(each))) continue;
    facts = await withNewcomer(facts, { rank, hostId, ...reach }, { store, all });
    taken.push(rank);
  }
  return taken.length === 0 ? undefined : { ranks: taken, facts };
}

/** The facts of all ranks, with one more. @param all those that it will be with. */
async function withNewcomer(
  { hosts, topology, fabricOf, ...rest }: WorldFacts,
  { rank, hostId, ...reach }: { readonly rank: number; readonly hostId: string } & ReturnType<typeof reachOf>,
  { store, all }: { readonly store: Store; readonly all: readonly number[] },
): Promise<WorldFacts> {
  const values = await store.multiGet(all.map((each) => `info/${each}`));
  const infos = values.map((value) => parse('what a rank says of itself', hostInfo, decodeJson(value)));
  const neighbours = infos.filter((info) => info.hostId === hostId).map((info) => info.rank);
  const maps = (host: readonly number[]): boolean => {
    const there = host.filter((each) => all.includes(each));
    return there.length > 0 && there.every((each) => reach.loadStore.has(each));
  };
  const rows = Array.from({ length: Math.max(fabricOf.length, rank + 1) }, (_, from) =>
    Array.from({ length: Math.max(fabricOf.length, rank + 1) }, (__, to) => {
      if (from === rank && to === rank) return 'self';
      if (from === rank) return reach.fabricOf.get(to) ?? '?';
      return to === rank ? (reach.fabricOf.get(from) ?? '?') : (fabricOf[from]?.[to] ?? '?');
    }),
  );
  return {
    ...rest,
    hosts: added(hosts, (host) => host.some((each) => neighbours.includes(each)), rank),
    topology: { hosts: added(topology.hosts, maps, rank) },
    fabricOf: rows,
  };
}

/** The hosts, with a rank on the first of them that is its own, or on one more. */
function added(hosts: readonly (readonly number[])[], isOwn: (host: readonly number[]) => boolean, rank: number): number[][] {
  const place = hosts.findIndex(isOwn);
  if (place < 0) return [...hosts.map((host) => [...host]), [rank]];
  return hosts.map((host, index) => (index === place ? [...host, rank] : [...host]));
}

/** The facts of all ranks as a group has agreed on them that has taken some in. @throws ShoalError `protocol`. */
export function factsOf({ newcomers }: Members): WorldFacts {
  const { model, ...facts } = parse('what a group knows of its newcomers', factsShape, newcomers);
  return { ...facts, model: model as CostModel | undefined };
}

/** The links of a rank, read from what it has published. */
export function reachOf(info: LinkInfo, size: number): { fabricOf: Map<number, string>; loadStore: Set<number> } {
  const fabricOf = new Map<number, string>();
  const loadStore = new Set<number>();
  for (const [fabric, ranges] of Object.entries(info.fabrics)) {
    for (const rank of ranksIn(ranges, size)) {
      fabricOf.set(rank, fabric);
      if (info.loadStore.includes(fabric)) loadStore.add(rank);
    }
  }
  return { fabricOf, loadStore };
}

/** Hosts for plans: a rank joins the first group all of whose ranks it maps and that map it. */
export function cliques(maps: readonly ReadonlySet<number>[]): number[][] {
  const hosts: number[][] = [];
  maps.forEach((mapped, rank) => {
    const host = hosts.find((ranks) => ranks.every((other) => mapped.has(other) && maps[other].has(rank)));
    if (host) host.push(rank);
    else hosts.push([rank]);
  });
  return hosts;
}
