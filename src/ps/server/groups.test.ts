import { describe, expect, it } from 'vitest';
import { seededRandom } from '../../base/random.ts';
import { elementsOf } from '../protocol/placement.ts';
import { Bench, small, type Outcome, type Parameter } from '../testing/server-bench.ts';
import type { ClusterServer, SimulatedCluster } from '../testing/simulated-cluster.ts';
import type { KVTopology } from '../protocol/topology.ts';

const big: Parameter = { key: 'big', dtype: 'float32', shape: [3000] };
const parameters = [small, big];

function hogwild(groups: number, serversPerGroup = 2): KVTopology {
  return { workerGroups: groups, workersPerGroup: 1, serverGroups: groups, serversPerGroup, replicas: 1 };
}

/** Groups that exchange nothing by themselves, unless `syncMs` says when. */
async function benchOf(topology: KVTopology, more: Partial<Parameters<typeof Bench.of>[0]> = {}): Promise<Bench> {
  const server = { syncEvery: 1e6, syncMs: 1e6, ...more.server };
  return Bench.of({ topology, client: { sliceBytes: 4096 }, ...more, server });
}

/** Worker `k` pushes 10ᵏ to everything. */
async function pushAll(bench: Bench): Promise<void> {
  for (const worker of bench.cluster.clients.keys())
    for (const { key, shape } of parameters) bench.push(worker, key, new Float32Array(elementsOf(shape)).fill(10 ** worker));
  await bench.cluster.settle();
}

function begin(bench: Bench, call: 'save' | 'load'): Outcome {
  const outcome: Outcome = { done: false, error: undefined };
  bench.cluster.clients[0].core.state(0, call, 'f', (error) => Object.assign(outcome, { done: true, error }));
  return outcome;
}

async function run(bench: Bench, call: 'save' | 'load'): Promise<void> {
  const outcome = begin(bench, call);
  await bench.cluster.settle();
  if (outcome.error) throw outcome.error;
  expect(outcome.done).toBe(true);
}

async function expectEverywhere(bench: Bench, expected: number, version: number): Promise<void> {
  for (const worker of bench.cluster.clients.keys()) {
    for (const { key, shape } of parameters) {
      const count = elementsOf(shape);
      expect(await bench.pulled(worker, key, count), `worker ${worker}, ${key}`).toEqual(Array.from({ length: count }, () => expected));
      expect(await bench.info(worker, key), `worker ${worker}, ${key}`).toMatchObject({ version, ahead: 0, staleness: 0 });
    }
  }
}

describe('state of several server groups', () => {
  it.each([
    { from: 3, to: 3 },
    { from: 3, to: 1 },
    { from: 1, to: 3 },
    { from: 2, to: 3 },
  ])('saved by $from groups, with all updates, is loaded by $to', async ({ from, to }) => {
    const saved = await benchOf(hogwild(from));
    await saved.init(parameters, () => 1000);
    await saved.setOptimizer();
    await pushAll(saved);
    await pushAll(saved);
    await run(saved, 'save');
    expect([...saved.cluster.folders.keys()].toSorted()).toEqual(['f/0-0', 'f/0-1']);
    const sum = 1000 + 2 * [1, 11, 111][from - 1];
    await pushAll(saved);
    const { tensors } = (await saved.cluster.folders.get('f/0-0')!.load())!;
    expect([...tensors.keys()].filter((name) => !/^(parameter|state\/total)\/|^(version|steps|settled\/0)$/.test(name))).toEqual([]);

    const loaded = await benchOf(hogwild(to, 1), { folders: saved.cluster.folders });
    await loaded.init(parameters, () => 5);
    await loaded.setOptimizer();
    await pushAll(loaded);
    await loaded.exchanged();
    for (let time = 0; time < 2; time++) {
      await pushAll(loaded);
      await run(loaded, 'load');
      await expectEverywhere(loaded, sum, 2 * from);
    }
    // A later push counts once, wherever it was made.
    await pushAll(loaded);
    await run(loaded, 'save');
    const again = await benchOf(hogwild(1), { folders: loaded.cluster.folders });
    await again.init(parameters);
    await run(again, 'load');
    await expectEverywhere(again, sum + [1, 11, 111][to - 1], 2 * from + to);
    for (const bench of [saved, loaded, again]) expect(bench.cluster.faults).toEqual([]);
  });

  it('of other parameters is refused, and changes nothing in any group', async () => {
    const saved = await benchOf(hogwild(2));
    await saved.init([small]);
    await run(saved, 'save');
    const bench = await benchOf(hogwild(2), { folders: saved.cluster.folders, server: { syncMs: 500 } });
    await bench.init(parameters, () => 5);
    await bench.setOptimizer();
    await pushAll(bench);
    await expect(run(bench, 'load')).rejects.toMatchObject({ code: 'mismatch' });
    await bench.exchanged();
    await expectEverywhere(bench, 16, 2);
  });

  it('without an optimiser leaves the one that there is, which begins anew', async () => {
    const saved = await benchOf(hogwild(2));
    await saved.init(parameters, () => 7);
    await run(saved, 'save');
    const bench = await benchOf(hogwild(2), { folders: saved.cluster.folders });
    await bench.init(parameters, () => 5);
    await bench.setOptimizer();
    await pushAll(bench);
    await run(bench, 'load');
    await expectEverywhere(bench, 7, 0);
    await run(bench, 'save');
    for (const disk of bench.cluster.folders.values()) {
      const { tensors } = (await disk.load())!;
      for (const [name, { data }] of tensors)
        if (name.startsWith('state/')) expect([...new Float32Array(Uint8Array.from(data).buffer)].every((x) => x === 0)).toBe(true);
    }
  });
});

describe.each([
  { name: 'checkpoints', groups: 1, workersPerGroup: 3, replicas: 1, disks: true },
  { name: 'checkpoints', groups: 3, workersPerGroup: 1, replicas: 1, disks: true },
  { name: 'standbys', groups: 3, workersPerGroup: 1, replicas: 2, disks: false },
  { name: 'both', groups: 2, workersPerGroup: 2, replicas: 2, disks: true },
] as const)('$groups groups of $workersPerGroup workers with $name', ({ groups, workersPerGroup, replicas, disks }) => {
  it.each(Array.from({ length: 8 }, (_, seed) => seed))(
    'a server is killed at any moment of a save, of a load and after: seed %i',
    async (seed) => {
      const random = seededRandom(seed);
      const topology = { workerGroups: groups, workersPerGroup, serverGroups: groups, serversPerGroup: 2, replicas };
      const bench = await benchOf(topology, { seed, disks, server: { syncMs: 500, checkpointEveryMs: 700 } });
      const { cluster } = bench;
      await bench.init(parameters, () => 1000);
      await bench.setOptimizer();
      /** Rounds hold a push of every worker of a group. */
      const perPush = [1, 11, 111][groups * workersPerGroup - 1] ?? 1111;
      const versions = groups;
      await pushAll(bench);
      // Not all pushes are durable.
      await bench.exchanged();
      await pushAll(bench);
      const save = begin(bench, 'save');
      await killDuring(bench, random.integer(40), random.integer(2 * groups));
      expect(save).toEqual({ done: true, error: undefined });
      await pushAll(bench);
      const load = begin(bench, 'load');
      await killDuring(bench, random.integer(60), random.integer(2 * groups));
      expect(load).toEqual({ done: true, error: undefined });
      await expectEverywhere(bench, 1000 + 2 * perPush, 2 * versions);
      await pushAll(bench);
      await killDuring(bench, random.integer(40), random.integer(2 * groups));
      await expectEverywhere(bench, 1000 + 3 * perPush, 3 * versions);
      expect(cluster.faults).toEqual([]);
    },
  );
});

/** After some messages. It comes back, or its standby takes over, and all that follows happens. */
async function killDuring(bench: Bench, messages: number, index: number): Promise<void> {
  const { cluster } = bench;
  for (let k = 0; k < messages; k++) {
    await cluster.breathe();
    cluster.deliverOne();
  }
  const server = cluster.servers[index];
  cluster.kill(server);
  if (server.standby !== undefined && server.standby.core.informed) await replace(cluster, server);
  else await cluster.restart(server);
  await bench.exchanged();
}

async function replace(cluster: SimulatedCluster, server: ClusterServer): Promise<void> {
  cluster.promote(server);
  await cluster.addStandby(server);
}
