/** Places of fairring's hosts in their groups, the shards they own, and the numbers of a rank's signals. All of it follows from
 *  the layout alone, so that a rank finds its peers' places without building their programs.
 *
 *      signals of a rank   │ returned │ passed on │ end of the host's ranks │ sent │ contributed │ finished │
 *      raised by            others of its group ─────┘   channel by channel     └───┴── owners: others of the group, other groups */
import type { FairringLayout } from './fairring-layout.ts';

/** A shard, by its rail and its index in the slot. */
interface ShardName {
  readonly rail: number;
  readonly index: number;
}

export class FairringPlaces {
  /** Group of every host. */
  readonly groupOf: readonly number[];
  readonly #layout: FairringLayout;
  readonly #ranksPerHost: number;
  /** Index of every host in its group. */
  readonly #indexOf: readonly number[];
  // Found when they are first asked for: a rank asks for few.
  readonly #owners: (readonly number[])[] = [];
  readonly #owned: (readonly number[])[] = [];
  readonly #others: (readonly number[])[] = [];

  constructor(layout: FairringLayout, ranksPerHost: number) {
    this.#layout = layout;
    this.#ranksPerHost = ranksPerHost;
    this.groupOf = layout.groups.flatMap((group, g) => group.map(() => g));
    this.#indexOf = layout.groups.flatMap((group) => [...group.keys()]);
  }

  groupWith(host: number): readonly number[] {
    return this.#layout.groups[this.groupOf[host]];
  }

  /** The other hosts of the group, beginning with the next one. */
  othersOf(host: number): readonly number[] {
    const group = this.groupWith(host);
    return (this.#others[host] ??= group.slice(1).map((_, k) => group[(this.#indexOf[host] + 1 + k) % group.length]));
  }

  /** Number of hosts by which `to` comes after `from` in their group. */
  distance(from: number, to: number): number {
    const { length } = this.groupWith(from);
    return (this.#indexOf[to] - this.#indexOf[from] + length) % length;
  }

  /** Hosts that own the shard, by group. With fewer owners than hosts, owners of different rails are different hosts. */
  ownersOf(rail: number, index: number): readonly number[] {
    const [D, E] = [this.#ranksPerHost, this.#layout.owners];
    return (this.#owners[rail * E + index] ??= this.#layout.groups.map((group) => {
      const B = group.length;
      return group[(Math.floor((index * B) / E) + Math.floor((rail * B) / (D * Math.min(E, B)))) % B];
    }));
  }

  /** Indices of the shards of a rail that the host owns. */
  ownedBy(host: number, rail: number): readonly number[] {
    const group = this.groupOf[host];
    return (this.#owned[host * this.#ranksPerHost + rail] ??= Array.from({ length: this.#layout.owners }, (_, index) => index).filter(
      (index) => this.ownersOf(rail, index)[group] === host,
    ));
  }

  // ── signals of the rank at host `to` ────────────────────────────────────────────────────────────────────────────

  /** Raised when an owner of the group returns results. */
  returnedSignal(to: number, from: number): number {
    return this.distance(to, from) - 1;
  }

  /** Raised when an owner of the group passes on results that roots elsewhere have returned. */
  passedSignal(to: number, from: number): number {
    return this.#mates(to) + this.distance(to, from) - 1;
  }

  /** Raised when a rank of the host has written its last on the `place`th of the channels on which it may write. */
  endSignal(host: number, { to, from }: { readonly to: number; readonly from: number }, place: number): number {
    const D = this.#ranksPerHost;
    return this.#backSignals(host) + place * (D - 1) + ((from - to + D) % D) - 1;
  }

  /** Raised when a host of the group sends to the owner. */
  sentSignal(to: number, from: number): number {
    return this.#firstSent(to) + this.distance(to, from) - 1;
  }

  /** Raised when the owner in another group sends its group's sum to the root. */
  contributedSignal(to: number, shard: ShardName, fromGroup: number): number {
    return this.#firstSent(to) + this.#mates(to) + this.#fromGroup(to, shard, fromGroup);
  }

  /** Raised when the root in another group returns the whole sum to the owner. */
  finishedSignal(to: number, shard: ShardName, fromGroup: number): number {
    const contributed = this.ownedBy(to, shard.rail).length * (this.#layout.groups.length - 1);
    return this.#firstSent(to) + this.#mates(to) + contributed + this.#fromGroup(to, shard, fromGroup);
  }

  /** Number of other hosts in the group. */
  #mates(host: number): number {
    return this.groupWith(host).length - 1;
  }

  #backSignals(host: number): number {
    return this.#mates(host) * (this.#layout.groups.length === 1 ? 1 : 2);
  }

  #firstSent(host: number): number {
    const writing = this.#layout.groups.length === 1 ? 2 : 3;
    return this.#backSignals(host) + writing * (this.#ranksPerHost - 1);
  }

  /** Number of a signal from another group's owner: counted owned shard by owned shard, group by group. */
  #fromGroup(to: number, { rail, index }: ShardName, fromGroup: number): number {
    const groups = this.#layout.groups.length;
    const distance = (fromGroup - this.groupOf[to] + groups) % groups;
    return this.ownedBy(to, rail).indexOf(index) * (groups - 1) + distance - 1;
  }
}
