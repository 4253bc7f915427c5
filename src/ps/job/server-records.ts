/** Records in the job's store: the processes of each server, and the topology that the workers agreed on, for which servers wait.
 *
 *      kv/topology                          groups and their sizes                     written once
 *      kv/server/<group>/<server>           { term, primary, standby }                 the view: who is in force
 *      kv/server/<group>/<server>/standby   { incarnation, url, pid, … }               who offers to stand by
 *      kv/server/<group>/<server>/doubled   empty                                    a standby has been in the view; written once
 *      kv/client/<first worker>               { url, pid, … }: a process with workers, which takes blobs
 *
 *  The view changes by compare-and-swap only, so that one of several processes succeeds and the others learn of
 *  it. With these rules an acknowledged state survives the loss of all processes but the last:
 *
 *      primary    takes the standby into the view when that has the whole state, and out of it before it answers without it
 *      standby    becomes the primary of the next term only when it is in the view
 *      others     become the primary, with what a checkpoint has, only when primary and standby of the view are lost
 *
 *  Every message between servers bears its sender's term; a receiver that knows a later term ignores it.
 *  Source: views and their acknowledgement as in viewstamped replication, Oki and Liskov, PODC 1988. */
import { ShoalError } from '../../base/errors.ts';
import { integer, literal, nullable, number, object, parse, text, type Shape, type ValueOf } from '../../base/schema.ts';
import type { Store, StoreWait } from '../../store/store.ts';
import { workerCount, type KVTopology } from '../protocol/topology.ts';

const positive = integer({ min: 1 });

const processFields = { url: text(512), pid: integer(), host: text(512), birth: number(), pulse: text(512) };

const processSchema = object(processFields);

/** Fields in the order in which they are written: see `encode`. */
const recordSchema = object({
  /** Differs between every two processes that are, one after the other, the same server. */
  incarnation: positive,
  ...processFields,
});

const viewSchema = object({
  /** The primary's term: one more than its predecessor's. */
  term: positive,
  primary: recordSchema,
  /** The standby that has everything that the primary has answered for. */
  standby: nullable(recordSchema),
});

const topologySchema = object({
  workerGroups: positive,
  workersPerGroup: positive,
  serverGroups: positive,
  serversPerGroup: positive,
  replicas: literal(1, 2),
});

/** A process, and where its router listens. */
export type ProcessRecord = ValueOf<typeof processSchema>;

/** A process that is a server, or would be. */
export type ServerRecord = ValueOf<typeof recordSchema>;

export type ServerView = ValueOf<typeof viewSchema>;

/** The server in force, or who stands by. */
export type ServerSeat = 'server' | 'standby';

export class ServerRecords {
  /** The job's store. */
  readonly store: Store;

  constructor(store: Store) {
    this.store = store;
  }

  /** @throws ShoalError `mismatch` when another worker made another kind of store. */
  async agree(topology: KVTopology): Promise<void> {
    const { workerGroups, workersPerGroup, serverGroups, serversPerGroup, replicas } = topology;
    const own = { workerGroups, workersPerGroup, serverGroups, serversPerGroup, replicas };
    const agreed = decode(topologySchema, await this.store.compareSet('kv/topology', new Uint8Array(), encode(own)));
    if (JSON.stringify(agreed) === JSON.stringify(own)) return;
    const message = `this worker wants ${describe(own)}, another one has ${describe(agreed)}; create the same store everywhere`;
    throw new ShoalError('mismatch', message);
  }

  async topology(wait: StoreWait): Promise<KVTopology> {
    return decode(topologySchema, await this.store.get('kv/topology', wait));
  }

  /** The process in a seat; waits until there is one. */
  async get(group: number, server: number, options: StoreWait & { seat?: ServerSeat }): Promise<ServerRecord> {
    const { seat = 'server', ...wait } = options;
    const bytes = await this.store.get(serverKey(group, server, seat), wait);
    return seat === 'standby' ? decode(recordSchema, bytes) : decode(viewSchema, bytes).primary;
  }

  /** The view of a server; undefined when no process has been this server yet. */
  view(group: number, server: number): Promise<ServerView | undefined> {
    return this.#find(viewSchema, serverKey(group, server));
  }

  /** The process that offers to stand by, or did once. */
  candidate(group: number, server: number): Promise<ServerRecord | undefined> {
    return this.#find(recordSchema, serverKey(group, server, 'standby'));
  }

  /** @returns whether `next` has taken the place of `expected`. */
  changeView(group: number, server: number, change: { expected: ServerView | undefined; next: ServerView }): Promise<boolean> {
    return this.#swap(serverKey(group, server), change);
  }

  /** @returns whether `next` has taken the place of `expected`. */
  changeCandidate(group: number, server: number, change: { expected: ServerRecord | undefined; next: ServerRecord }): Promise<boolean> {
    return this.#swap(serverKey(group, server, 'standby'), change);
  }

  async #find<T>(schema: Shape<T>, key: string): Promise<T | undefined> {
    return (await this.store.check([key])) ? decode(schema, await this.store.get(key)) : undefined;
  }

  async #swap<T>(key: string, { expected, next }: { expected: T | undefined; next: T }): Promise<boolean> {
    const desired = encode(next);
    const stored = await this.store.compareSet(key, expected === undefined ? new Uint8Array() : encode(expected), desired);
    return Buffer.compare(stored, desired) === 0;
  }

  /** A standby is in the view for the first time. */
  async noteDoubled(group: number, server: number): Promise<void> {
    await this.store.set(doubledKey(group, server), new Uint8Array());
  }

  /** Every server of the group has had a standby: from now on none is lost with its state before there was a second one.
   *  @throws ShoalError `timeout` that names those without. */
  async doubled(group: number, servers: number, timeoutMs: number): Promise<void> {
    const keys = Array.from({ length: servers }, (_, server) => doubledKey(group, server));
    try {
      await this.store.wait(keys, { timeoutMs });
    } catch (thrown) {
      const error = ShoalError.from(thrown);
      if (error.code !== 'timeout') throw error;
      const have = await Promise.all(keys.map((key) => this.store.check([key])));
      const without = have.flatMap((has, server) => (has ? [] : [server])).join(', ');
      const message = `server ${without} of group ${group} has had no standby within ${timeoutMs} ms; start one of each, or set SHOAL_REPLICAS=1 everywhere`;
      throw new ShoalError('timeout', message, { timeoutMs, cause: error });
    }
  }

  async publishClient(firstWorker: number, record: ProcessRecord): Promise<void> {
    await this.store.set(`kv/client/${firstWorker}`, encode(record));
  }

  async client(firstWorker: number, wait?: StoreWait): Promise<ProcessRecord> {
    return decode(processSchema, await this.store.get(`kv/client/${firstWorker}`, wait));
  }
}

function serverKey(group: number, server: number, seat: ServerSeat = 'server'): string {
  return `kv/server/${group}/${server}${seat === 'standby' ? '/standby' : ''}`;
}

function doubledKey(group: number, server: number): string {
  return `${serverKey(group, server)}/doubled`;
}

function describe(topology: KVTopology): string {
  const { workerGroups, workersPerGroup } = topology;
  return `${workerCount(topology)} workers in ${workerGroups} groups of ${workersPerGroup}`;
}

/** Equal values give equal bytes: comparing and swapping depends on it. */
function encode(value: unknown): Uint8Array {
  return new TextEncoder().encode(JSON.stringify(value));
}

function decode<T>(schema: Shape<T>, bytes: Uint8Array): T {
  try {
    return parse('the record', schema, JSON.parse(new TextDecoder().decode(bytes)));
  } catch (error) {
    throw new ShoalError('protocol', 'a record about parameter servers in the store is not valid; do all processes run the same version?', {
      cause: error,
    });
  }
}
