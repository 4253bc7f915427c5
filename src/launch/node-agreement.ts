/** The agreement of the launchers of a job's nodes, through the job's store, which node 0 serves: the number of ranks of each
 *  node, whether a generation of ranks succeeded, and the one failure that ends it. A job on one node takes the same path, with
 *  the store in this process.
 *
 *      launch/node/<k>            sizes of node k                  all wait for all
 *      launch/<g>/failing         a process has ended badly        all wait for it while their ranks run
 *      launch/<g>/failed          the first failure wins           as well
 *      launch/<g>/ended/<rank>    how a rank has ended             who looks for the cause of a failure
 *      launch/away/<rank>         no connection of it is left      who looks for the cause of its failure
 *      launch/<g>/done/<k>        node k's ranks ended well        all done: success
 *      launch/<g>/stopped/<k>     node k has no rank running       all stopped: generation g + 1, or the end
 *      launch/bye/<k>             node k's launcher leaves on purpose
 *
 *  Where nodes come and go, the first of them begin, and the launcher of node 0 hears of the ranks of all (node-entry.ts):
 *
 *      launch/roster              the nodes with which the job begins, and their sizes          all wait for it
 *      launch/over                the job has ended well                                        as well
 *
 *  The ranks of a generation have a part of the store to themselves; there it tells them of one that has ended too early, and of the
 *  process with which the job has failed. */
import { hostname } from 'node:os';
import { setServedTimer, type Clock } from '../base/clock.ts';
import { isShoalError, messageOf } from '../base/errors.ts';
import { sum } from '../base/numbers.ts';
import { causeOf, firstNamed, reportEnded, reportFailed } from '../store/ended-ranks.ts';
import type { Store } from '../store/store.ts';
import { enterJob, firstNodes, type Entry, type NodeOptions } from './node-entry.ts';
import {
  awayKey,
  byeKey,
  decode,
  encode,
  failureShape,
  isNull,
  keyOf,
  keysOf,
  newsKey,
  overKey,
  ranksPart,
  sentenceOf,
  type JobFailure,
} from './node-records.ts';
import type { RankNews, WorldLedger, WorldListener } from './world-ledger.ts';

const foreverMs = 0x7fffffff;
/** Time in which the end of an ended process's connection arrives, behind the last message of that process. It is more than one turn
 *  of a timer of served time, so that the event loop has looked in between. */
const onItsWayMs = 5000;

/** The end of a rank of this node; `failure` is undefined when it has ended well. */
interface RankEnd {
  readonly rank: number;
  readonly ending: string;
  /** The reason for which the launcher ended it; undefined when it ended by itself. */
  readonly because: string | undefined;
  readonly failure: JobFailure | undefined;
}

export class NodeAgreement {
  readonly #options: NodeOptions;
  readonly #store: Store;
  readonly #serving: Entry['serving'];
  readonly node: number;
  /** Ranks with which the world begins, by their nodes. */
  readonly sizes: ReadonlyMap<number, number>;
  /** First rank of this node. */
  readonly firstRank: number;
  readonly worldSize: number;
  readonly masterPort: number;
  #news = 0;

  private constructor(options: NodeOptions, { node, store, serving }: Entry, sizes: ReadonlyMap<number, number>) {
    this.#options = options;
    this.#store = store;
    this.#serving = serving;
    this.node = node;
    this.sizes = sizes;
    this.firstRank = sum([...sizes].map(([each, size]) => (each < node ? size : 0)));
    this.worldSize = sum([...sizes.values()]);
    this.masterPort = serving?.server.port ?? options.masterPort;
  }

  /** The world has begun before this node has come. */
  get isLate(): boolean {
    return !this.sizes.has(this.node);
  }

  /** Tells the world, which has begun, of nodes that come and go. */
  follow(world: WorldLedger): void {
    const others = [...this.sizes.keys()].filter((node) => node !== this.node);
    if (this.#options.nodesMax !== undefined) this.#serving?.laterNodes.follow(world, others);
  }

  /** On the node that serves. */
  hostOf(node: number): string {
    return this.#serving?.laterNodes.hostOf(node) ?? hostname();
  }

  /** Serves the store or connects to it, and waits for all nodes.
   *  @throws ShoalError `config` when two nodes contradict each other or the port is in use, `timeout` naming the nodes that
   *          did not come, `auth` on another secret. */
  static async join(options: NodeOptions): Promise<NodeAgreement> {
    const entry = await enterJob(options);
    const { store, serving } = entry;
    try {
      const sizes = await firstNodes(entry, options);
      const agreement = new NodeAgreement(options, entry, sizes);
      for (let rank = 0; rank < agreement.worldSize; rank++) serving?.server.table.set(awayKey(rank), new Uint8Array());
      return agreement;
    } catch (error) {
      await store.close();
      await serving?.server.close();
      throw error;
    }
  }

  /** The nodes whose launchers are there. */
  async present(): Promise<readonly number[]> {
    const { nodes, nodesMax = nodes } = this.#options;
    const isThere = await Promise.all(keysOf('launch/node', nodesMax).map((key) => this.#store.check([key]).catch(() => false)));
    return isThere.flatMap((there, node) => (there ? [node] : []));
  }

  /** The parts of the store in which ranks and launchers are asked how they are. */
  partsOf(generation: number): { readonly store: Store; readonly launchers: Store } {
    return { store: ranksPart(this.#store, generation), launchers: this.#store.prefix('launch') };
  }

  /** The failure that ends this generation, on whatever node; never resolves when there is none before `signal`. */
  async failure(generation: number, signal: AbortSignal): Promise<JobFailure> {
    for (;;) {
      try {
        return decode(failureShape, await this.#store.get(keyOf.failed(generation), { timeoutMs: foreverMs, signal }));
      } catch (error) {
        if (signal.aborted) return new Promise(() => undefined);
        if (isShoalError(error) && error.code === 'timeout') continue;
        return this.#lostStore(error);
      }
    }
  }

  /** Something has failed here, and the others' ranks are to end in the same time as these; its cause is still to be found. */
  async noteFailing(generation: number): Promise<void> {
    // Without the store there is nobody to tell.
    await this.#store.set(keyOf.failing(generation), new Uint8Array()).catch(() => undefined);
  }

  /** Resolves as soon as something has failed on some node, or at `signal`. */
  async failing(generation: number, signal: AbortSignal): Promise<void> {
    await this.#store.wait([keyOf.failing(generation)], { timeoutMs: foreverMs, signal }).catch(() => undefined);
  }

  /** Publishes a failure, also to all ranks; returns the failure that came first. */
  async fail(generation: number, failure: JobFailure, { toRanks = true } = {}): Promise<JobFailure> {
    try {
      const first = decode(failureShape, await this.#store.compareSet(keyOf.first(generation), new Uint8Array(), encode(failure)));
      // The launchers end the servers when they hear of it: a rank must know the cause before it loses a server.
      if (toRanks) await reportFailed(ranksPart(this.#store, generation), { rank: first.rank, failed: sentenceOf(first) });
      await this.#store.set(keyOf.failed(generation), encode(first));
      return first;
    } catch {
      // Without the store there is nobody to tell; what happened here stays what happened.
      return failure;
    }
  }

  /** A rank of this node has ended: those that wait for it to join fail at once. */
  async rankEnded(generation: number, { rank, ending, because, failure }: RankEnd): Promise<void> {
    try {
      await this.#store.set(keyOf.rankEnd(generation, rank), encode(failure ?? null));
      await reportEnded(ranksPart(this.#store, generation), rank, { ending, because });
    } catch {
      // Without the store there is nobody to tell.
    }
  }

  /** Finds the failure that a rank's failure comes from: a rank that has failed because of another one has not failed first, whichever
   *  end is seen first. Among ranks that blame each other in a circle it is the one that was blamed first. A process that others have lost
   *  may take a while to end: at most `graceMs`. */
  async firstCause(generation: number, failure: JobFailure, graceMs: number): Promise<JobFailure> {
    const { clock } = this.#options;
    const store = ranksPart(this.#store, generation);
    const followed = new Map<number, JobFailure>();
    for (let last = failure; ;) {
      const { rank } = last;
      if (rank === undefined) return last;
      followed.set(rank, last);
      const peer = await withinServed(clock, onItsWayMs, (over) => this.#causeOf(store, rank, over));
      if (peer === undefined) return last;
      if (followed.has(peer)) {
        // A rank writes this key together with the name of the rank that it blames: the key is there.
        const first = await withinServed(clock, onItsWayMs, ({ signal }) => firstNamed(store, signal));
        return followed.get(first ?? peer) ?? followed.get(peer)!;
      }
      // Ranks that wait for neither of the two need not wait for the end of the blamed one.
      const because = { ...last, text: `${last.text}, because of rank ${peer}` };
      void reportFailed(store, { rank: peer, failed: sentenceOf(because) }).catch(() => undefined);
      const cause = await withinServed(clock, graceMs, ({ signal }) => this.#rankFailure(generation, peer, signal));
      if (cause === 'none') return { ...because, text: `${because.text}, which ended before it, with code 0` };
      if (cause === undefined) return { ...because, text: `${because.text}, which had not ended` };
      last = cause;
    }
  }

  /** The rank that an ended rank blames: it cannot say more once its last connection has ended. */
  #causeOf(ranks: Store, rank: number, over: AbortController): Promise<number | undefined> {
    const { signal } = over;
    const cause = causeOf(ranks, rank, signal);
    const away = this.#store.wait([awayKey(rank)], { timeoutMs: foreverMs, signal });
    away.then(() => over.abort()).catch(() => undefined);
    return cause;
  }

  /** `none` when the rank ends well; undefined when it does not end before `signal`. */
  async #rankFailure(generation: number, rank: number, signal: AbortSignal): Promise<JobFailure | 'none' | undefined> {
    try {
      const end = await this.#store.get(keyOf.rankEnd(generation, rank), { timeoutMs: foreverMs, signal });
      return isNull(end) ? 'none' : decode(failureShape, end);
    } catch {
      return undefined;
    }
  }

  /** Tells the launcher of node 0 of ranks of this node: that one keeps the world, and ends the job when too few are left. */
  listener(say: (line: string) => void): WorldListener {
    const hear = (news: RankNews): void => {
      // Without the store there is nobody to tell.
      this.#store.set(newsKey(this.node, this.#news++), encode(news)).catch(() => undefined);
      if (news.what === 'joined') say(`rank ${news.rank} joined the job`);
      if (news.failure !== undefined) say(`${news.described}; the others go on${news.again}`);
    };
    return { goOnWithout: () => true, hear };
  }

  /** The ranks of all nodes have ended well, where nodes come and go. */
  tellOver(): void {
    // The store is in this process.
    void this.#store.set(overKey, encode(true));
  }

  /** Resolves then; never, when the store is lost or at `signal`. */
  async over(signal: AbortSignal): Promise<void> {
    await this.#store.wait([overKey], { timeoutMs: foreverMs, signal }).catch(() => new Promise(() => undefined));
  }

  /** This node's ranks ended well; resolves when those of all nodes did. Where nodes come and go, node 0 knows it of all. */
  async done(generation: number, signal: AbortSignal): Promise<void> {
    if (this.#options.nodesMax === undefined) await this.#gather(`launch/${generation}/done`, { timeoutMs: foreverMs, signal });
    else await this.over(signal);
  }

  /** This node has no rank running; resolves when no node has, with the failure of the next generation if a node has refused it. */
  async stopped(generation: number, timeoutMs: number): Promise<JobFailure | undefined> {
    await this.#gather(`launch/${generation}/stopped`, { timeoutMs });
    const refused = keyOf.failed(generation + 1);
    const failure = (await this.#store.check([refused])) ? decode(failureShape, await this.#store.get(refused)) : undefined;
    // Ranks of another node may have failed in it already: then this one takes part in it, and hears of that there.
    return failure?.final === true ? failure : undefined;
  }

  /** The first of the job's launchers to leave must not look like one that failed, the one that serves leaves last. */
  async leave(timeoutMs: number): Promise<void> {
    try {
      await this.#store.set(byeKey(this.node), encode(true));
    } catch {
      // The store is gone already.
    }
    await this.#store.close();
    await this.#serving?.server.drained(timeoutMs);
    await this.#serving?.server.close();
  }

  async #gather(key: string, wait: { timeoutMs: number; signal?: AbortSignal }): Promise<void> {
    await this.#store.set(`${key}/${this.node}`, encode(true));
    await this.#store.wait(keysOf(key, this.#options.nodes), wait);
  }

  #lostStore(error: unknown): JobFailure {
    const { node } = this;
    return { node, host: hostname(), exitCode: 1, text: `the launcher of node 0 was lost: ${messageOf(error)}`, final: true };
  }
}

/** Gives what is on its way here the time to come. */
async function withinServed<T>(clock: Clock, delayMs: number, wait: (over: AbortController) => Promise<T>): Promise<T> {
  const over = new AbortController();
  const timer = setServedTimer(clock, delayMs, () => over.abort());
  try {
    return await wait(over);
  } finally {
    timer.cancel();
    over.abort();
  }
}
