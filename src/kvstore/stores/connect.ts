/** Makes the store of a process from the environment: a worker with its client thread, or a server. */
import { MessageChannel, Worker } from 'node:worker_threads';
import { systemClock } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import { exhaustion } from '../../base/exhaustion.ts';
import { builtEntry } from '../../base/package-root.ts';
import { readSettings, type Environment } from '../../base/settings/settings.ts';
import { createKernels } from '../../memory/kernels/create-kernels.ts';
import { loadNative } from '../../memory/native.ts';
import { createParameterKernels } from '../../memory/parameter-kernels/create-parameter-kernels.ts';
import { createRegionAllocator } from '../../memory/regions/allocator.ts';
import { ThreadGate } from '../../messaging/thread-gate.ts';
import { DistStore } from './dist-store.ts';
import { detectPlace } from '../job/environment.ts';
import { ProcessValues } from '../protocol/process-values.ts';
import { ServerNode } from '../server/node.ts';
import { ServerStore } from '../server/store.ts';
import { ClientChannel } from '../client/channel.ts';
import type { ClientPlan, ClientTicket } from '../client/protocol.ts';
import { workerCount } from '../protocol/topology.ts';
import type { KVStore, KVStoreType } from '../values/types.ts';

/** For the client thread, from the last worker's farewell to its end. */
const endMs = 5000;

export interface ConnectOptions {
  readonly environment: Environment;
  readonly localWorkers: number;
}

/** The client thread of this process with its first worker, or, in a process that is a server, that server.
 *  @throws ShoalError `config`, `timeout`, `auth`, `mismatch`. */
export async function connect(
  type: KVStoreType,
  { environment, localWorkers }: ConnectOptions,
): Promise<{ store: KVStore; tickets: ClientTicket[] }> {
  const place = detectPlace(environment, { async: type === 'dist_async', localWorkers });
  if (place.role !== 'worker') return { store: await serve(type, environment), tickets: [] };
  const gate = new ThreadGate();
  const plan: ClientPlan = { environment: { ...environment }, async: type === 'dist_async', localWorkers, gate: gate.memory };
  const own = newTicket(0);
  const workerData = { plan, ticket: own.theirs };
  // No execArgv: loaders and inspectors of this thread are not for the client.
  const thread = new Worker(builtEntry('kvstore/client/client-entry.js'), {
    workerData,
    transferList: [own.theirs.port],
    execArgv: [],
    name: 'shoal-client',
  });
  thread.unref();
  // A process that ends stops its threads wherever they are.
  const onExit = (): void => gate.close();
  process.once('exit', onExit);
  const channel = new ClientChannel(own.ours);
  thread.on('error', (error) => {
    const failed = new ShoalError('system', `the client thread failed: ${error.message}`, { cause: error });
    channel.fail(exhaustion('this process', error, 'starting the client thread') ?? failed);
  });
  thread.on('exit', () => channel.end(new ShoalError('closed', 'the client thread has ended')));
  const tickets: ClientTicket[] = [];
  for (let local = 1; local < localWorkers; local++) {
    const { ours, theirs } = newTicket(local);
    tickets.push(ours);
    channel.post({ type: 'attach', ticket: theirs });
  }
  const ended = new Promise<void>((resolve) => thread.once('exit', () => resolve()));
  void ended.then(() => process.off('exit', onExit));
  const terminate = (): Promise<number> => {
    gate.close();
    return thread.terminate();
  };
  const onClosed = async (): Promise<void> => {
    // It ends by itself when its last worker has left; being terminated in the midst of its sockets is the last resort.
    if (localWorkers > 1) return;
    thread.ref();
    const timer = systemClock.setTimer(endMs, () => void terminate(), { keepAlive: true });
    await ended;
    timer.cancel();
  };
  try {
    return { store: await storeOf(type, { channel, local: 0, environment, onClosed }), tickets };
  } catch (error) {
    await onClosed();
    throw error;
  }
}

/** The store of another thread of a process that has one. */
export async function join(type: KVStoreType, ticket: ClientTicket, environment: Environment): Promise<KVStore> {
  return storeOf(type, { channel: new ClientChannel(ticket), local: ticket.local, environment, onClosed: () => Promise.resolve() });
}

async function storeOf(
  type: KVStoreType,
  parts: { channel: ClientChannel; local: number; environment: Environment; onClosed: () => Promise<void> },
): Promise<KVStore> {
  const { channel, local, environment, onClosed } = parts;
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
  const close = async (): Promise<void> => {
    values.close();
    await onClosed();
  };
  return new DistStore({ type, info, channel, values, kernels, parameterKernels, timeoutMs: settings.timeoutMs, onClosed: close });
}

async function serve(type: KVStoreType, environment: Environment): Promise<KVStore> {
  const node = await ServerNode.start(environment);
  const { topology, serverGroup, server } = node;
  const { serverGroups, serversPerGroup, workersPerGroup } = topology;
  return new ServerStore(node, {
    type,
    rank: serverGroup * serversPerGroup + server,
    numWorkers: workerCount(topology),
    numServers: serverGroups * serversPerGroup,
    workersPerGroup,
  });
}

function newTicket(local: number): { ours: ClientTicket; theirs: ClientTicket } {
  const { port1, port2 } = new MessageChannel();
  const events = new SharedArrayBuffer(4);
  return { ours: { port: port1, events, local }, theirs: { port: port2, events, local } };
}
