/** Shards of fairring: the parts of a tensor that cross between hosts, the hosts that own them, and the messages that carry them. */
import type { Arrival } from '../../plan/builder.ts';
import type { Span } from '../../plan/ir.ts';
import { split, type Range } from '../../plan/ranges.ts';
import type { FairringLayout } from './fairring-layout.ts';
import type { FairringPlaces } from './fairring-places.ts';

/** One of the parts in which a shard is reduced. */
export interface Part {
  /** Group whose owner of the shard is the root. */
  readonly group: number;
  /** Its place in the data of every rank: one object, which the programs of all ranks share. */
  readonly range: Span;
  /** The part that had its place in the root's staging before. */
  readonly before: Part | undefined;
  /** Arrivals at the root, by the sending owner's group. */
  readonly contributed: Arrival[];
  /** Arrivals at the owners, by their group. */
  readonly finished: Arrival[];
  /** Arrivals at the hosts that own nothing of it, by host. */
  readonly returned: Arrival[];
}

export interface Shard {
  /** Index, in every host, of the ranks that exchange it. */
  readonly rail: number;
  /** Index of the shard in its slot. */
  readonly index: number;
  readonly range: Span;
  /** Index of its place in its owners' staging; `before` is the shard that had that place before. */
  readonly place: number;
  readonly before: Shard | undefined;
  /** Owning hosts, by group. */
  readonly owners: readonly number[];
  readonly parts: readonly Part[];
  /** Arrivals at the owner of the sending host's group, by host. */
  readonly contributed: Arrival[];
}

/** Makes the shards of one slot after the other. */
export class FairringShards {
  readonly #layout: FairringLayout;
  readonly #places: FairringPlaces;
  /** The last shard in each place, by rail, index and place. */
  readonly #last = new Map<string, Shard>();

  constructor(layout: FairringLayout, places: FairringPlaces) {
    this.#layout = layout;
    this.#places = places;
  }

  /** The shards of a slot, with their places and parts. */
  of(slot: Range, { rail, place }: { readonly rail: number; readonly place: number }): Shard[] {
    return split(slot.count, this.#layout.owners).flatMap((own, index): Shard[] => {
      if (own.count === 0) return [];
      const range: Span = { buffer: 'data', offset: slot.offset + own.offset, count: own.count };
      const key = `${rail} ${index} ${place}`;
      const before = this.#last.get(key);
      const owners = this.#places.ownersOf(rail, index);
      const parts = this.#partsOf(range, { rail, index, before });
      const shard: Shard = { rail, index, range, place, before, owners, parts, contributed: [] };
      this.#last.set(key, shard);
      return [shard];
    });
  }

  #partsOf(range: Span, { rail, index, before }: Pick<Shard, 'rail' | 'index' | 'before'>): Part[] {
    const { parts, groups } = this.#layout;
    return split(range.count, parts).flatMap((part, p): Part[] => {
      if (part.count === 0) return [];
      const group = (Math.floor((p * groups.length) / parts) + rail + index) % groups.length;
      return [
        {
          group,
          range: part.count === range.count ? range : { buffer: 'data', offset: range.offset + part.offset, count: part.count },
          before: before?.parts.find((each) => each.group === group),
          contributed: [],
          finished: [],
          returned: [],
        },
      ];
    });
  }
}

/** Neighbours, and the range that they cover. */
export interface Run<T> {
  readonly items: T[];
  range: Span;
}

/** Joins neighbours, in their order, until each run covers `least` elements. */
export function runsOf<T extends { readonly range: Span }>(items: readonly T[], least: number): Run<T>[] {
  const runs: Run<T>[] = [];
  for (const item of items) {
    const { offset, count } = item.range;
    const last = runs.at(-1);
    const after = last !== undefined && last.range.offset + last.range.count === offset;
    const before = last !== undefined && offset + count === last.range.offset;
    if (last === undefined || last.range.count >= least || !(after || before)) {
      runs.push({ items: [item], range: item.range });
      continue;
    }
    last.items.push(item);
    last.range = { buffer: 'data', offset: after ? last.range.offset : offset, count: last.range.count + count };
  }
  return runs;
}

/** The parts beginning after `start`, so that no root receives from all at once. */
export function rotated(parts: readonly Part[], start: number): Part[] {
  const after = parts.filter(({ group }) => group > start);
  return [...after, ...parts.filter(({ group }) => group <= start)];
}
