/** Two workers on two fabrics of this process, connected, for tests. */
import type { Clock } from '../../base/clock.ts';
import type { ShoalError } from '../../base/errors.ts';
import { seededRandom } from '../../base/random.ts';
import { UnhurriedClock } from '../../base/testing/unhurried-clock.ts';
import { abortConnection } from '../../fabric/abortable.ts';
import type { Connection, Fabric, FabricOptions } from '../../fabric/fabric.ts';
import type { Region } from '../../memory/region.ts';
import { TensorConnection, type TensorConnectionOptions, type WorkerIdentity } from '../carriers/tensor-connection.ts';
import { WorkerCore, type StepBounds } from '../carriers/worker-core.ts';
import type { MemoryBudget } from '../protocol/pooled-memory.ts';
import { CountedMemory } from './counted-memory.ts';

export interface FabricSide {
  readonly core: WorkerCore;
  readonly fabric: Fabric;
  readonly tensors: TensorConnection;
  readonly connection: Connection;
  readonly memory: CountedMemory;
  readonly budget: MemoryBudget;
}

export interface FabricPair {
  readonly a: FabricSide;
  readonly b: FabricSide;
  crash(): void;
  close(): Promise<void>;
}

export interface FabricPairOptions extends Partial<Pick<TensorConnectionOptions, 'timeoutMs' | 'limits' | 'firstRequest' | 'atEndOfTurn'>> {
  readonly create: (options: FabricOptions) => Fabric;
  readonly region: (bytes: number) => Region;
  readonly clock?: Clock;
  readonly bytesMax?: number;
  readonly steps?: StepBounds;
  /** The incarnation of `a`; that of `b` is 2. Default 1. */
  readonly incarnation?: bigint;
}

export async function fabricPair(options: FabricPairOptions): Promise<FabricPair> {
  const { create, region, bytesMax = 2 ** 28, steps } = options;
  const clock = options.clock ?? new UnhurriedClock();
  const identities: WorkerIdentity[] = [0, 1].map((rank) => ({
    rank,
    device: `/job:worker/task:${rank}/device:CPU:0`,
    incarnation: rank === 0 ? (options.incarnation ?? 1n) : 2n,
  }));
  const fabrics = identities.map(({ rank }) =>
    create({ identity: { world: 'w', rank }, secret: Buffer.from('s'), clock: new UnhurriedClock(), random: seededRandom(rank + 1) }),
  );
  let waiting = 2;
  let greeted!: () => void;
  const bothGreeted = new Promise<void>((resolve) => {
    greeted = resolve;
  });
  const side = (rank: number, connection: Connection): FabricSide => {
    const self = identities[rank];
    const core = new WorkerCore(self, steps);
    const budget = { bytesMax, bytes: 0 };
    const fabric = fabrics[rank];
    const memory = new CountedMemory({ create: region, register: (each) => fabric.register(each), budget });
    const tensors: TensorConnection = new TensorConnection({
      timeoutMs: 120_000,
      ...options,
      clock,
      connection,
      self,
      memory,
      announcesApart: fabric.capabilities.loadStore,
      take: (stepId, key, waiter) => core.take(stepId, key, waiter),
      onHello: (peer) => {
        core.attach(peer, tensors);
        if (--waiting === 0) greeted();
      },
      onClose: (error: ShoalError | undefined) => {
        if (error !== undefined) core.detach(identities[1 - rank].device, error);
      },
    });
    return { core, fabric, tensors, connection, memory, budget };
  };
  let arrive!: (side: FabricSide) => void;
  const arrived = new Promise<FabricSide>((resolve) => {
    arrive = resolve;
  });
  const address = await fabrics[1].listen((connection) => arrive(side(1, connection)));
  const a = side(0, await fabrics[0].connect(address, { peer: { world: 'w', rank: 1 }, timeoutMs: 60_000 }));
  const b = await arrived;
  await bothGreeted;
  return {
    a,
    b,
    crash: () => abortConnection(a.connection),
    async close() {
      await Promise.all([a.core.close(), b.core.close()]);
      await Promise.all(fabrics.map((fabric) => fabric.close()));
    },
  };
}
