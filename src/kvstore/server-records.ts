/** Where the servers of a job are, in the job's store: one record per server, written by whoever is that server now; and
 *  what the workers agreed on, which the servers wait for.
 *
 *      kv/topology                          groups and their sizes                     written once
 *      kv/server/<group>/<server>           { incarnation, url, pid, origin }          the server in force
 *      kv/server/<group>/<server>/standby   the same, of its standby
 *      kv/stub/<first worker>               URL of a process that takes blobs
 *
 *  A restarted server overwrites its predecessor's record. A standby takes over by comparing and swapping: whoever loses
 *  the race learns who won. Readers look again now and then. */
import { z } from 'zod';
import { ShoalError } from '../base/errors.ts';
import type { Store, StoreWait } from '../group/store/store.ts';
import { workerCount, type KVTopology } from './topology.ts';

const recordSchema = z.object({
  /** Differs between every two processes that are, one after the other, the same server. */
  incarnation: z.number().int().positive(),
  url: z.string().max(512),
  pid: z.number().int(),
  origin: z.enum(['server', 'standby']),
});

const topologySchema = z.object({
  workerGroups: z.number().int().positive(),
  workersPerGroup: z.number().int().positive(),
  serverGroups: z.number().int().positive(),
  serversPerGroup: z.number().int().positive(),
  replicas: z.union([z.literal(1), z.literal(2)]),
});

export type ServerRecord = z.infer<typeof recordSchema>;

/** Which of the two processes that may be a server. */
export type ServerSeat = 'server' | 'standby';

export class ServerRecords {
  readonly #store: Store;

  constructor(store: Store) {
    this.#store = store;
  }

  /** @throws ShoalError `mismatch` when another worker made another kind of store. */
  async agree(topology: KVTopology): Promise<void> {
    const { workerGroups, workersPerGroup, serverGroups, serversPerGroup, replicas } = topology;
    const own = { workerGroups, workersPerGroup, serverGroups, serversPerGroup, replicas };
    const agreed = decode(topologySchema, await this.#store.compareSet('kv/topology', new Uint8Array(), encode(own)));
    if (JSON.stringify(agreed) === JSON.stringify(own)) return;
    throw new ShoalError(
      'mismatch',
      `this worker wants ${describe(own)}, another one has ${describe(agreed)}; create the same store everywhere`,
    );
  }

  async topology(wait: StoreWait): Promise<KVTopology> {
    return decode(topologySchema, await this.#store.get('kv/topology', wait));
  }

  async publish(group: number, server: number, record: ServerRecord): Promise<void> {
    await this.#store.set(serverKey(group, server), encode(record));
  }

  async publishStandby(group: number, server: number, record: ServerRecord): Promise<void> {
    await this.#store.set(serverKey(group, server, 'standby'), encode(record));
  }

  /** Waits until there is one. */
  async get(group: number, server: number, options: StoreWait & { seat?: ServerSeat }): Promise<ServerRecord> {
    const { seat = 'server', ...wait } = options;
    return decode(recordSchema, await this.#store.get(serverKey(group, server, seat), wait));
  }

  /** Undefined when no process has been this server yet. */
  async find(group: number, server: number): Promise<ServerRecord | undefined> {
    const key = serverKey(group, server);
    return (await this.#store.check([key])) ? decode(recordSchema, await this.#store.get(key)) : undefined;
  }

  /** Replaces `expected`; returns the record that is in force afterwards. */
  async takeOver(group: number, server: number, change: { expected: ServerRecord; record: ServerRecord }): Promise<ServerRecord> {
    const { expected, record } = change;
    return decode(recordSchema, await this.#store.compareSet(serverKey(group, server), encode(expected), encode(record)));
  }

  async publishStub(firstWorker: number, url: string): Promise<void> {
    await this.#store.set(`kv/stub/${firstWorker}`, encode(url));
  }

  async stubUrl(firstWorker: number, wait: StoreWait): Promise<string> {
    return decode(z.string(), await this.#store.get(`kv/stub/${firstWorker}`, wait));
  }
}

function serverKey(group: number, server: number, seat: ServerSeat = 'server'): string {
  return `kv/server/${group}/${server}${seat === 'standby' ? '/standby' : ''}`;
}

function describe(topology: KVTopology): string {
  const { workerGroups, workersPerGroup } = topology;
  return `${workerCount(topology)} workers in ${workerGroups} groups of ${workersPerGroup}`;
}

/** Equal values give equal bytes: comparing and swapping depends on it. */
function encode(value: unknown): Uint8Array {
  return new TextEncoder().encode(JSON.stringify(value));
}

function decode<T>(schema: z.ZodType<T>, bytes: Uint8Array): T {
  try {
    return schema.parse(JSON.parse(new TextDecoder().decode(bytes)));
  } catch (error) {
    throw new ShoalError('protocol', 'a record about parameter servers in the store is not valid; do all processes run the same version?', {
      cause: error,
    });
  }
}
