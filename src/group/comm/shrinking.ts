/** The agreement of a group's ranks on those that go on without the others. It goes through the world's store, which decides every question
 *  once: of two parts that have lost each other, one goes on at most. Each attempt:
 *
 *      every rank   writes `row/<rank>`: the numbers of groups that it uses, and the ranks that it leaves out. The first that has the rows
 *                   of all ranks that it has not lost writes `members`
 *      each member  opens the new group, and writes `opened/<rank>`. The first that has those of all members writes `outcome`: done.
 *                   One that has lost a member writes: failed. Then the next attempt begins, without those that were left out
 *
 *  Links, memory and rates of the world stay as they are. It must not know the cause of a loss. */
import { must } from '../../base/assert.ts';
import { ShoalError } from '../../base/errors.ts';
import { count, integer, list, object, parse, type ValueOf } from '../../base/schema.ts';
import { restrictHosts, type GroupSpec } from '../../call/group-spec.ts';
import { forgetCause } from '../../store/ended-ranks.ts';
import type { Store } from '../../store/store.ts';
import type { ShrinkRequest } from '../shared/comm-protocol.ts';
import { GroupNumbers, groupNumbersWords, noNumberLeft } from '../../call/group-numbers.ts';
import { JoinLimit } from './joining.ts';
import type { World } from './world.ts';

const rowShape = object({ numbers: list(integer(), { min: groupNumbersWords, max: groupNumbersWords }), exclude: list(count) });
/** Ranks are the world's. */
const membersShape = object({ ranks: list(count), id: count, serial: count });
type Members = ValueOf<typeof membersShape>;

const membersKey = 'members';
const outcomeKey = 'outcome';
const rowKey = (rank: number): string => `row/${rank}`;
const openedKey = (rank: number): string => `opened/${rank}`;

/** Opens the group of the ranks that go on, and closes the one that they leave. @returns its spec.
 *  @throws ShoalError `closed` when the others have gone on without this rank; `timeout` naming ranks that have not called it. */
export function shrinkGroup(world: World, store: Store, request: ShrinkRequest): Promise<GroupSpec> {
  return new Shrinking(world, store, request).run();
}

class Shrinking {
  readonly #world: World;
  readonly #worldStore: Store;
  readonly #store: Store;
  readonly #spec: GroupSpec;
  /** World ranks. */
  readonly #exclude: readonly number[];
  readonly #numbers: GroupNumbers;
  readonly #limit: JoinLimit;
  /** World ranks that may go on. */
  #ranks: readonly number[];

  constructor(world: World, store: Store, { group, exclude, numbers, timeoutMs }: ShrinkRequest) {
    const { spec } = must(world.group(group), () => 'the group has not been destroyed');
    this.#world = world;
    this.#worldStore = store;
    this.#store = store.prefix(`shrink/${spec.globalRanks[0]}-${spec.serial ?? 0}`);
    this.#spec = spec;
    this.#ranks = spec.globalRanks;
    this.#exclude = exclude.map((rank) => spec.globalRanks[rank]);
    this.#numbers = new GroupNumbers(numbers);
    this.#limit = new JoinLimit(world.env.clock, timeoutMs);
  }

  async run(): Promise<GroupSpec> {
    for (let attempt = 0; ; attempt++) {
      const store = this.#store.prefix(String(attempt));
      const members = await this.#agree(store);
      const spec = this.#specOf(members);
      if (await this.#openTogether(store, spec)) {
        await this.#end();
        return spec;
      }
      this.#ranks = members.ranks;
      this.#numbers.use(members.id, members.serial);
    }
  }

  /** The reasons for which this rank and others have failed are over, and so is the group. */
  async #end(): Promise<void> {
    for (const link of this.#world.links) link.failure = undefined;
    await forgetCause(this.#worldStore, this.#world.rank);
    await this.#world.closeGroup(this.#spec.id, 0);
  }

  async #agree(store: Store): Promise<Members> {
    await store.set(rowKey(this.#world.rank), encode({ numbers: [...this.#numbers.encode()], exclude: this.#exclude }));
    let there = this.#there();
    while (!(await this.#haveAll(store, { ranks: there, key: rowKey, until: membersKey }))) {
      if (await store.check([membersKey])) return decode(await store.get(membersKey));
      there = this.#there();
      if (this.#limit.leftMs === 1) throw await this.#tooLate(store, there);
    }
    return decode(await store.compareSet(membersKey, '', encode(await this.#propose(store, there))));
  }

  /** World ranks that this one neither has lost nor leaves out. */
  #there(): number[] {
    return this.#ranks.filter((rank) => !this.#exclude.includes(rank) && !this.#isLost(rank));
  }

  #isLost(rank: number): boolean {
    return rank !== this.#world.rank && this.#world.link(rank).closed;
  }

  async #propose(store: Store, there: readonly number[]): Promise<Members> {
    const values = await store.multiGet(there.map(rowKey));
    const rows = values.map((value) => parse('a row of a group that shrinks', rowShape, JSON.parse(Buffer.from(value).toString())));
    const excluded = rows.flatMap(({ exclude }) => exclude);
    const { id, serial } = new GroupNumbers().agree(Int32Array.from(rows.flatMap(({ numbers }) => numbers)));
    if (id === undefined) throw noNumberLeft();
    return { ranks: there.filter((rank) => !excluded.includes(rank)), id, serial };
  }

  #specOf({ ranks, id, serial }: Members): GroupSpec {
    const { name, globalRanks, topology, backend } = this.#spec;
    const { rank } = this.#world;
    if (!ranks.includes(rank)) {
      const message = `ranks ${ranks.join(', ')} went on without rank ${rank} from group '${name}': they had lost it or left it out`;
      throw new ShoalError('closed', message, { rank });
    }
    const places = ranks.map((each) => globalRanks.indexOf(each));
    return {
      id,
      serial,
      name: `${name.replace(/\/shrunk-\d+$/, '')}/shrunk-${serial}`,
      globalRanks: ranks,
      rank: ranks.indexOf(rank),
      topology: { hosts: restrictHosts(topology.hosts, places) },
      backend,
    };
  }

  /** @returns false when a member has been lost meanwhile. */
  async #openTogether(store: Store, spec: GroupSpec): Promise<boolean> {
    // An earlier call of this rank may have come so far.
    if (await store.check([outcomeKey])) return false;
    let failure = await this.#world.openGroup(spec, this.#limit.leftMs).then(
      () => undefined,
      (thrown: unknown) => ShoalError.from(thrown),
    );
    let isWhole = false;
    if (failure === undefined) {
      await store.set(openedKey(this.#world.rank), 'yes');
      isWhole = await this.#haveAll(store, { ranks: spec.globalRanks, key: openedKey, until: outcomeKey });
    }
    const outcome = Buffer.from(await store.compareSet(outcomeKey, '', isWhole ? 'done' : 'failed')).toString();
    if (outcome === 'done') return true;
    failure ??= this.#world.group(spec.id)?.failure;
    await this.#world.closeGroup(spec.id, 0);
    if (failure !== undefined && failure.code !== 'peer-lost') throw failure;
    return false;
  }

  /** Waits for a key of each of these ranks. @returns false when one of them is lost, the key `until` is there, or time is up before. */
  async #haveAll(store: Store, wanted: { ranks: readonly number[]; key: (rank: number) => string; until: string }): Promise<boolean> {
    const { ranks, key, until } = wanted;
    if (ranks.some((rank) => this.#isLost(rank))) return false;
    const { lossWatchers } = this.#world;
    const over = new AbortController();
    const watch = (rank: number): void => void (ranks.includes(rank) && over.abort());
    const limits = { timeoutMs: this.#limit.leftMs, signal: over.signal };
    lossWatchers.add(watch);
    const [all, other] = [store.wait(ranks.map(key), limits), store.wait([until], limits)];
    other.then(() => over.abort()).catch(() => undefined);
    try {
      await all;
      return true;
    } catch (thrown) {
      const { code } = ShoalError.from(thrown);
      if (code === 'aborted' || code === 'timeout') return false;
      throw thrown;
    } finally {
      lossWatchers.delete(watch);
      over.abort();
    }
  }

  async #tooLate(store: Store, there: readonly number[]): Promise<ShoalError> {
    const rows = await Promise.all(there.map((rank) => store.check([rowKey(rank)])));
    const late = there.filter((_, index) => !rows[index]);
    const message = `group '${this.#spec.name}' was not shrunk within ${this.#limit.timeoutMs} ms: rank ${late.join(', ')} did not call shrink; exclude it to go on without it`;
    return new ShoalError('timeout', message, { rank: this.#world.rank, peer: late[0], timeoutMs: this.#limit.timeoutMs });
  }
}

function encode(value: unknown): Uint8Array {
  return Buffer.from(JSON.stringify(value));
}

function decode(value: Uint8Array): Members {
  return parse('the members of a group that shrinks', membersShape, JSON.parse(Buffer.from(value).toString()));
}
