/** The agreement of a group's ranks on those that go on, without some of them or with others that wait. It goes through the world's store,
 *  which decides once who follows a group: of two parts that have lost each other, one goes on at most.
 *
 *      every rank   writes `row/<rank>`: the numbers of groups that it uses, whom it leaves out, takes in or has lost. The first of those that
 *                   are left writes `members` when it has the rows of all; where it takes long, the others do so, too, and the first word
 *                   counts
 *      who waits    follows the groups of the world, one after the other, until it is a member
 *      each member  opens their group. Where one has lost another meanwhile, it goes on from that group in the same way; the others hear
 *                   of its failure, if they have opened it, and then do so, too
 *
 *  A rank that comes back late finds in the store who has gone on, and whether it was one of them. It must not know the cause of a loss,
 *  nor how a group is opened. */
import { within, type Clock } from '../base/clock.ts';
import { ShoalError } from '../base/errors.ts';
import { anyObject, count, flag, integer, list, object, optional, parse, type ValueOf } from '../base/schema.ts';
import type { Store, StoreWait } from '../store/store.ts';
import { GroupNumbers, groupNumbersWords, noNumberLeft } from './group-numbers.ts';
import { decodeJson, encodeJson } from '../base/bytes.ts';
import { JoinLimit } from './join-limit.ts';

const numbersShape = list(integer(), { min: groupNumbersWords, max: groupNumbersWords });
const rowShape = object({ numbers: numbersShape, ranks: list(count), lost: list(count), admits: flag });
type Row = ValueOf<typeof rowShape>;
/** Those who go on, and the number and serial of their group. Ranks are the world's. `newcomers`: what all need to know of those that were
 *  taken in. */
const membersShape = object({ ranks: list(count), id: count, serial: count, newcomers: optional(anyObject) });
export type Members = ValueOf<typeof membersShape>;

/** A group, by its world ranks and its serial. */
export type Group = Pick<Members, 'serial'> & { readonly ranks: readonly number[] };

/** A rank's world, as its agreements see it. */
export interface MemberWorld {
  readonly rank: number;
  readonly clock: Clock;
  /** Hear of ranks that are lost. */
  readonly lossWatchers: { add(watch: (rank: number) => void): unknown; delete(watch: (rank: number) => void): unknown };
  isLost(rank: number): boolean;
  /** Newcomers that wait and that all these ranks reach, with the facts that all need of them; undefined: there are none. */
  newcomers(ranks: readonly number[]): Promise<Newcomers | undefined>;
  /** @throws (rejects) ShoalError `peer-lost` when one of them is lost before the group is open; nothing is left of it then. */
  open(members: Members, timeoutMs: number): Promise<void>;
}

export interface Newcomers {
  readonly ranks: readonly number[];
  /** Plain data. */
  readonly facts: object;
}

export interface Change {
  /** World ranks that are left out though they may be there. */
  readonly exclude: readonly number[];
  /** World ranks in their new order, before all others. Empty: as they are. Where ranks want different orders, one of these is that of
   *  all. */
  readonly order: readonly number[];
  /** Ranks that wait are taken in. */
  readonly admits: boolean;
  /** Numbers of groups that this rank uses, as `GroupNumbers` encodes them. */
  readonly numbers: Int32Array;
  readonly timeoutMs: number;
}

/** Time in which the first rank may write who goes on, before the others do. */
const patienceMs = 200;

const membersKey = 'members';
const rowKey = (rank: number): string => `row/${rank}`;

/** The agreement of one group, on one rank. */
export class Agreement {
  readonly #world: MemberWorld;
  readonly #store: Store;
  readonly #name: string;
  /** The last group of which this rank was a member: the one that is left, or one that could not be opened. */
  #last: Group;
  /** Groups that this rank has opened, or has tried to: their numbers may still be in use. */
  readonly #tried: Members[] = [];

  /** @param name of the group, for people. @param first the group that is left. */
  constructor(world: MemberWorld, store: Store, name: string, first: Group) {
    this.#world = world;
    this.#store = store;
    this.#name = name;
    this.#last = first;
  }

  /** Resolves when the group of those who go on is open here. One that has failed may be tried again, and goes on from there.
   *  @param known the members of the next group, where this rank has learnt of them already.
   *  @throws ShoalError `closed` when the others have gone on without this rank; `timeout` naming ranks that have not called it. */
  async next({ exclude, order, admits, numbers, timeoutMs }: Change, known?: Members): Promise<Members> {
    const limit = new JoinLimit(this.#world.clock, timeoutMs);
    const used = new GroupNumbers(numbers);
    for (const { id, serial } of this.#tried) used.use(id, serial);
    for (let decided = known; ; decided = undefined) {
      const { ranks: last } = this.#last;
      const ranks = [...new Set([...order, ...last])].filter((rank) => last.includes(rank) && !exclude.includes(rank));
      const members =
        decided ??
        (await this.#decided({ ranks, lost: last.filter((rank) => this.#world.isLost(rank)), admits, numbers: [...used.encode()] }, limit));
      if (!members.ranks.includes(this.#world.rank)) throw this.#goneWithout(members);
      this.#last = members;
      this.#tried.push(members);
      used.use(members.id, members.serial);
      try {
        await this.#world.open(members, limit.leftMs);
        return members;
      } catch (thrown) {
        if (ShoalError.from(thrown).code !== 'peer-lost' || limit.leftMs === 1) throw thrown;
      }
    }
  }

  /** Every call of the store but the last one is made at once. The first rank writes `members`; the others leave it to that one as long as
   *  it does not take too long. */
  async #decided(row: Row, limit: JoinLimit): Promise<Members> {
    const { rank, clock } = this.#world;
    const store = placeOf(this.#store, this.#last);
    const over = new AbortController();
    const written = store.set(rowKey(rank), encodeJson(row));
    written.catch(() => undefined);
    const known = store.get(membersKey, { timeoutMs: limit.leftMs, signal: over.signal }).catch(() => new Promise<never>(() => undefined));
    try {
      const isFirst = row.ranks.find((each) => !this.#world.isLost(each)) === rank;
      const theirs = isFirst ? undefined : await within(clock, Math.min(patienceMs, limit.leftMs / 2), known, () => undefined);
      if (theirs !== undefined) return membersIn(theirs);
      for (;;) {
        const there = row.ranks.filter((each) => !this.#world.isLost(each));
        const rows = await Promise.race([known, this.#rows(store, there, limit, over.signal)]);
        await written;
        if (rows instanceof Uint8Array) return membersIn(rows);
        if (rows !== undefined) return membersIn(await store.compareSet(membersKey, '', encodeJson(await this.#proposal(there, rows))));
      }
    } finally {
      over.abort();
    }
  }

  /** The rows of these ranks; undefined when one of them has been lost before all were there, or nobody needs them any more. */
  async #rows(store: Store, ranks: readonly number[], limit: JoinLimit, unneeded: AbortSignal): Promise<Uint8Array[] | undefined> {
    const { lossWatchers } = this.#world;
    const lost = new AbortController();
    const watch = (rank: number): void => void (ranks.includes(rank) && lost.abort());
    lossWatchers.add(watch);
    try {
      return await store.multiGet(ranks.map(rowKey), { timeoutMs: limit.leftMs, signal: AbortSignal.any([lost.signal, unneeded]) });
    } catch (thrown) {
      const { code } = ShoalError.from(thrown);
      if (code === 'aborted') return undefined;
      throw code === 'timeout' ? await this.#tooLate(store, ranks, limit) : thrown;
    } finally {
      lossWatchers.delete(watch);
    }
  }

  async #proposal(there: readonly number[], values: readonly Uint8Array[]): Promise<Members> {
    const rows = values.map((value) => parse('a row of a group that is changed', rowShape, decodeJson(value)));
    const { id, serial } = new GroupNumbers().agree(Int32Array.from(rows.flatMap(({ numbers }) => numbers)));
    if (id === undefined) throw noNumberLeft();
    const wanted = there.filter((rank) => rows.every(({ ranks }) => ranks.includes(rank)));
    const staying = withoutLosses(wanted, new Map(rows.map(({ lost }, index) => [there[index], lost])));
    const newcomers = rows.some(({ admits }) => admits) ? await this.#world.newcomers(staying) : undefined;
    if (newcomers === undefined) return { ranks: [...staying], id, serial };
    return { ranks: [...staying, ...newcomers.ranks], id, serial, newcomers: newcomers.facts };
  }

  #goneWithout({ ranks }: Members): ShoalError {
    const { rank } = this.#world;
    const message = `ranks ${ranks.join(', ')} went on without rank ${rank} from group '${this.#name}': they had lost it or left it out`;
    return new ShoalError('closed', message, { rank });
  }

  async #tooLate(store: Store, ranks: readonly number[], { timeoutMs }: JoinLimit): Promise<ShoalError> {
    const { rank } = this.#world;
    const rows = await Promise.all(ranks.map((each) => store.check([rowKey(each)])));
    const late = ranks.filter((_, index) => !rows[index]);
    const message = `group '${this.#name}' was not changed within ${timeoutMs} ms: rank ${late.join(', ')} did not call shrink, grow or reconfigure; exclude it to go on without it`;
    return new ShoalError('timeout', message, { rank, peer: late[0], timeoutMs });
  }
}

/** Leaves out ranks until none has lost another: again and again the one with the most losses, and of several the last. */
function withoutLosses(ranks: readonly number[], lost: ReadonlyMap<number, readonly number[]>): readonly number[] {
  const haveLost = (a: number, b: number): boolean => lost.get(a)!.includes(b) || lost.get(b)!.includes(a);
  const losses = ranks.map((rank) => ranks.filter((other) => haveLost(rank, other)).length);
  const most = Math.max(0, ...losses);
  return most === 0 ? ranks : withoutLosses(ranks.toSpliced(losses.lastIndexOf(most), 1), lost);
}

/** Waits until the ranks of a group have agreed on the next one. */
export async function nextOf(store: Store, group: Group, wait: StoreWait): Promise<Members> {
  return membersIn(await placeOf(store, group).get(membersKey, wait));
}

function placeOf(store: Store, { ranks, serial }: Group): Store {
  return store.prefix(`members/${ranks[0]}-${serial}`);
}

function membersIn(value: Uint8Array): Members {
  return parse('the members of a group that is changed', membersShape, decodeJson(value));
}
