/** The environment of a process in a parameter-server job: the job's store, its secret, sockets, memory. */
import { networkInterfaces } from 'node:os';
import { serverNumber } from '../../base/auth.ts';
import { systemClock, type Clock } from '../../base/clock.ts';
import { readSettings, type Environment, type Settings } from '../../base/settings/settings.ts';
import { systemRandom, type Random } from '../../base/random.ts';
import { ShoalError } from '../../base/errors.ts';
import type { Fabric, FabricOptions } from '../../fabric/fabric.ts';
import { offeredAddresses } from '../../fabric/interfaces.ts';
import { fabricsNamed } from '../../fabric/providers.ts';
import { isLoopback } from '../../store/environment.ts';
import { openStoreOf, type OpenedStore } from '../../store/open-store.ts';
import { createKernels } from '../../memory/kernels/create-kernels.ts';
import type { Kernels } from '../../memory/kernels.ts';
import { loadNative } from '../../memory/native.ts';
import type { ParameterKernels } from '../../memory/parameter-kernels.ts';
import { createParameterKernels } from '../../memory/parameter-kernels/create-parameter-kernels.ts';
import type { RegionAllocator } from '../../memory/region.ts';
import { createRegionAllocator } from '../../memory/regions/allocator.ts';
import { MessagingContext } from '../../messaging/context.ts';
import type { ThreadGate } from '../../messaging/thread-gate.ts';
import type { ValueCounters } from '../protocol/value-space.ts';
import { askPulse, PulseThread } from './pulse.ts';
import { systemProcesses, type JobProcesses } from './server-process.ts';
import { ServerRecords } from './server-records.ts';

/** Memory of each connection in which large frames without a place land: as many bytes as may be on their way, and as many that are
 *  waited with until others have pushed. */
const landingBytes = 32 * 2 ** 20;
/** Limits of sockets. Messages that wait are bounded by the requests that they answer or carry, and nobody would hear again of one that is
 *  refused. */
const limits = { queueMessages: Number.MAX_SAFE_INTEGER, queueBytes: Number.MAX_SAFE_INTEGER };

export interface NodeContext {
  readonly clock: Clock;
  readonly random: Random;
  readonly settings: Settings;
  readonly records: ServerRecords;
  readonly messaging: MessagingContext;
  readonly allocator: RegionAllocator;
  readonly kernels: Kernels;
  readonly parameterKernels: ParameterKernels;
  readonly processes: JobProcesses;
  /** Counts all that this process does for the store. */
  readonly counters?: ValueCounters;
  /** The URL that a router of this process binds: reachable by all hosts of the job, and by none else. */
  readonly bindUrl: string;
  close(): Promise<void>;
}

/** @throws ShoalError `config`, `timeout`, `auth` when the job's store cannot be reached. */
export async function openNode(environment: Environment, { gate }: { readonly gate?: ThreadGate } = {}): Promise<NodeContext> {
  // It starts while the store is reached.
  const thread = new PulseThread();
  try {
    return await openNodeWith(thread, environment, gate);
  } catch (error) {
    await thread.close();
    throw error;
  }
}

async function openNodeWith(thread: PulseThread, environment: Environment, gate: ThreadGate | undefined): Promise<NodeContext> {
  const settings = readSettings(environment);
  const opened = await openStoreOf(environment, settings);
  const native = loadNative({ enabled: settings.native });
  const world = `${opened.world}/kvstore`;
  const identity = { world, rank: systemRandom.integer(serverNumber) };
  const fabric = createFabric(opened, settings, identity);
  const messaging = new MessagingContext({
    world,
    secret: opened.secret,
    limits,
    ...(gate && { gate }),
    ...(fabric && {
      fabric: {
        fabric,
        identity,
        landingBytes,
        // Servers sum gradients where they land. What comes to workers is theirs.
        landing: environment['SHOAL_ROLE'] === 'worker' ? 'copy' : 'borrow',
      },
    }),
  });
  const host = ownHost(opened, settings);
  const pulse = { world: `${world}/pulse`, secret: opened.secret, settings: { encryption: settings.encryption, hostId: settings.hostId } };
  const port = await thread.listen({ ...pulse, host: isLoopback(host) ? host : 'any' });
  return {
    clock: systemClock,
    random: systemRandom,
    settings,
    records: new ServerRecords(opened.store),
    messaging,
    allocator: createRegionAllocator({ native, ...(settings.sharedMemoryMax > 0 ? { budget: settings.sharedMemoryMax } : {}) }),
    kernels: createKernels({ native }),
    parameterKernels: createParameterKernels({ native }),
    processes: systemProcesses({
      hostId: settings.hostId,
      pulse: `tcp://${host}:${port}`,
      ask: (url) => askPulse(url, { ...pulse, clock: systemClock, random: systemRandom }),
    }),
    bindUrl: fabric === undefined ? `tcp://${host}:*` : `fabric://${fabric.name}`,
    close: async () => {
      await messaging.close();
      await fabric?.close();
      await opened.store.close();
      await thread.close();
    },
  };
}

/** The fabric under messages; undefined: ZeroMQ. @throws ShoalError `config` or `unsupported`. */
function createFabric(opened: OpenedStore, settings: Settings, identity: FabricOptions['identity']): Fabric | undefined {
  if (settings.carrier === 'zeromq') return undefined;
  const [provider] = fabricsNamed([...settings.fabrics, 'tcp']).filter(({ name }) => name !== 'shm');
  const options: FabricOptions = {
    identity,
    secret: opened.secret,
    clock: systemClock,
    random: systemRandom,
    listenHosts: isLoopback(hostOf(opened)) ? ['127.0.0.1'] : ['0.0.0.0', '::'],
    settings,
  };
  const reason = provider.unavailable(settings);
  if (reason !== undefined) throw new ShoalError('unsupported', `fabric ${provider.name} cannot be used here: ${reason}`);
  return provider.create(options);
}

function hostOf({ url }: OpenedStore): string {
  return url === undefined ? '127.0.0.1' : new URL(url).hostname;
}

/** The address at which others reach this process, as it is written in URLs. Jobs that meet on the loopback interface stay there. */
function ownHost(opened: OpenedStore, settings: Settings): string {
  const loopback = '127.0.0.1';
  if (isLoopback(hostOf(opened))) return loopback;
  const { address } = offeredAddresses(networkInterfaces(), settings.interfaces)[0] ?? { address: loopback };
  return address.includes(':') ? `[${address}]` : address;
}
