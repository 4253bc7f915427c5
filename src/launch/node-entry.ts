/** A launcher enters its job: it serves the job's store, which node 0 does, or connects to it; it gets its number, and waits for the nodes
 *  with which the job begins.
 *
 *  Where nodes come and go, the serving launcher hears of them within the request that says it, so that nothing is on its way when a
 *  connection ends:
 *
 *      launch/node/<k>            taken by the launcher that has the number k; free again when that one is gone
 *      launch/news/<k>/<n>        what it tells of its ranks, in order; removed when heard */
import { lookup } from 'node:dns/promises';
import { hostname, networkInterfaces } from 'node:os';
import { launcherNumber } from '../base/auth.ts';
import type { Clock } from '../base/clock.ts';
import { isShoalError, ShoalError } from '../base/errors.ts';
import type { ValueOf } from '../base/schema.ts';
import { reportFailed } from '../store/ended-ranks.ts';
import { isLoopback } from '../store/environment.ts';
import { HashStore } from '../store/hash-store.ts';
import { StoreClient, type StoreClientOptions } from '../store/store-client.ts';
import { StoreServer } from '../store/store-server.ts';
import type { StoreTable, Watch } from '../store/store-table.ts';
import type { Store } from '../store/store.ts';
import {
  awayKey,
  byeKey,
  decode,
  encode,
  failureShape,
  keyOf,
  keysOf,
  newsKey,
  nodeKey,
  nodeShape,
  ranksPart,
  rosterKey,
  rosterShape,
  type JobFailure,
} from './node-records.ts';
import type { JobPlace } from './rank-environment.ts';
import { newsShape, type WorldLedger } from './world-ledger.ts';

export interface NodeOptions extends Omit<JobPlace, 'node'>, Pick<StoreClientOptions, 'clock' | 'random' | 'network' | 'settings'> {
  /** Undefined, where nodes come and go: node 0 on the host that has the master's address, elsewhere any number. */
  readonly node: number | undefined;
  /** Ranks on this node. */
  readonly localSize: number;
  /** Port 0, for a single node: the system chooses. */
  readonly masterPort: number;
  /** Nodes that have not come by then end the job. */
  readonly joinTimeoutMs: number;
  readonly signal: AbortSignal;
}

/** A launcher that has entered. */
export interface Entry {
  readonly node: number;
  readonly store: Store;
  /** The store that node 0 serves; undefined on other nodes. */
  readonly serving: Serving | undefined;
}

interface Serving {
  readonly server: StoreServer;
  readonly laterNodes: LaterNodes;
}

/** @throws ShoalError `config` when there is no number for this node, two nodes contradict each other or the port is in use, `auth` on
 *  another
 *          secret, `timeout`. */
export async function enterJob(options: NodeOptions): Promise<Entry> {
  const { clock, node, nodesMax } = options;
  const serving = await serveIfFirst(options);
  if (serving !== undefined) {
    const store = new HashStore({ clock, table: serving.server.table });
    await store.set(nodeKey(0), recordOf(options));
    return { node: 0, store, serving };
  }
  for (let number = node ?? 1; number < (nodesMax ?? Infinity); number++) {
    const store = await dial(options, number);
    try {
      if (await takeNumber(store, options, number)) return { node: number, store, serving };
    } catch (error) {
      await store.close();
      throw error;
    }
    await store.close();
  }
  const message = `the job has ${nodesMax} nodes, and --nnodes ${rangeOf(options)} allows no more; another may join when one has left`;
  throw new ShoalError('config', message);
}

/** Ranks per node with which the job begins, by node: those of all; where nodes come and go, of the first. @throws ShoalError as
 *  `enterJob`. */
export async function firstNodes({ node, store }: Entry, options: NodeOptions): Promise<Map<number, number>> {
  const { nodes, nodesMax, joinTimeoutMs, signal } = options;
  const wait = { timeoutMs: joinTimeoutMs, signal };
  if (nodesMax === undefined) {
    await whenPresent(store, options);
    // A launcher that was stopped meanwhile answers later.
    const records = await Promise.all(keysOf('launch/node', nodes).map(async (key) => decode(nodeShape, await store.get(key, wait))));
    const odd = records.findIndex((record) => record.nodes !== nodes || record.nodesMax !== undefined);
    if (odd >= 0) throw new ShoalError('config', `--nnodes is ${nodes} on node ${node} but ${rangeOf(records[odd])} on node ${odd}`);
    return new Map(records.map((record, k) => [k, record.localSize]));
  }
  if (node === 0) {
    await whenPresent(store, options);
    const records = await recordsOf(store, nodesMax);
    await store.compareSet(
      rosterKey,
      '',
      encode(records.flatMap((record, k) => (record ? [{ node: k, localSize: record.localSize }] : []))),
    );
  }
  const roster = decode(rosterShape, await store.get(rosterKey, wait));
  return new Map(roster.map((each) => [each.node, each.localSize]));
}

/** Waits for as many nodes as the job begins with. */
async function whenPresent(store: Store, { nodes, nodesMax = nodes, joinTimeoutMs: timeoutMs, signal }: NodeOptions): Promise<void> {
  const keys = keysOf('launch/node', nodesMax);
  const enough = new AbortController();
  let missing = nodes;
  const present = (): void => void (--missing === 0 && enough.abort());
  const waits = keys.map((key) => store.wait([key], { timeoutMs, signal: AbortSignal.any([signal, enough.signal]) }).then(present));
  const [failed] = (await Promise.allSettled(waits)).flatMap((each) => (each.status === 'rejected' ? [each.reason as unknown] : []));
  if (missing <= 0) return;
  if (!isShoalError(failed) || failed.code !== 'timeout') throw failed;
  const absent = (await recordsOf(store, nodes)).flatMap((record, k) => (record ? [] : [`node ${k}`]));
  const who = nodesMax === nodes ? `of ${nodes} nodes, ${absent.join(', ')}` : `of at least ${nodes} nodes, ${missing}`;
  const message = `${who} did not join within ${timeoutMs} ms; is \`shoal run\` running there?`;
  throw new ShoalError('timeout', message, { timeoutMs, cause: failed });
}

function recordsOf(store: Store, nodes: number): Promise<(ValueOf<typeof nodeShape> | undefined)[]> {
  const read = (key: string): Promise<Uint8Array | undefined> => store.get(key, { timeoutMs: 0 }).catch(() => undefined);
  const decoded = async (key: string): Promise<ValueOf<typeof nodeShape> | undefined> => {
    const record = await read(key);
    return record && decode(nodeShape, record);
  };
  return Promise.all(keysOf('launch/node', nodes).map(decoded));
}

function recordOf({ localSize, nodes, nodesMax }: NodeOptions): Uint8Array {
  return encode({ host: hostname(), pid: process.pid, localSize, nodes, nodesMax } satisfies ValueOf<typeof nodeShape>);
}

function rangeOf({ nodes, nodesMax }: { readonly nodes: number; readonly nodesMax?: number | undefined }): string {
  return nodesMax === undefined ? String(nodes) : `${nodes}:${nodesMax}`;
}

/** Takes a number. @returns false when another launcher has it, and any number will do. */
async function takeNumber(store: Store, options: NodeOptions, number: number): Promise<boolean> {
  const { node, nodesMax, joinTimeoutMs: timeoutMs, signal } = options;
  if (nodesMax !== undefined) {
    // A job of another kind is not to be disturbed.
    const first = decode(nodeShape, await store.get(nodeKey(0), { timeoutMs, signal }));
    if (rangeOf(first) !== rangeOf(options))
      throw new ShoalError('config', `--nnodes is ${rangeOf(options)} here but ${rangeOf(first)} on node 0`);
  }
  const own = recordOf(options);
  const taken = await store.compareSet(nodeKey(number), new Uint8Array(), own);
  if (Buffer.compare(taken, own) === 0) return true;
  if (node === undefined) return false;
  const { host, pid } = decode(nodeShape, taken);
  throw new ShoalError('config', `node rank ${number} is taken by host ${host} (pid ${pid}); give each launcher its own --node-rank`);
}

/** Serves the store if this launcher is the first. @returns undefined when another one is. */
async function serveIfFirst(options: NodeOptions): Promise<Serving | undefined> {
  const { node, masterAddress } = options;
  if (node !== undefined) return node === 0 ? serve(options) : undefined;
  if (!(await isOwnAddress(masterAddress))) return undefined;
  return serve(options).catch((error: unknown) => {
    // One on this host is it.
    if (isShoalError(error) && error.code === 'config') return undefined;
    throw error;
  });
}

async function isOwnAddress(host: string): Promise<boolean> {
  const found = await lookup(host).catch(() => undefined);
  const own = Object.values(networkInterfaces()).flatMap((addresses = []) => addresses.map(({ address }) => address));
  return found !== undefined && (isLoopback(found.address) || own.includes(found.address));
}

async function serve(options: NodeOptions): Promise<Serving> {
  const { clock, random, network, settings, job, nodes, nodesMax, localSize, masterPort } = options;
  const secret = new TextEncoder().encode(options.secret);
  const connections = new Map<number, number>();
  const server: StoreServer = await StoreServer.listen({
    ...{ clock, random, network, settings, secret, world: job, port: masterPort },
    host: (nodesMax ?? nodes) === 1 ? '127.0.0.1' : 'any',
    // All ranks come at once. Nodes may have more than this one.
    maxStrangers: Math.max(64, 2 * (nodesMax ?? nodes) * localSize),
    onConnect,
    onDisconnect,
  });
  const laterNodes = new LaterNodes(server.table);
  return { server, laterNodes };

  function onConnect(peer: number): void {
    const count = (connections.get(peer) ?? 0) + 1;
    connections.set(peer, count);
    server.table.delete(awayKey(peer));
    if (count === 1 && nodesMax !== undefined && peer >= launcherNumber) laterNodes.connected(peer - launcherNumber);
  }

  /** A launcher that is gone without a word takes its ranks with it. One that was refused because its number is taken is
   *  not the one that holds the number. */
  function onDisconnect(peer: number): void {
    const left = connections.get(peer)! - 1;
    connections.set(peer, left);
    if (left > 0) return;
    server.table.set(awayKey(peer), new Uint8Array());
    const node = peer - launcherNumber;
    if (node < 0) return;
    if (nodesMax !== undefined) laterNodes.gone(node);
    else if (server.table.get(byeKey(node)) === undefined)
      failBecauseOf(node, { clock, table: server.table, host: laterNodes.hostOf(node) });
  }
}

/** The job ends because the launcher of a node was lost. */
function failBecauseOf(node: number, { clock, table, host }: { clock: Clock; table: StoreTable; host: string }): void {
  const failure: JobFailure = { node, host, exitCode: 1, text: 'its launcher was lost', final: true };
  for (let generation = 0; ; generation++) {
    // The first generation that has not failed is the one that runs.
    const first = decode(failureShape, table.compareSet(keyOf.first(generation), new Uint8Array(), encode(failure)));
    const ranks = ranksPart(new HashStore({ clock, table }), generation);
    if (first.node === node && first.final)
      void reportFailed(ranks, { rank: undefined, failed: `the launcher of node ${node} (${host}) was lost` });
    // Also a failure that the lost launcher had still to publish.
    table.set(keyOf.failed(generation), encode(first));
    if (first.final) return;
  }
}

async function dial(options: NodeOptions, node: number): Promise<StoreClient> {
  const { job, masterAddress, masterPort, joinTimeoutMs } = options;
  const server = { host: masterAddress, port: masterPort, world: job, secret: new TextEncoder().encode(options.secret) };
  return StoreClient.connect({ ...options, ...server, rank: launcherNumber + node, connectTimeoutMs: joinTimeoutMs });
}

/** Nodes that come and go while a job runs, for the launcher of node 0. */
export class LaterNodes {
  readonly #table: StoreTable;
  readonly #watches = new Map<number, Watch>();
  #world: WorldLedger | undefined;

  constructor(table: StoreTable) {
    this.#table = table;
  }

  /** The world has begun, with the ranks of these nodes, some of which may be gone again. */
  follow(world: WorldLedger, nodes: readonly number[]): void {
    this.#world = world;
    for (const node of nodes) if (this.#table.get(nodeKey(node)) === undefined) world.nodeGone(node, this.hostOf(node));
  }

  hostOf(node: number): string {
    const record = this.#table.get(nodeKey(node));
    return record === undefined ? 'an unknown host' : decode(nodeShape, record).host;
  }

  /** A launcher has connected with this number. */
  connected(node: number): void {
    this.#listen(node, 0);
  }

  /** The last connection with this number has ended. */
  gone(node: number): void {
    this.#watches.get(node)?.cancel();
    const host = this.hostOf(node);
    this.#table.delete(byeKey(node));
    if (this.#table.delete(nodeKey(node))) this.#world?.nodeGone(node, host);
  }

  #listen(node: number, index: number): void {
    const key = newsKey(node, index);
    const hear = (): void => {
      const news = decode(newsShape, this.#table.get(key)!);
      this.#table.delete(key);
      this.#listen(node, index + 1);
      this.#world?.hear(node, news);
    };
    this.#watches.set(node, this.#table.watch([key], hear));
  }
}
