/** The measurements of `shoal tune`: the rates of each shape of a world, and the fastest algorithm per collective and range of sizes.
 *  Versioned JSON; everything in it is checked before it is used (tuning-format.ts). It must not know files or how one measures. */
import type { Topology } from '../plan/topology.ts';
import type { TunedWorld, Tuning } from './tuning-format.ts';
import type { SelectionRule } from './select.ts';
import { collectives } from '../plan/ir.ts';

/** The properties by which worlds are told apart. */
export interface WorldShape {
  readonly topology: Topology;
  /** True if ranks share memory; considered only in a world of one host. */
  readonly loadStore: boolean;
  readonly order: 'canonical' | 'relaxed';
}

export function tunedWorldOf(tuning: Tuning | undefined, shape: WorldShape): TunedWorld | undefined {
  return tuning?.worlds.find((world) => sameShape(world, shape));
}

/** The measurements of a world of that shape, as rules. */
export function tunedRules(tuning: Tuning | undefined, shape: WorldShape): SelectionRule[] {
  const { choices = [] } = tunedWorldOf(tuning, shape) ?? {};
  return choices.flatMap(({ collective, ranges }) =>
    ranges.map(({ from, to, algorithm }) => ({
      collective,
      bytesFrom: from,
      bytesTo: to ?? Number.POSITIVE_INFINITY,
      ranksMax: Number.POSITIVE_INFINITY,
      algorithm,
    })),
  );
}

/** The tuning with the measurements of one more world; earlier ones of that shape and those collectives are replaced. */
export function withTunedWorld(tuning: Tuning | undefined, world: TunedWorld, shoal: string): Tuning {
  const before = tuning?.worlds ?? [];
  const same = before.find((each) => isSame(each, world));
  const fresh = new Set(world.choices.map(({ collective }) => collective));
  const kept = same?.choices.filter(({ collective }) => !fresh.has(collective)) ?? [];
  const order = (collective: (typeof world.choices)[number]['collective']): number => collectives.indexOf(collective);
  const merged = { ...world, choices: [...kept, ...world.choices].sort((a, b) => order(a.collective) - order(b.collective)) };
  return { schema: 'shoal-tuning', version: 1, shoal, worlds: [...before.filter((each) => each !== same), merged] };
}

function isSame(a: TunedWorld, b: TunedWorld): boolean {
  return a.hosts.join() === b.hosts.join() && a.order === b.order && (a.hosts.length > 1 || a.loadStore === b.loadStore);
}

function sameShape(world: TunedWorld, { topology, loadStore, order }: WorldShape): boolean {
  return isSame(world, { hosts: topology.hosts.map((host) => host.length), loadStore, order, choices: [] });
}
