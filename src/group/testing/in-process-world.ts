/** Worlds of several ranks in one process and one thread, for tests: inline comm sides over a loopback network, or over
 *  real TCP sockets. */
import { systemClock, type Clock } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import { silentLogger, type Logger } from '../../base/log.ts';
import { seededRandom } from '../../base/random.ts';
import { readSettings, type Settings } from '../../base/settings/settings.ts';
import { UnhurriedClock } from '../../base/testing/unhurried-clock.ts';
import { parseSelection, selectAlgorithm } from '../../collectives/select.ts';
import type { Fabric, FabricOptions, SocketSource } from '../../fabric/fabric.ts';
import { LoopbackNetwork } from '../../fabric/providers/loopback.ts';
import { TcpFabric } from '../../fabric/providers/tcp.ts';
import { createKernels } from '../../memory/kernels/create-kernels.ts';
import { loadNative } from '../../memory/native.ts';
import type { RegionAllocator } from '../../memory/region.ts';
import { createRegionAllocator } from '../../memory/regions/allocator.ts';
import { createStepMachine } from '../../memory/step-machine/create-step-machine.ts';
import { FlightRecorder } from '../../trace/flight-recorder.ts';
import { nullRecorder, type TraceRecorder } from '../../trace/recorder.ts';
import { CommClient } from '../thread/comm-client.ts';
import { CommCore } from '../thread/comm-core.ts';
import { CommStore } from '../thread/comm-store.ts';
import type { GiveWay } from '../../comm/guest.ts';
import { InlineHost } from '../../comm/comm-host.ts';
import { PeerRegions } from '../thread/peer-regions.ts';
import { InProcessMemory } from './in-process-memory.ts';
import { InProcessSockets } from './in-process-wires.ts';
import { schedulingOf, worldSpec } from '../call/group-spec.ts';
import { OperationLog } from '../diagnosis/operation-log.ts';
import { engineOnly } from '../dispatch/fast-path.ts';
import { openHostPath } from '../api/open-host-path.ts';
import { openNetworkPath } from '../api/open-network-path.ts';
import { CommGroup, type WorldHandle } from '../api/process-group.ts';
import { HashStore } from '../../store/hash-store.ts';
import { CheckedStore } from '../../store/job-store.ts';
import type { Store } from '../../store/store.ts';
import { TensorMemory } from '../dispatch/tensor-memory.ts';

export interface InProcessOptions {
  /** `host`: loopback with loads and stores. `network`: loopback without. `tcp`: sockets on 127.0.0.1. Default `host`. */
  readonly kind?: 'host' | 'network' | 'tcp';
  /** Calls take the host fast path where they can (kind `host`, ranks of one host), the network fast path with kind `network`.
   *  Default: all are the engine's. */
  readonly fastPath?: boolean;
  readonly settings?: Partial<Settings>;
  /** Default: one on which no limit passes while the process is not served. What measures needs the system's. */
  readonly clock?: Clock;
  readonly log?: Logger;
  /** Host identity per rank; default: all the same. Ranks of one host load and store with kind `host`. */
  readonly hostIds?: readonly string[];
  /** Wraps each rank's fabric: faults, counters. */
  readonly wrap?: (fabric: Fabric, rank: number) => Fabric;
  /** Wraps each rank's client of the store. */
  readonly wrapStore?: (store: Store, rank: number) => Store;
  /** Wraps the memory of each rank's comm side. */
  readonly wrapMemory?: (allocator: RegionAllocator, rank: number) => RegionAllocator;
  /** Of each rank's main thread. Default: nothing is recorded. */
  readonly mainTrace?: readonly TraceRecorder[];
  readonly joinTimeoutMs?: number;
  /** As in GroupSpec, of the group of all ranks. */
  readonly callsBefore?: number;
  /** Whether others wait for their turn of the event loop. Default: nobody does. */
  readonly giveWay?: GiveWay;
  /** Of each rank's comm side. Default: none. */
  readonly trace?: (rank: number) => TraceRecorder;
}

export interface InProcessWorld extends AsyncDisposable {
  readonly groups: readonly CommGroup[];
  readonly flights: readonly FlightRecorder[];
  /** Of the network fast path, where calls take it. */
  readonly sockets: InProcessSockets | undefined;
  /** Runs the body on every rank at the same time. */
  each<T>(body: (group: CommGroup) => Promise<T> | T): Promise<T[]>;
}

/** One for all worlds: some of what they wait for at most outlives them. */
const unhurried = new UnhurriedClock();

/** Starts `n` ranks and joins them. */
export async function startRanks(n: number, options: InProcessOptions = {}): Promise<InProcessWorld> {
  const flights: FlightRecorder[] = [];
  const sockets = options.fastPath && options.kind === 'network' ? new InProcessSockets(seededRandom(n)) : undefined;
  const groups = await Promise.all(joinRanks(n, options, flights, sockets));
  return {
    groups,
    flights,
    sockets,
    each: (body) => Promise.all(groups.map((group) => body(group))),
    async [Symbol.asyncDispose]() {
      await Promise.all(groups.map((group) => group.destroy({ timeoutMs: 100 })));
    },
  };
}

/** The ranks of a world, each with its own outcome. */
export function joinRanks(
  n: number,
  options: InProcessOptions,
  flights: FlightRecorder[] = [],
  sockets?: InProcessSockets,
): Promise<CommGroup>[] {
  const network = new LoopbackNetwork();
  const clock = options.clock ?? unhurried;
  const { table } = new HashStore({ clock });
  const memory = new InProcessMemory();
  const settings: Settings = { ...readSettings({}), ...options.settings };
  return Array.from({ length: n }, (_, rank) => startRank({ rank, n, network, sockets, clock, table, memory, settings, options, flights }));
}

interface RankStart {
  readonly rank: number;
  readonly n: number;
  readonly network: LoopbackNetwork;
  readonly sockets: InProcessSockets | undefined;
  readonly clock: Clock;
  readonly table: HashStore['table'];
  readonly memory: InProcessMemory;
  readonly settings: Settings;
  readonly options: InProcessOptions;
  readonly flights: FlightRecorder[];
}

async function startRank({
  rank,
  n,
  network,
  sockets,
  clock,
  table,
  memory: shared,
  settings,
  options,
  flights,
}: RankStart): Promise<CommGroup> {
  const native = loadNative({ enabled: settings.native });
  // One thread: SharedArrayBuffers serve all ranks.
  const allocator = options.fastPath ? shared.allocator(rank) : createRegionAllocator();
  // It spins: in between, no other clock moves.
  const machine = createStepMachine({ native, clock: systemClock });
  const flight = new FlightRecorder({ rank, clock, size: 64, thread: 'main', libraryVersion: 'test' });
  flights[rank] = flight;
  const environment = {
    clock,
    log: options.log ?? silentLogger,
    recorder: new OperationLog(flight, options.trace?.(rank) ?? nullRecorder),
    allocator: options.wrapMemory?.(allocator, rank) ?? allocator,
    kernels: createKernels({ native }),
    machine,
    hostId: options.hostIds?.[rank] ?? 'this host',
    hostName: 'localhost',
    pid: process.pid,
    version: 'test',
    cpus: 1,
    ...(sockets && { wires: sockets.native }),
    ...(options.giveWay && { giveWay: options.giveWay }),
    meet: async () => {
      const fabricOptions = {
        identity: { world: 'test', rank },
        secret: Uint8Array.of(1, 2, 3),
        clock,
        random: seededRandom(rank + 1),
        regions: allocator,
      };
      const client = new HashStore({ clock, table });
      const store = options.wrapStore?.(client, rank) ?? client;
      return { name: 'test', store, servedBy: undefined, fabrics: createFabrics({ rank, network, sockets }, fabricOptions, options) };
    },
  };
  const plan = {
    rank,
    size: n,
    url: 'hash://',
    environment: {},
    joinTimeoutMs: options.joinTimeoutMs ?? 10_000,
    settings,
    callsBefore: options.callsBefore,
  };
  const client = new CommClient((handlers) => new InlineHost((emit) => new CommCore(plan, environment, emit), handlers));
  const info = await client.ready();
  const memory = new TensorMemory({
    allocator,
    cacheBytesMax: 2 ** 24,
    onCreate: (region, key) => client.post({ type: 'map', key, share: region.share }),
    onDrop: (region) => client.post({ type: 'unmap', regionId: region.id }),
  });
  client.usePeerRegions(new PeerRegions(allocator));
  const planning = { machine, tuning: undefined, model: info.model, settings, selection: parseSelection(settings.algorithms) };
  // Nobody can come while this thread waits.
  const patience = { ...settings, syncSpinMicroseconds: 0 };
  const host = { plan: { ...plan, settings: patience }, client, allocator, trace: nullRecorder, memory, planning };
  const opening = { ...host, settings: patience, native: sockets?.native };
  const world: WorldHandle = {
    client,
    memory,
    info,
    timeoutMs: settings.timeoutMs,
    trace: options.mainTrace?.[rank] ?? nullRecorder,
    store: new CheckedStore(new CommStore(client)),
    scheduling: schedulingOf(settings),
    openPaths: (spec) => (options.fastPath && (openHostPath(host, spec) ?? openNetworkPath(opening, spec))) || engineOnly,
    algorithmOf: (spec, collective, bytes) =>
      selectAlgorithm({ collective, bytes, topology: spec.topology, loadStore: spec.topology.hosts.length === 1, order: settings.order }),
    close: async (timeoutMs) => {
      await Promise.resolve(client.start({ type: 'close', timeoutMs }, 'closing')).catch(() => undefined);
      await client.leave(new ShoalError('closed', 'destroyed'));
      memory.close();
    },
  };
  return new CommGroup(world, worldSpec(plan, info.topology));
}

function createFabrics(
  { rank, network, sockets }: Pick<RankStart, 'rank' | 'network' | 'sockets'>,
  fabricOptions: FabricOptions,
  options: InProcessOptions,
): Fabric[] {
  const wrap = options.wrap ?? ((fabric) => fabric);
  const tcp = (): Fabric => wrap(new TcpFabric(fabricOptions), rank);
  if (options.kind === 'tcp') return [tcp()];
  const loopback = network.createFabric(fabricOptions);
  if (options.kind === 'network') return [wrap(withoutLoadStore(loopback, sockets?.source(fabricOptions.identity)), rank)];
  const severalHosts = new Set(options.hostIds).size > 1;
  return severalHosts ? [wrap(loopback, rank), tcp()] : [wrap(loopback, rank)];
}

/** The same fabric, seen as a network: memory of others cannot be mapped. */
function withoutLoadStore(fabric: Fabric, sockets?: SocketSource & { close(): void }): Fabric {
  return {
    name: fabric.name,
    capabilities: { ...fabric.capabilities, loadStore: false },
    ...(sockets && { sockets }),
    register: (region) => fabric.register(region),
    listen: (onConnection) => fabric.listen(onConnection),
    connect: (address, connectOptions) => fabric.connect(address, connectOptions),
    close: () => {
      sockets?.close();
      return fabric.close();
    },
  };
}
