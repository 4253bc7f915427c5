/** Servers and their standbys in one process: who is heard when several have been the same server. */
import { describe, expect, it } from 'vitest';
import { ShoalError } from '../base/errors.ts';
import { seededRandom } from '../base/random.ts';
import type { TransferEntry } from './client/client-options.ts';
import type { SnapshotStore } from '../checkpoint/snapshot.ts';
import { SimulatedCluster, SimulatedDisk } from './testing/simulated-cluster.ts';
import { serverAddress, type KVTopology } from './protocol/topology.ts';

const topology: KVTopology = { workerGroups: 1, workersPerGroup: 2, serverGroups: 1, serversPerGroup: 1, replicas: 2 };
const apart: KVTopology = { ...topology, workerGroups: 2, workersPerGroup: 1 };
const elements = 4;

/** Two workers with one parameter; a push adds one. */
async function begin(options: { topology?: KVTopology; mappable?: boolean; folder?: SnapshotStore } = {}): Promise<SimulatedCluster> {
  const { folder, ...others } = options;
  const server = folder === undefined ? {} : { storeAt: () => folder };
  const cluster = await SimulatedCluster.start({ topology, random: seededRandom(1), server, ...others });
  await cluster.settle();
  for (const worker of [0, 1]) {
    const { core, values } = cluster.clientOf(worker);
    const entry = { key: 'w', dtype: 'float32', shape: [elements], value: values.allocate(4 * elements).ref } as const;
    core.init(worker, [entry], (error) => expect(error).toBe(undefined));
  }
  await cluster.settle();
  await cluster.run<void>((done) => cluster.clients[0].core.setOptimizer(0, { name: 'sgd', learningRate: 1 }, done));
  return cluster;
}

/** @returns what came of each worker's push. */
async function push(cluster: SimulatedCluster, workers: readonly number[]): Promise<(ShoalError | 'waits' | undefined)[]> {
  const results = workers.map((): ShoalError | 'waits' | undefined => 'waits');
  for (const [k, worker] of workers.entries()) {
    const { core, values } = cluster.clientOf(worker);
    const gradient = values.allocate(4 * elements);
    new Float32Array(gradient.view.buffer).fill(1);
    const entries: TransferEntry[] = [{ key: 'w', push: gradient.ref }];
    core.transfer(worker, { entries, priority: 0 }, (error) => {
      results[k] = error;
    });
  }
  await cluster.settle();
  return results;
}

const well = [undefined, undefined];

async function pulled(cluster: SimulatedCluster, worker: number): Promise<number[]> {
  const { core, values } = cluster.clientOf(worker);
  const out = values.allocate(4 * elements);
  await cluster.run<void>((done) => core.transfer(worker, { entries: [{ key: 'w', out: out.ref }], priority: 0 }, done));
  return [...new Float32Array(out.view.buffer)];
}

/** The first server is killed, its standby goes on. */
async function fallBack(cluster: SimulatedCluster): Promise<void> {
  cluster.kill(cluster.servers[0]);
  cluster.promote(cluster.servers[0]);
  await cluster.settle();
}

const all = (value: number): number[] => Array.from({ length: elements }, () => value);

describe('standbys', () => {
  it('start afresh with a second state', async () => {
    const cluster = await begin();
    expect(await push(cluster, [0, 1])).toEqual(well);
    cluster.reconnectStandby(cluster.servers[0]);
    expect(await push(cluster, [0, 1])).toEqual(well);
    await fallBack(cluster);
    expect(await push(cluster, [0, 1])).toEqual(well);
    expect(await pulled(cluster, 1)).toEqual(all(6));
    expect(cluster.faults).toEqual([]);
  });

  it.each([{ first: 'the new one' }, { first: 'the former' }])(
    'hear no server that has been replaced; $first comes first',
    async ({ first }) => {
      const cluster = await begin({ mappable: false });
      const former = await cluster.replaceFrozen(cluster.servers[0]);
      if (first === 'the former') former.resume();
      expect(await push(cluster, [0, 1])).toEqual(well);
      if (first === 'the new one') former.resume();
      expect(await push(cluster, [0, 1])).toEqual(well);
      former.end();
      await fallBack(cluster);
      expect(await push(cluster, [0, 1])).toEqual(well);
      expect(await pulled(cluster, 0)).toEqual(all(6));
      expect(cluster.faults).toEqual([]);
    },
  );

  it('know whom their primary has given up', async () => {
    const cluster = await begin({ topology: apart });
    cluster.servers[0].core.peerLost(cluster.clients[1].address, new ShoalError('peer-lost', 'has been silent for 9 s'));
    const [own, lost] = await push(cluster, [0, 1]);
    expect(own).toBe(undefined);
    expect(lost).toMatchObject({ code: 'peer-lost', message: 'worker 1 counts as lost: it has been silent for 9 s' });
    expect(await pulled(cluster, 0)).toEqual(all(1));
    await fallBack(cluster);
    expect(await pulled(cluster, 0)).toEqual(all(1));
    expect(cluster.faults).toEqual([]);
  });

  it.each([{ came: 'before' }, { came: 'after' }])('know which rounds were given up; $came they were', async ({ came }) => {
    const cluster = await begin({ mappable: false });
    const [server] = cluster.servers;
    const [, lost] = cluster.clients;
    expect(await push(cluster, [0])).toEqual(['waits']);
    server.core.peerLost(lost.address, new ShoalError('peer-lost', 'has been silent for 9 s'));
    await cluster.settle();
    if (came === 'after') cluster.reconnectStandby(server);
    await cluster.settle();
    await fallBack(cluster);
    const reason = came === 'before' ? 'cannot be completed: worker 1: has been silent for 9 s' : 'was given up without worker 1';
    expect(await push(cluster, [1])).toMatchObject([{ message: `round 1 of 'w' ${reason}` }]);
    expect(await push(cluster, [0, 1])).toEqual(well);
    expect(await pulled(cluster, 1)).toEqual(all(2));
    expect(cluster.faults).toEqual([]);
  });
});

describe('a primary that reads files', () => {
  /** It has no standby, and goes on when the promise is kept. */
  async function reading(): Promise<{ cluster: SimulatedCluster; goOn: () => Promise<void> }> {
    const disk = new SimulatedDisk();
    disk.immediate = true;
    let goOn: (() => void) | undefined;
    const folder: SnapshotStore = {
      save: (snapshot) => disk.save(snapshot),
      saves: () => disk.saves(),
      load: async (save) => {
        if (goOn === undefined) await new Promise<void>((resolve) => void (goOn = resolve));
        return disk.load(save);
      },
    };
    const cluster = await begin({ folder, mappable: false });
    const { core } = cluster.clients[0];
    await cluster.run<void>((done) => core.state(0, 'save', 'folder', done));
    cluster.killStandby(cluster.servers[0]);
    let loaded: ShoalError | 'waits' | undefined = 'waits';
    core.state(0, 'load', 'folder', (error) => (loaded = error));
    await cluster.settle();
    expect(loaded).toBe('waits');
    return {
      cluster,
      goOn: async () => {
        goOn?.();
        await cluster.settle();
        expect(loaded).toBe(undefined);
      },
    };
  }

  it('tells a standby that comes meanwhile what it has not heard itself', async () => {
    const { cluster, goOn } = await reading();
    await cluster.addStandby(cluster.servers[0]);
    expect(await push(cluster, [0, 1])).toEqual(['waits', 'waits']);
    await goOn();
    await fallBack(cluster);
    expect(await push(cluster, [0, 1])).toEqual(well);
    expect(await pulled(cluster, 0)).toEqual(all(2));
    expect(cluster.faults).toEqual([]);
  });

  it('does not wait for a standby that came and went meanwhile', async () => {
    const { cluster, goOn } = await reading();
    await cluster.addStandby(cluster.servers[0]);
    cluster.killStandby(cluster.servers[0]);
    await goOn();
    expect(await push(cluster, [0, 1])).toEqual(well);
    expect(await pulled(cluster, 0)).toEqual(all(2));
  });
});

it('a server group hears no server of another group that has been replaced', async () => {
  const cluster = await begin({ topology: { ...apart, serverGroups: 2 }, mappable: false });
  await push(cluster, [1]);
  const former = await cluster.replaceFrozen(cluster.servers[1]);
  await push(cluster, [1]);
  former.resume();
  // It sends once more what it had contributed before it was replaced.
  former.core.peerUp(serverAddress(0, 0));
  await cluster.settle();
  former.end();
  expect(await pulled(cluster, 0)).toEqual(all(2));
  expect(cluster.faults).toEqual([]);
});
