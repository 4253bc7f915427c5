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
 *  The ranks of a generation have a part of the store to themselves; there it tells them of one that has ended too early, and of the
 *  process with which the job has failed. */
import { hostname } from 'node:os';
import { launcherNumber } from '../base/auth.ts';
import { setServedTimer, type Clock } from '../base/clock.ts';
import { isShoalError, messageOf, ShoalError } from '../base/errors.ts';
import { anyText, count, flag, list, object, optional, type Shape, type ValueOf } from '../base/schema.ts';
import { sum } from '../base/numbers.ts';
import { causeOf, firstNamed, reportEnded, reportFailed } from '../store/ended-ranks.ts';
import { HashStore } from '../store/hash-store.ts';
import { generationPrefix } from '../store/open-store.ts';
import { PrefixStore } from '../store/store.ts';
import { StoreClient, type StoreClientOptions } from '../store/store-client.ts';
import { StoreServer } from '../store/store-server.ts';
import type { Store } from '../store/store.ts';
import type { JobPlace } from './rank-environment.ts';

export interface NodeOptions extends JobPlace, Pick<StoreClientOptions, 'clock' | 'random' | 'network' | 'settings'> {
  /** Ranks on this node. */
  readonly localSize: number;
  /** Port 0, for a single node: the system chooses. */
  readonly masterPort: number;
  /** Nodes that have not come by then end the job. */
  readonly joinTimeoutMs: number;
  readonly signal: AbortSignal;
}

/** The failure that ended a generation, as plain data. */
export interface JobFailure {
  readonly node: number;
  readonly host: string;
  /** Undefined when no rank is to blame. */
  readonly rank?: number;
  readonly exitCode: number;
  readonly text: string;
  /** The error that the rank wrote to stderr last, as far as its launcher has read it. */
  readonly error?: string;
  /** The place of that error in the script, with the source line and the script's stack frames. */
  readonly details?: readonly string[];
  /** No restart helps: a launcher is gone, or the user ended the job. */
  readonly final: boolean;
}

/** `rank 2 exited with code 3: TypeError: x is not a function`. */
export function sentenceOf({ rank, text, error }: JobFailure): string {
  return `${rank === undefined ? '' : `rank ${rank} `}${text}${error === undefined ? '' : `: ${error}`}`;
}

const failureShape: Shape<JobFailure> = object({
  node: count,
  host: anyText,
  rank: optional(count),
  exitCode: count,
  text: anyText,
  error: optional(anyText),
  details: optional(list(anyText)),
  final: flag,
});
const nodeShape = object({ host: anyText, pid: count, localSize: count, nodes: count });

/** Keys of a generation. */
const keyOf = {
  failing: (generation: number) => `launch/${generation}/failing`,
  /** The failure that came first, which is about to be published. */
  first: (generation: number) => `launch/${generation}/first`,
  failed: (generation: number) => `launch/${generation}/failed`,
  /** The rank's failure; null: it has ended well. */
  rankEnd: (generation: number, rank: number) => `launch/${generation}/ended/${rank}`,
} as const;

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
  readonly #server: StoreServer | undefined;
  /** First rank of this node. */
  readonly firstRank: number;
  readonly worldSize: number;
  readonly masterPort: number;

  private constructor(options: NodeOptions, parts: { store: Store; server: StoreServer | undefined; sizes: readonly number[] }) {
    this.#options = options;
    this.#store = parts.store;
    this.#server = parts.server;
    this.firstRank = sum(parts.sizes.slice(0, options.node));
    this.worldSize = sum(parts.sizes);
    this.masterPort = parts.server?.port ?? options.masterPort;
  }

  /** Serves the store or connects to it, and waits for all nodes.
   *  @throws ShoalError `config` when two nodes contradict each other or the port is in use, `timeout` naming the nodes that
   *          did not come, `auth` on another secret. */
  static async join(options: NodeOptions): Promise<NodeAgreement> {
    const server = options.node === 0 ? await serve(options) : undefined;
    try {
      const store = server === undefined ? await dial(options) : new HashStore({ clock: options.clock, table: server.table });
      const sizes = await exchangeSizes(store, options);
      for (let rank = 0; rank < sum(sizes); rank++) server?.table.set(awayKey(rank), new Uint8Array());
      return new NodeAgreement(options, { store, server, sizes });
    } catch (error) {
      await server?.close();
      throw error;
    }
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
   *  end is seen first. Among ranks that blame each other in a circle it is the one that was blamed first. A process that others have lost may
   *  take a while to end: at most `graceMs`. */
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

  /** This node's ranks ended well; resolves when those of all nodes did. */
  async done(generation: number, signal: AbortSignal): Promise<void> {
    await this.#gather(`launch/${generation}/done`, { timeoutMs: foreverMs, signal });
  }

  /** This node has no rank running; resolves when no node has, with the failure of the next generation if a node has refused it. */
  async stopped(generation: number, timeoutMs: number): Promise<JobFailure | undefined> {
    await this.#gather(`launch/${generation}/stopped`, { timeoutMs });
    const refused = keyOf.failed(generation + 1);
    return (await this.#store.check([refused])) ? decode(failureShape, await this.#store.get(refused)) : undefined;
  }

  /** The first of the job's launchers to leave must not look like one that failed, the one that serves leaves last. */
  async leave(timeoutMs: number): Promise<void> {
    try {
      await this.#store.set(`launch/bye/${this.#options.node}`, encode(true));
    } catch {
      // The store is gone already.
    }
    await this.#store.close();
    await this.#server?.drained(timeoutMs);
    await this.#server?.close();
  }

  async #gather(key: string, wait: { timeoutMs: number; signal?: AbortSignal }): Promise<void> {
    await this.#store.set(`${key}/${this.#options.node}`, encode(true));
    await this.#store.wait(keysOf(key, this.#options.nodes), wait);
  }

  #lostStore(error: unknown): JobFailure {
    const { node } = this.#options;
    return { node, host: hostname(), exitCode: 1, text: `the launcher of node 0 was lost: ${messageOf(error)}`, final: true };
  }
}

async function serve(options: NodeOptions): Promise<StoreServer> {
  const { clock, random, network, settings, job, nodes, localSize, masterPort } = options;
  const secret = new TextEncoder().encode(options.secret);
  const host = nodes === 1 ? '127.0.0.1' : 'any';
  const connections = new Map<number, number>();
  const server: StoreServer = await StoreServer.listen({
    ...{ clock, random, network, settings, secret, world: job, host, port: masterPort },
    // All ranks come at once. Nodes may have more than this one.
    maxStrangers: Math.max(64, 2 * nodes * localSize),
    onConnect,
    onDisconnect,
  });
  return server;

  function onConnect(peer: number): void {
    connections.set(peer, (connections.get(peer) ?? 0) + 1);
    server.table.delete(awayKey(peer));
  }

  /** A launcher that is gone without a word takes its ranks with it. One that was refused because its number is taken is
   *  not the one that holds the number. */
  function onDisconnect(peer: number): void {
    const node = peer - launcherNumber;
    const left = connections.get(peer)! - 1;
    connections.set(peer, left);
    if (left > 0) return;
    server.table.set(awayKey(peer), new Uint8Array());
    if (node < 0 || server.table.get(`launch/bye/${node}`) !== undefined) return;
    const record = server.table.get(`launch/node/${node}`);
    const lost = record === undefined ? 'an unknown host' : decode(nodeShape, record).host;
    const failure: JobFailure = { node, host: lost, exitCode: 1, text: 'its launcher was lost', final: true };
    for (let generation = 0; ; generation++) {
      // The first generation that has not failed is the one that runs.
      const first = decode(failureShape, server.table.compareSet(keyOf.first(generation), new Uint8Array(), encode(failure)));
      const ranks = ranksPart(new HashStore({ clock, table: server.table }), generation);
      if (first.node === node && first.final)
        void reportFailed(ranks, { rank: undefined, failed: `the launcher of node ${node} (${lost}) was lost` });
      // Also a failure that the lost launcher had still to publish.
      server.table.set(keyOf.failed(generation), encode(first));
      if (first.final) return;
    }
  }
}

async function dial(options: NodeOptions): Promise<StoreClient> {
  const { job, node, masterAddress, masterPort, joinTimeoutMs } = options;
  const server = { host: masterAddress, port: masterPort, world: job, secret: new TextEncoder().encode(options.secret) };
  return StoreClient.connect({ ...options, ...server, rank: launcherNumber + node, connectTimeoutMs: joinTimeoutMs });
}

/** Ranks per node, in order of nodes. */
async function exchangeSizes(store: Store, options: NodeOptions): Promise<number[]> {
  const { node, nodes, localSize, joinTimeoutMs, signal } = options;
  const own = encode({ host: hostname(), pid: process.pid, localSize, nodes } satisfies ValueOf<typeof nodeShape>);
  const taken = await store.compareSet(`launch/node/${node}`, new Uint8Array(), own);
  if (Buffer.compare(taken, own) !== 0) {
    const { host, pid } = decode(nodeShape, taken);
    throw new ShoalError('config', `node rank ${node} is taken by host ${host} (pid ${pid}); give each launcher its own --node-rank`);
  }
  const keys = keysOf('launch/node', nodes);
  try {
    await store.wait(keys, { timeoutMs: joinTimeoutMs, signal });
  } catch (error) {
    if (!isShoalError(error) || error.code !== 'timeout') throw error;
    const present = await Promise.all(keys.map((key) => store.check([key])));
    const missing = keys.flatMap((_, k) => (present[k] ? [] : [k]));
    throw new ShoalError(
      'timeout',
      `of ${nodes} nodes, ${missing.map((k) => `node ${k}`).join(', ')} did not join within ${joinTimeoutMs} ms; is \`shoal run\` running there?`,
      {
        timeoutMs: joinTimeoutMs,
        cause: error,
      },
    );
  }
  const records = await Promise.all(keys.map(async (key) => decode(nodeShape, await store.get(key))));
  const odd = records.findIndex((record) => record.nodes !== nodes);
  if (odd >= 0) throw new ShoalError('config', `--nnodes is ${nodes} on node ${node} but ${records[odd].nodes} on node ${odd}`);
  return records.map((record) => record.localSize);
}

/** Until the rank connects, and from when its last connection ends. */
function awayKey(rank: number): string {
  return `launch/away/${rank}`;
}

/** The part of the store that belongs to the ranks of a generation. */
function ranksPart(store: Store, generation: number): Store {
  return new PrefixStore(store, generationPrefix(generation));
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

function keysOf(prefix: string, nodes: number): string[] {
  return Array.from({ length: nodes }, (_, k) => `${prefix}/${k}`);
}

function encode(value: unknown): Uint8Array {
  return new TextEncoder().encode(JSON.stringify(value));
}

function isNull(bytes: Uint8Array): boolean {
  return new TextDecoder().decode(bytes) === 'null';
}

/** @throws ShoalError `protocol` on what no launcher of this version writes. */
function decode<T>(shape: Shape<T>, bytes: Uint8Array): T {
  const record: unknown = JSON.parse(new TextDecoder().decode(bytes));
  if (shape.problem(record) === undefined) return record as T;
  throw new ShoalError(
    'protocol',
    'a launcher of this job has left a record that is not understood here; run the same Shoal on every node',
  );
}
