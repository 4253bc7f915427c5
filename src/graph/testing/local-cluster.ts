/** A cluster whose tasks are all in this process, for tests: on one loopback network, or on the given fabrics. */
import { systemClock } from '../../base/clock.ts';
import { seededRandom } from '../../base/random.ts';
import { LoopbackNetwork } from '../../fabric/testing/loopback.ts';
import { createParameterKernels } from '../../memory/parameter-kernels/create-parameter-kernels.ts';
import { HashStore } from '../../store/hash-store.ts';
import { GraphServer, type ClusterSpec, type GraphServerOptions } from '../cluster/graph-server.ts';
import type { Fabric } from '../../fabric/fabric.ts';
import type { KernelTable } from '../execute/kernel.ts';
import { testKernels } from './kernels.ts';

/** Tables have their real kernels. */
const { GatherV2: _gather, ScatterAdd: _scatter, ...rest } = testKernels;
export const arithmetic: KernelTable = rest;

export interface LocalCluster extends AsyncDisposable {
  /** Servers by name: `worker0`, `ps1`. */
  readonly tasks: Readonly<Record<string, GraphServer>>;
  /** Ends a task; another process takes its place. */
  restart(name: string): Promise<void>;
}

export type LocalClusterOptions = Partial<
  Pick<GraphServerOptions, 'kernels' | 'functions' | 'log' | 'recvSome' | 'reconnectMs' | 'Tensors'>
> & {
  readonly createFabric?: (rank: number) => Fabric;
};

export async function startLocalCluster(cluster: ClusterSpec, options: LocalClusterOptions = {}): Promise<LocalCluster> {
  const store = new HashStore({ clock: systemClock });
  const network = new LoopbackNetwork();
  const loopback = (rank: number): Fabric =>
    network.createFabric({
      identity: { world: 'w', rank },
      secret: new Uint8Array(16),
      clock: systemClock,
      random: seededRandom(rank + 1),
    });
  const { createFabric = loopback, ...others } = options;
  const tasks: Record<string, GraphServer> = {};
  let starts = 0;
  const start = (job: string, task: number, rank: number): Promise<GraphServer> =>
    GraphServer.start({
      cluster,
      job,
      task,
      store,
      createFabric: () => createFabric(rank),
      identity: { world: 'w', rank },
      clock: systemClock,
      random: seededRandom(200 + starts++),
      parameterKernels: createParameterKernels(),
      kernels: arithmetic,
      ...others,
    });
  const places = Object.entries(cluster)
    .flatMap(([job, count]) => Array.from({ length: count }, (_, task) => ({ job, task })))
    .map((place, rank) => ({ ...place, rank, name: `${place.job}${place.task}` }));
  for (const { job, task, rank, name } of places) tasks[name] = await start(job, task, rank);
  return {
    tasks,
    async restart(name) {
      await tasks[name].close();
      for (const { job, task, rank, name: own } of places) if (own === name) tasks[name] = await start(job, task, rank);
    },
    async [Symbol.asyncDispose]() {
      await Promise.all(Object.values(tasks).map((task) => task.close()));
    },
  };
}
