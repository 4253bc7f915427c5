/** Makes the store of a process from the environment: a worker whose client is in the comm thread, or a server. */
import { MessageChannel } from 'node:worker_threads';
import { ShoalError } from '../../base/errors.ts';
import { readSettings, type Environment } from '../../base/settings/settings.ts';
import { CommChannel } from '../../comm/caller/comm-channel.ts';
import { joinGuest } from '../../comm/caller/comm-host.ts';
import { eventMemory } from '../../comm/shared/thread-protocol.ts';
import { hostGuest } from '../../comm/caller/comm-thread.ts';
import { createKernels } from '../../memory/kernels/create-kernels.ts';
import { loadNative } from '../../memory/native.ts';
import { createParameterKernels } from '../../memory/parameter-kernels/create-parameter-kernels.ts';
import { createRegionAllocator } from '../../memory/regions/allocator.ts';
import { DistStore } from './dist-store.ts';
import { detectPlace } from '../job/environment.ts';
import { ProcessValues } from '../protocol/process-values.ts';
import { ServerNode } from '../server/node.ts';
import { ServerStore } from '../server/store.ts';
import type { ClientChannel, ClientPlan, ClientTicket } from '../client/protocol.ts';
import { workerCount } from '../protocol/topology.ts';
import type { KVStore, KVStoreType } from '../values/types.ts';

export interface ConnectOptions {
  readonly environment: Environment;
  readonly localWorkers: number;
}

/** The client of this process with its first worker, or, in a process that is a server, that server.
 *  @throws ShoalError `config`, `timeout`, `auth`, `mismatch`. */
export async function connect(
  type: KVStoreType,
  { environment, localWorkers }: ConnectOptions,
): Promise<{ store: KVStore; tickets: ClientTicket[] }> {
  const place = detectPlace(environment, { async: type === 'dist_async', localWorkers });
  if (place.role !== 'worker') return { store: await serve(type, environment), tickets: [] };
  const plan: ClientPlan = { environment: { ...environment }, async: type === 'dist_async', localWorkers };
  const guest = { entry: 'kvstore/client/client-guest.js', plan, who: 'this process' };
  // With other workers, it ends when the last of them has left.
  const channel: ClientChannel = new CommChannel((handlers) =>
    hostGuest({ ...guest, ends: localWorkers > 1 ? 'itself' : 'left' }, handlers),
  );
  const tickets: ClientTicket[] = [];
  for (let local = 1; local < localWorkers; local++) {
    const { ours, theirs } = newTicket(local);
    tickets.push(ours);
    channel.post({ type: 'attach', ticket: theirs }, [theirs.port]);
  }
  return { store: await storeOf(type, { channel, local: 0, environment }), tickets };
}

/** The store of another thread of a process that has one. */
export async function join(type: KVStoreType, ticket: ClientTicket, environment: Environment): Promise<KVStore> {
  const channel: ClientChannel = new CommChannel((handlers) => joinGuest(ticket, handlers));
  return storeOf(type, { channel, local: ticket.local, environment });
}

async function storeOf(
  type: KVStoreType,
  { channel, local, environment }: { channel: ClientChannel; local: number; environment: Environment },
): Promise<KVStore> {
  try {
    const settings = readSettings(environment);
    const native = loadNative({ enabled: settings.native });
    const values = new ProcessValues({
      allocator: createRegionAllocator({ native, ...(settings.sharedMemoryMax > 0 ? { budget: settings.sharedMemoryMax } : {}) }),
      thread: local,
      onCreate: (region, share) => channel.post({ type: 'map', region, share }),
      onDrop: (region) => channel.post({ type: 'unmap', region }),
    });
    const info = await channel.ready();
    const kernels = createKernels({ native });
    const parameterKernels = createParameterKernels({ native });
    return new DistStore({ type, info, channel, values, kernels, parameterKernels, timeoutMs: settings.timeoutMs });
  } catch (thrown) {
    const error = ShoalError.from(thrown);
    await channel.leave(error);
    throw error;
  }
}

async function serve(type: KVStoreType, environment: Environment): Promise<KVStore> {
  const node = await ServerNode.start(environment);
  const { topology, number: rank } = node;
  const { serverGroups, serversPerGroup, workersPerGroup } = topology;
  return new ServerStore(node, {
    type,
    rank,
    numWorkers: workerCount(topology),
    numServers: serverGroups * serversPerGroup,
    workersPerGroup,
  });
}

function newTicket(local: number): { ours: ClientTicket; theirs: ClientTicket } {
  const { port1, port2 } = new MessageChannel();
  const events = eventMemory();
  return { ours: { port: port1, events, local }, theirs: { port: port2, events, local } };
}
