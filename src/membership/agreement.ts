/** The agreement of a group's ranks on those that go on without the others. It goes through the world's store, which decides once who follows a
 *  group: of two parts that have lost each other, one goes on at most.
 *
 *      every rank   writes `row/<rank>`: the numbers of groups that it uses, and the ranks that it leaves out. The first that has the rows
 *                   of all ranks that it has not lost writes `members`
 *      each member  opens their group. Where one has lost another meanwhile, it goes on from that group in the same way; the others hear
 *                   of its failure, if they have opened it, and then do so, too
 *
 *  A rank that comes back late finds in the store who has gone on, and whether it was one of them. It must not know the cause of a loss, nor
 *  how a group is opened. */
import type { Clock } from '../base/clock.ts';
import { ShoalError } from '../base/errors.ts';
import { count, integer, list, object, parse, type ValueOf } from '../base/schema.ts';
import type { Store } from '../store/store.ts';
import { GroupNumbers, groupNumbersWords, noNumberLeft } from './group-numbers.ts';
import { JoinLimit } from './join-limit.ts';

const rowShape = object({ numbers: list(integer(), { min: groupNumbersWords, max: groupNumbersWords }), exclude: list(count) });
type Row = { readonly numbers: readonly number[]; readonly exclude: readonly number[] };
/** Those who go on, and the number and serial of their group. Ranks are the world's. */
const membersShape = object({ ranks: list(count), id: count, serial: count });
export type Members = ValueOf<typeof membersShape>;

type Group = { readonly ranks: readonly number[]; readonly serial: number };

/** A rank's world, as its agreements see it. */
export interface MemberWorld {
  readonly rank: number;
  readonly clock: Clock;
  /** Hear of ranks that are lost. */
  readonly lossWatchers: { add(watch: (rank: number) => void): unknown; delete(watch: (rank: number) => void): unknown };
  isLost(rank: number): boolean;
  /** @throws (rejects) ShoalError `peer-lost` when one of them is lost before the group is open; nothing is left of it then. */
  open(members: Members, timeoutMs: number): Promise<void>;
}

export interface Change {
  /** World ranks that are left out though they may be there. */
  readonly exclude: readonly number[];
  /** Numbers of groups that this rank uses, as `GroupNumbers` encodes them. */
  readonly numbers: Int32Array;
  readonly timeoutMs: number;
}

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
   *  @throws ShoalError `closed` when the others have gone on without this rank; `timeout` naming ranks that have not called it. */
  async next({ exclude, numbers, timeoutMs }: Change): Promise<Members> {
    const limit = new JoinLimit(this.#world.clock, timeoutMs);
    const used = new GroupNumbers(numbers);
    for (const { id, serial } of this.#tried) used.use(id, serial);
    for (;;) {
      const members = await this.#decided({ exclude, numbers: [...used.encode()] }, limit);
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

  /** Every call of the store but the last one is made at once. */
  async #decided(row: Row, limit: JoinLimit): Promise<Members> {
    const { ranks, serial } = this.#last;
    const store = this.#store.prefix(`members/${ranks[0]}-${serial}`);
    const over = new AbortController();
    const written = store.set(rowKey(this.#world.rank), encode(row));
    written.catch(() => undefined);
    const known = store.get(membersKey, { timeoutMs: limit.leftMs, signal: over.signal }).catch(() => new Promise<never>(() => undefined));
    try {
      for (;;) {
        const there = ranks.filter((rank) => !row.exclude.includes(rank) && !this.#isLost(rank));
        const rows = await Promise.race([known, this.#rows(store, there, limit, over.signal)]);
        await written;
        if (rows instanceof Uint8Array) return decode(rows);
        if (rows !== undefined) return decode(await store.compareSet(membersKey, '', encode(this.#proposal(there, rows))));
      }
    } finally {
      over.abort();
    }
  }

  #isLost(rank: number): boolean {
    return rank !== this.#world.rank && this.#world.isLost(rank);
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

  #proposal(there: readonly number[], values: readonly Uint8Array[]): Members {
    const rows = values.map((value) => parse('a row of a group that is changed', rowShape, JSON.parse(Buffer.from(value).toString())));
    const excluded = rows.flatMap(({ exclude }) => exclude);
    const { id, serial } = new GroupNumbers().agree(Int32Array.from(rows.flatMap(({ numbers }) => numbers)));
    if (id === undefined) throw noNumberLeft();
    return { ranks: there.filter((rank) => !excluded.includes(rank)), id, serial };
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
    const message = `group '${this.#name}' was not shrunk within ${timeoutMs} ms: rank ${late.join(', ')} did not call shrink; exclude it to go on without it`;
    return new ShoalError('timeout', message, { rank, peer: late[0], timeoutMs });
  }
}

function encode(value: unknown): Uint8Array {
  return Buffer.from(JSON.stringify(value));
}

function decode(value: Uint8Array): Members {
  return parse('the members of a group that is changed', membersShape, JSON.parse(Buffer.from(value).toString()));
}
