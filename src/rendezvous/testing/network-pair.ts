/** Two workers on fabrics of this process, for tests: `a` has connected to `b`, and the connection can be broken. */
import type { Clock } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import { seededRandom } from '../../base/random.ts';
import { UnhurriedClock } from '../../base/testing/unhurried-clock.ts';
import { abortConnection } from '../../fabric/abortable.ts';
import type { Connection, Fabric, FabricAddress, FabricOptions } from '../../fabric/fabric.ts';
import type { Region } from '../../memory/region.ts';
import type { TensorConnectionOptions } from '../carriers/tensor-connection.ts';
import { WorkerCore } from '../carriers/worker-core.ts';
import { WorkerNetwork } from '../carriers/worker-network.ts';
import { PooledMemory } from '../protocol/pooled-memory.ts';

export interface NetworkPairOptions extends Partial<Pick<TensorConnectionOptions, 'limits'>> {
  readonly create: (options: FabricOptions) => Fabric;
  readonly region: (bytes: number) => Region;
  readonly clock?: Clock;
  readonly reconnectMs?: number;
}

interface Process {
  readonly core: WorkerCore;
  readonly network: WorkerNetwork;
  /** It is dead, and reaches nobody. */
  isDead: boolean;
}

export interface NetworkPair {
  readonly a: WorkerCore;
  readonly b: WorkerCore;
  /** The address of `b`. */
  readonly address: FabricAddress;
  readonly networks: { readonly a: WorkerNetwork; readonly b: WorkerNetwork };
  /** Breaks what connects them; both processes go on. Resolves when both have heard of it. */
  break(): Promise<unknown>;
  /** `a` connects once more. */
  connectAgain(): Promise<unknown>;
  /** Ends `a` as a crash would. */
  crash(): void;
  /** Ends `a`. @returns the process that takes its place, when it has connected. */
  restart(): Promise<WorkerCore>;
  close(): Promise<void>;
}

export async function networkPair(options: NetworkPairOptions): Promise<NetworkPair> {
  const { create, region, limits, reconnectMs = 100, clock = new UnhurriedClock() } = options;
  let ends: { readonly connection: Connection; readonly closed: Promise<void> }[] = [];
  const record = (connection: Connection): Connection => {
    const setHandlers = connection.setHandlers.bind(connection);
    const closed = new Promise<void>((resolve) => {
      connection.setHandlers = (handlers) =>
        setHandlers({
          ...handlers,
          onClose(error) {
            handlers.onClose(error);
            resolve();
          },
        });
    });
    ends.push({ connection, closed });
    return connection;
  };
  const started: Process[] = [];
  const start = (rank: number, incarnation: bigint): Process => {
    const identity = { world: 'w', rank };
    const random = seededRandom(started.length + 1);
    const fabric = create({ identity, secret: Buffer.from('s'), clock: new UnhurriedClock(), random });
    const connect = fabric.connect.bind(fabric);
    fabric.connect = async (...args) => {
      if (made.isDead) throw new ShoalError('peer-lost', 'the process is dead');
      return record(await connect(...args));
    };
    const listen = fabric.listen.bind(fabric);
    fabric.listen = (onConnection) => listen((connection) => onConnection(record(connection)));
    const core = new WorkerCore({ rank, device: `/job:worker/task:${rank}/device:CPU:0`, incarnation });
    const network = new WorkerNetwork({
      clock,
      random,
      connectMs: 60_000,
      reconnectMs,
      self: core.self,
      world: 'w',
      fabrics: [fabric],
      sent: core,
      protocol: () => ({
        timeoutMs: 120_000,
        announcesApart: fabric.capabilities.loadStore,
        ...(limits && { limits }),
        memory: new PooledMemory({ create: region, register: (each) => fabric.register(each), budget: { bytesMax: 2 ** 28, bytes: 0 } }),
      }),
      onGreeted: (worker, remote) => core.attach(worker, remote),
      onLost: (worker, cause) => core.detach(worker, cause),
    });
    const made: Process = { core, network, isDead: false };
    started.push(made);
    return made;
  };
  const b = start(1, 2n);
  const addresses: readonly FabricAddress[] = await b.network.listen();
  const [address] = addresses;
  let a = start(0, 1n);
  const meet = async (): Promise<void> => {
    await a.network.connect(1, addresses);
    while (b.network.find(a.core.self.device)?.identity?.incarnation !== a.core.self.incarnation)
      await new Promise((resolve) => setImmediate(resolve));
  };
  await meet();
  const breakAll = (): Promise<unknown> => {
    const broken = ends;
    ends = [];
    for (const { connection } of broken.slice(0, 1)) abortConnection(connection);
    return Promise.all(broken.map(({ closed }) => closed));
  };
  const crash = (): void => {
    a.isDead = true;
    void breakAll();
  };
  return {
    a: a.core,
    b: b.core,
    address,
    networks: { a: a.network, b: b.network },
    break: breakAll,
    connectAgain: () => a.network.connect(1, addresses),
    crash,
    async restart() {
      crash();
      a = start(0, a.core.self.incarnation + 100n);
      await meet();
      return a.core;
    },
    async close() {
      await Promise.all(started.map(({ core }) => core.close()));
      await Promise.all(started.map(({ network }) => network.close()));
    },
  };
}
