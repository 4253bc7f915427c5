/** Makes the store of a process from the environment: one without servers, a worker whose client is in the comm thread, or a server. */
import { MessageChannel } from 'node:worker_threads';
import { systemClock } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import { createLogger } from '../../base/log.ts';
import { readSettings, type Environment } from '../../base/settings/settings.ts';
import { CommChannel } from '../../comm/caller/comm-channel.ts';
import { joinGuest } from '../../comm/caller/comm-host.ts';
import { eventMemory } from '../../comm/shared/thread-protocol.ts';
import { hostGuest } from '../../comm/caller/comm-thread.ts';
import { initProcessGroup } from '../../group/init.ts';
import { createKernels } from '../../memory/kernels/create-kernels.ts';
import { loadNative } from '../../memory/native.ts';
import { createParameterKernels } from '../../memory/parameter-kernels/create-parameter-kernels.ts';
import { createRegionAllocator } from '../../memory/regions/allocator.ts';
import type { Backend, ServerStore } from '../calls/operation.ts';
import { CollectiveBackend } from '../collective/collective-backend.ts';
import { DistBackend } from './dist-backend.ts';
import { LocalBackend, type LocalBackendOptions } from '../collective/local-backend.ts';
import { detectPlace } from '../../ps/job/environment.ts';
import { ProcessValues } from '../../ps/protocol/process-values.ts';
import { ServerNode } from '../../ps/server/server-node.ts';
import { workerCount } from '../../ps/protocol/topology.ts';
import type { ClientChannel, ClientPlan, ClientTicket } from '../../ps/client/commands.ts';
import type { KVStoreType } from '../calls/types.ts';

export function openLocal(environment: Environment): Backend {
  return new LocalBackend(surroundings(environment, 'store'));
}

/** Joins the world of the environment; closing the store leaves it. @throws as `initProcessGroup`. */
export async function openCollective(environment: Environment): Promise<Backend> {
  const group = await initProcessGroup({ environment });
  try {
    const around = surroundings(environment, `store of worker ${group.rank}`);
    return await CollectiveBackend.open({ ...around, group, onClosed: () => group.destroy() });
  } catch (error) {
    await group.destroy();
    throw error;
  }
}

/** The client of this process with its first worker, or, in a process that is a server, that server.
 *  @throws ShoalError `config`, `timeout`, `auth`, `mismatch`. */
export async function connect(
  type: KVStoreType,
  environment: Environment,
  localWorkers: number,
): Promise<{ end: Backend | ServerStore; tickets: ClientTicket[] }> {
  const place = detectPlace(environment, { async: type === 'dist_async', localWorkers });
  if (place.role !== 'worker') return { end: serverStore(await ServerNode.start(environment), type), tickets: [] };
  const plan: ClientPlan = { environment: { ...environment }, async: type === 'dist_async', localWorkers };
  const guest = { entry: 'ps/client/client-node.js', plan, who: 'this process' };
  // With other workers, it ends when the last of them has left.
  const channel: ClientChannel = new CommChannel((handlers) =>
    hostGuest({ ...guest, ends: localWorkers > 1 ? 'itself' : 'left' }, handlers),
  );
  const tickets: ClientTicket[] = [];
  for (let local = 1; local < localWorkers; local++) {
    const { port1, port2 } = new MessageChannel();
    const events = eventMemory();
    tickets.push({ port: port1, events, local });
    channel.post({ type: 'attach', ticket: { port: port2, events, local } }, [port2]);
  }
  return { end: await openDist(type, channel, 0, environment), tickets };
}

/** The end of a store in a process that is a server. Launchers of Shoal start servers without a script; this is for others, which start the
 *  same script everywhere. */
function serverStore(node: ServerNode, type: KVStoreType): ServerStore {
  const { topology, number: rank } = node;
  const { serverGroups, serversPerGroup, workersPerGroup } = topology;
  const numbers = { numWorkers: workerCount(topology), numServers: serverGroups * serversPerGroup, workerGroup: 0, workersPerGroup };
  return {
    place: { type, role: 'server', rank, ...numbers, timeoutMs: 0 },
    served: async () => void (await node.ended),
    close: () => node.stop(),
  };
}

/** The store of another thread of a process that has one. */
export async function join(type: KVStoreType, ticket: ClientTicket, environment: Environment): Promise<Backend> {
  const channel: ClientChannel = new CommChannel((handlers) => joinGuest(ticket, handlers));
  return openDist(type, channel, ticket.local, environment);
}

async function openDist(type: KVStoreType, channel: ClientChannel, local: number, environment: Environment): Promise<Backend> {
  try {
    const { allocator, ...around } = surroundings(environment, 'store');
    const values = new ProcessValues({
      allocator,
      thread: local,
      onCreate: (region, share) => channel.post({ type: 'map', region, share }),
      onDrop: (region) => channel.post({ type: 'unmap', region }),
    });
    return new DistBackend({ ...around, type, info: await channel.ready(), channel, values });
  } catch (thrown) {
    const error = ShoalError.from(thrown);
    await channel.leave(error);
    throw error;
  }
}

/** This thread's memory, kernels and limits, by the settings. @param speaker for the log. */
function surroundings(environment: Environment, speaker: string): Required<LocalBackendOptions> {
  const { native: enabled, sharedMemoryMax, timeoutMs, logLevel: level } = readSettings(environment);
  const native = loadNative({ enabled });
  return {
    kernels: createKernels({ native }),
    parameterKernels: createParameterKernels({ native }),
    allocator: createRegionAllocator({ native, ...(sharedMemoryMax > 0 ? { budget: sharedMemoryMax } : {}) }),
    clock: systemClock,
    timeoutMs,
    log: createLogger({ level, clock: systemClock, speaker }),
  };
}
