/** Worlds of several ranks in one process and one thread, for tests: inline comm sides over a loopback network, or over
 *  real TCP sockets. */
import { systemClock, type Clock } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import { silentLogger, type Logger } from '../../base/log.ts';
import { seededRandom, type Random } from '../../base/random.ts';
import { readSettings, type Settings } from '../../base/settings/settings.ts';
import { UnhurriedClock } from '../../base/testing/unhurried-clock.ts';
import { parseSelection } from '../../collectives/select.ts';
import type { Fabric, FabricOptions, SocketSource } from '../../fabric/fabric.ts';
import { LoopbackNetwork, type LoopbackFabric, type TurnOf } from '../../fabric/testing/loopback.ts';
import { TcpFabric } from '../../fabric/providers/tcp.ts';
import { createKernels } from '../../memory/kernels/create-kernels.ts';
import { loadNative } from '../../memory/native.ts';
import type { RegionAllocator } from '../../memory/region.ts';
import { createRegionAllocator } from '../../memory/regions/allocator.ts';
import { createStepMachine } from '../../memory/step-machine/create-step-machine.ts';
import { FlightRecorder } from '../../trace/flight-recorder.ts';
import type { Arbiter } from '../../scheduler/arbiter.ts';
import { nullRecorder, type TraceRecorder } from '../../trace/recorder.ts';
import { CommClient } from '../caller/comm-client.ts';
import { CommCore } from '../comm/comm-core.ts';
import { CommStore } from '../caller/comm-store.ts';
import { UnheededWorks } from '../../comm/caller/work.ts';
import type { GiveWay } from '../../comm/thread/guest.ts';
import { InlineHost } from '../../comm/caller/comm-host.ts';
import { InProcessMemory } from './in-process-memory.ts';
import { InProcessSockets } from './in-process-wires.ts';
import { schedulingOf, worldSpec } from '../../call/group-spec.ts';
import { OperationLog } from '../comm/diagnosis/operation-log.ts';
import { openHostPath } from '../caller/paths/host-path-caller.ts';
import { openNetworkPath } from '../caller/paths/network-path-caller.ts';
import type { WorldHandle } from '../caller/world-handle.ts';
import { CommGroup } from '../api/process-group.ts';
import { ScheduledCommGroup } from '../api/scheduled-group.ts';
import { HashStore } from '../../store/hash-store.ts';
import type { Store } from '../../store/store.ts';
import { Board, boardMemory } from '../../metrics/board.ts';
import { TensorMemory } from '../caller/tensor-memory.ts';

/** The part of a rank in a world whose order of events is decided elsewhere. */
export interface InProcessRole {
  readonly clock: Clock;
  /** Calls back in a later turn of the rank's event loop. */
  turn(callback: () => void): void;
}

export interface InProcessOptions {
  /** `host`: loopback with loads and stores. `network`: loopback without. `tcp`: sockets on 127.0.0.1. Default `host`. */
  readonly kind?: 'host' | 'network' | 'tcp';
  /** Calls take the host fast path where they can (kind `host`, ranks of one host), the network fast path with kind `network`.
   *  Default: all are the engine's. */
  readonly fastPath?: boolean;
  readonly settings?: Partial<Settings>;
  /** Default: one on which no limit passes while the process is not served. What measures needs the system's. */
  readonly clock?: Clock;
  /** The role of each rank. Default: `clock`, and the turns of the event loop. */
  readonly role?: (rank: number) => InProcessRole;
  /** Opens a rank's store, where the ranks meet. Default: a client of a store in this process. */
  readonly openStore?: (rank: number) => Promise<Store>;
  /** Seed of the choices of connections. Default: the number of ranks. */
  readonly seed?: number;
  readonly log?: Logger;
  /** Host identity per rank; default: all the same. Ranks of one host load and store with kind `host`. */
  readonly hostIds?: readonly string[];
  /** Wraps each rank's fabric: faults, counters. */
  readonly wrap?: (fabric: Fabric, rank: number) => Fabric;
  /** Wraps each rank's client of the store. */
  readonly wrapStore?: (store: Store, rank: number) => Store;
  /** Wraps the memory of each rank's comm side. */
  readonly wrapMemory?: (allocator: RegionAllocator, rank: number) => RegionAllocator;
  /** Timeline of each rank's calling thread. Default: nothing is recorded. */
  readonly mainTrace?: readonly TraceRecorder[];
  readonly joinTimeoutMs?: number;
  /** The same as in GroupSpec, for the group of all ranks. */
  readonly callsBefore?: number;
  /** Asks all ranks for a turn. Default: nobody asks. */
  readonly unheeded?: UnheededWorks;
  /** Smallest parts of scheduled groups. Default: 1. */
  readonly partitionBytesMin?: number;
  /** Whether others wait for their turn of the event loop. Default: nobody does. */
  readonly giveWay?: GiveWay;
  /** The arbiter of what each rank's process sends besides. Default: nothing. */
  readonly arbiter?: (rank: number) => Arbiter;
  /** Timeline of each rank's comm side. Default: none. */
  readonly trace?: (rank: number) => TraceRecorder;
}

export interface InProcessWorld extends AsyncDisposable {
  readonly groups: readonly CommGroup[];
  readonly flights: readonly FlightRecorder[];
  /** Sockets of the network fast path, where calls take it. */
  readonly sockets: InProcessSockets | undefined;
  /** Runs the body on every rank at the same time. */
  each<T>(body: (group: CommGroup) => Promise<T> | T): Promise<T[]>;
}

/** One for all worlds: some of what they wait for at most outlives them. */
const unhurried = new UnhurriedClock();

/** Starts `n` ranks and joins them. */
export async function startRanks(n: number, options: InProcessOptions = {}): Promise<InProcessWorld> {
  const site = new InProcessSite(n, options);
  const groups = await Promise.all(joinSite(site));
  return {
    groups,
    flights: site.flights,
    sockets: site.sockets,
    each: (body) => Promise.all(groups.map((group) => body(group))),
    async [Symbol.asyncDispose]() {
      await Promise.all(groups.map((group) => group.destroy({ timeoutMs: 100 })));
    },
  };
}

/** The ranks of a world, each with its own outcome. */
export function joinRanks(n: number, options: InProcessOptions): Promise<CommGroup>[] {
  return joinSite(new InProcessSite(n, options));
}

function joinSite(site: InProcessSite): Promise<CommGroup>[] {
  return Array.from({ length: site.size }, (_, rank) => site.start(rank));
}

/** The parts that the ranks of a world share: networks, memory, a store. */
export class InProcessSite {
  readonly size: number;
  readonly flights: FlightRecorder[] = [];
  /** Sockets of the network fast path, where calls take it. */
  readonly sockets: InProcessSockets | undefined;
  readonly memory = new InProcessMemory();
  readonly #options: InProcessOptions;
  readonly #settings: Settings;
  readonly #clock: Clock;
  readonly #turn: TurnOf | undefined;
  readonly #network: LoopbackNetwork;
  readonly #table: HashStore['table'];
  readonly #fabrics: LoopbackFabric[][];
  readonly #stores: HashStore[] = [];
  readonly #crashes: Random;

  constructor(n: number, options: InProcessOptions) {
    const { role, clock = unhurried, kind, fastPath, seed = n } = options;
    this.size = n;
    this.#options = options;
    this.#clock = clock;
    this.#settings = { ...readSettings({}), ...options.settings };
    this.#turn = role && ((rank, callback) => role(rank).turn(callback));
    this.#network = new LoopbackNetwork(this.#turn);
    this.#table = new HashStore({ clock }).table;
    this.#fabrics = Array.from({ length: n }, () => []);
    this.#crashes = seededRandom(seed);
    this.sockets = fastPath && kind === 'network' ? new InProcessSockets(seededRandom(seed), this.#turn) : undefined;
  }

  /** Joins this rank; one beyond the first `size`, to the world that they have begun. */
  async start(rank: number): Promise<CommGroup> {
    const options = this.#options;
    const settings = this.#settings;
    const { clock, turn } = options.role?.(rank) ?? { clock: this.#clock, turn: undefined };
    const native = loadNative({ enabled: settings.native });
    // One thread: SharedArrayBuffers serve all ranks.
    const allocator = options.fastPath || options.role ? this.memory.allocator(rank) : createRegionAllocator();
    // It spins: in between, no other clock moves.
    const machine = createStepMachine({ native, clock: systemClock });
    const flight = new FlightRecorder({ rank, clock, size: 64, thread: 'main', libraryVersion: 'test' });
    this.flights[rank] = flight;
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
      ...(this.sockets && { wires: this.sockets.native }),
      ...(options.giveWay && { giveWay: options.giveWay }),
      ...(options.arbiter && { arbiter: options.arbiter(rank) }),
      meet: async () => {
        const client = (await options.openStore?.(rank)) ?? (this.#stores[rank] = new HashStore({ clock, table: this.#table }));
        const store = options.wrapStore?.(client, rank) ?? client;
        return {
          name: 'test',
          store,
          servedBy: undefined,
          isLaunched: true,
          fabrics: this.#createFabrics(rank, { clock, regions: allocator }),
        };
      },
    };
    const plan = {
      rank,
      size: this.size,
      joins: rank >= this.size,
      url: 'hash://',
      environment: {},
      joinTimeoutMs: options.joinTimeoutMs ?? 10_000,
      settings,
      callsBefore: options.callsBefore,
      board: boardMemory({ counts: false }),
    };
    const client = new CommClient((handlers) => new InlineHost((emit) => new CommCore(plan, environment, emit), handlers, { clock, turn }));
    const info = await client.ready();
    const memory = new TensorMemory({
      allocator,
      cacheBytesMax: 2 ** 24,
      onCreate: (region, key) => client.post({ type: 'map', key, share: region.share }),
      onDrop: (region) => client.post({ type: 'unmap', regionId: region.id }),
    });
    const planning = { machine, tuning: undefined, settings, selection: parseSelection(settings.algorithms) };
    // Nobody can come while this thread waits.
    const patience = { ...settings, syncSpinMicroseconds: 0 };
    const world: WorldHandle = {
      settings: patience,
      client,
      allocator,
      memory,
      native: this.sockets?.native,
      planning,
      info,
      board: new Board(plan.board, clock),
      leaveSignal: { hasCome: false, close: () => undefined },
      trace: options.mainTrace?.[rank] ?? nullRecorder,
      store: new CommStore(client),
      unheeded: options.unheeded ?? new UnheededWorks(),
      scheduling: schedulingOf(settings),
      // Small tensors have many parts.
      partitionBytesMin: options.partitionBytesMin ?? 1,
      openFastPath: (spec, planner) =>
        options.fastPath ? (openHostPath(world, spec) ?? openNetworkPath(world, spec, planner)) : undefined,
      scheduledGroup: (group, spec, how) => new ScheduledCommGroup({ world, group: group as CommGroup, spec, ...how }),
      close: async (timeoutMs) => {
        await Promise.resolve(client.start({ type: 'close', timeoutMs }, 'closing')).catch(() => undefined);
        await client.leave(new ShoalError('closed', 'destroyed'));
        memory.close();
      },
    };
    const spec = info.spec ?? worldSpec(plan, info.topology);
    client.groupNumbers.use(spec.id, spec.serial);
    return new CommGroup(world, spec);
  }

  /** Ends the rank as if its process were killed. */
  crash(rank: number): void {
    for (const fabric of (this.#fabrics[rank] ?? []).splice(0)) fabric.crash((queued) => this.#crashes.integer(queued));
    // What still runs of it decides nothing for the others.
    void this.#stores[rank]?.close();
    this.sockets?.crash(rank);
    this.memory.forget(rank);
  }

  /** Breaks one of the rank's connections, in the order in which they were made. @returns whose it was as well; undefined: there is none. */
  cut(rank: number, index: number): number | undefined {
    const connections = (this.#fabrics[rank] ?? []).flatMap((fabric) => fabric.connections);
    if (connections.length === 0) return undefined;
    const connection = connections[index % connections.length];
    connection.abort();
    return connection.peer.rank;
  }

  /** Names what is left of the ranks: nothing, once all have ended. */
  get left(): string[] {
    const connections = this.#fabrics.flat().reduce((sum, fabric) => sum + fabric.connections.length, 0);
    return [
      ...(connections > 0 ? [`${connections} connections`] : []),
      ...(this.#network.size > 0 ? [`${this.#network.size} listeners`] : []),
      ...(this.sockets && this.sockets.open > 0 ? [`${this.sockets.open} sockets`] : []),
      ...(this.memory.size > 0 ? [`${this.memory.size} regions`] : []),
    ];
  }

  #createFabrics(rank: number, parts: Pick<FabricOptions, 'clock' | 'regions'>): Fabric[] {
    const options = this.#options;
    const fabricOptions = { identity: { world: 'test', rank }, secret: Uint8Array.of(1, 2, 3), random: seededRandom(rank + 1), ...parts };
    const wrap = options.wrap ?? ((fabric) => fabric);
    const tcp = (): Fabric => wrap(new TcpFabric(fabricOptions), rank);
    const loopback = (): LoopbackFabric => {
      const fabric = this.#network.createFabric(fabricOptions);
      (this.#fabrics[rank] ??= []).push(fabric);
      return fabric;
    };
    if (options.kind === 'tcp') return [tcp()];
    if (options.kind === 'network') return [wrap(asNetwork(loopback(), this.sockets?.source(fabricOptions.identity)), rank)];
    const severalHosts = new Set(options.hostIds).size > 1;
    // Real sockets have their own time.
    const between = (): Fabric => (this.#turn ? wrap(asNetwork(loopback()), rank) : tcp());
    return severalHosts ? [wrap(loopback(), rank), between()] : [wrap(loopback(), rank)];
  }
}

/** The same fabric, seen as a network: memory of others cannot be mapped. */
function asNetwork(fabric: Fabric, sockets?: SocketSource & { close(): void }): Fabric {
  return {
    name: 'network',
    capabilities: { ...fabric.capabilities, loadStore: false },
    ...(sockets && { sockets }),
    register: (region) => fabric.register(region),
    listen: async (onConnection) => ({ ...(await fabric.listen(onConnection)), provider: 'network' }),
    connect: (address, connectOptions) => fabric.connect(address, connectOptions),
    close: () => {
      sockets?.close();
      return fabric.close();
    },
  };
}
