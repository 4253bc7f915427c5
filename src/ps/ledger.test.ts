/** The ledger: servers are killed, restarted, replaced by their standbys, more than a thousand times, and cut off, while
 *  workers push whole numbers. In the end every sum, version and optimiser state must be exactly what was pushed: no
 *  update lost, none applied twice; and on the way every pulled value must be the sum of some number of whole rounds.
 *  LEDGER_SEEDS=n runs n seeds of each trial. */
import { describe, expect, it } from 'vitest';
import type { ShoalError } from '../base/errors.ts';
import { seededRandom, type Random } from '../base/random.ts';
import type { TransferEntry } from './client/client-options.ts';
import { SimulatedCluster, type ClusterServer } from './testing/simulated-cluster.ts';
import type { KVTopology } from './protocol/topology.ts';
import type { ValueBlock } from './protocol/value-space.ts';

const adding = { name: 'sgd', learningRate: 1 } as const;
const rounds = 14;
/** Some packed, one cut into slices, one of nothing. */
const sizes = [3, 1, 16, 70_000, 0, 5, 2000];

interface Trial {
  readonly topology: KVTopology;
  readonly disks: boolean;
  readonly mappable: boolean;
  readonly localWorkers: number;
  readonly replayBytes?: number;
  /** Does harm. @returns whether a process was killed, and not only a connection cut. */
  readonly fault: (cluster: SimulatedCluster, random: Random) => Promise<boolean>;
}

/** The number that a worker adds to every element of a parameter in a round. */
function gift(worker: number, round: number): number {
  return (worker + 1) * round;
}

function sumTo(workers: readonly number[], round: number): number {
  let sum = 0;
  for (const worker of workers) for (let r = 1; r <= round; r++) sum += gift(worker, r);
  return sum;
}

class Worker {
  readonly #cluster: SimulatedCluster;
  readonly #worker: number;
  readonly #random: Random;
  readonly #peers: readonly number[];
  readonly #exact: boolean;
  /** Rounds pushed, by parameter. */
  readonly #pushed = sizes.map(() => 0);
  outstanding = 0;
  errors: ShoalError[] = [];

  constructor(cluster: SimulatedCluster, worker: number, random: Random, how: { peers: readonly number[]; exact: boolean }) {
    this.#cluster = cluster;
    this.#worker = worker;
    this.#random = random;
    this.#peers = how.peers;
    this.#exact = how.exact;
  }

  get done(): boolean {
    return this.outstanding === 0 && this.#pushed.every((round) => round === rounds);
  }

  /** Begins another operation. Any number may be under way: workers push in different orders. */
  act(): void {
    if (this.#pushed.every((round) => round === rounds)) return;
    const { values, core } = this.#cluster.clientOf(this.#worker);
    const entries: TransferEntry[] = [];
    const checks: (() => void)[] = [];
    const blocks: ValueBlock[] = [];
    for (const [k, size] of sizes.entries()) {
      if (this.#pushed[k] === rounds || this.#random.integer(3) === 0) continue;
      const round = ++this.#pushed[k];
      const push = values.allocate(4 * size);
      new Float32Array(push.view.buffer).fill(gift(this.#worker, round));
      blocks.push(push);
      const how = this.#random.integer(3);
      const out = how === 0 ? undefined : how === 1 ? push : values.allocate(4 * size);
      if (out !== undefined && out !== push) blocks.push(out);
      if (out !== undefined) checks.push(() => this.#check(k, round, new Float32Array(out.view.buffer)));
      entries.push({ key: `p${k}`, push: push.ref, ...(out ? { out: out.ref } : {}) });
    }
    if (entries.length === 0) return;
    this.outstanding++;
    const request = { entries, priority: this.#random.integer(4), timeoutMs: 1e9 };
    core.transfer(this.#worker, request, (error) => {
      this.outstanding--;
      if (error) this.errors.push(error);
      else for (const check of checks) check();
      for (const block of blocks) block.free();
    });
  }

  /** A pulled value is the same everywhere within a slice, has our own push in it, and is a sum of whole rounds. */
  #check(parameter: number, round: number, values: Float32Array): void {
    const [first] = values;
    const slice = values.subarray(0, 100);
    if (!slice.every((value) => value === first)) throw new Error(`parameter ${parameter}: torn: ${slice.join()}`);
    if (!this.#exact || values.length === 0) return;
    for (let r = round; r <= rounds; r++) if (sumTo(this.#peers, r) === first) return;
    throw new Error(`parameter ${parameter}: ${first} is no sum of at least ${round} rounds`);
  }
}

/** Runs workers to the end of their program while faults happen. @returns how many processes were killed. */
async function runTrial(seed: number, trial: Trial): Promise<number> {
  const random = seededRandom(seed);
  const { topology, disks, mappable, localWorkers, replayBytes } = trial;
  const cluster = await SimulatedCluster.start({
    topology,
    disks,
    mappable,
    localWorkers,
    random,
    client: { timeoutMs: 1e9, sliceBytes: 64 * 1024, frameBytes: 32 * 1024, ...(replayBytes ? { replayBytes } : {}) },
    // Updates between exchanges: 1, 5 or 9.
    server: { checkpointEveryMs: 50, syncEvery: 1 + 4 * (seed % 3) },
  });
  const all = Array.from({ length: topology.workerGroups * topology.workersPerGroup }, (_, worker) => worker);
  for (const worker of all) {
    const { core, values } = cluster.clientOf(worker);
    const entries = sizes.map(
      (size, k) => ({ key: `p${k}`, dtype: 'float32', shape: [size], value: values.allocate(4 * size).ref }) as const,
    );
    core.init(worker, entries, (error) => expect(error).toBe(undefined));
  }
  await cluster.settle();
  await cluster.run<void>((done) => cluster.clients[0].core.setOptimizer(0, adding, done));
  // Others push after a barrier, as with MXNet: from it on they know that there is an optimiser.
  let passed = 0;
  for (const worker of all) {
    cluster.clientOf(worker).core.barrier(worker, (error) => {
      expect(error).toBe(undefined);
      passed++;
    });
  }
  await cluster.settle();
  expect(passed).toBe(all.length);
  const exact = topology.workerGroups === 1;
  const workers = all.map((worker) => new Worker(cluster, worker, random, { peers: all, exact }));
  let kills = 0;
  for (let step = 0; !workers.every(({ done }) => done); step++) {
    if (step > 200_000) throw new Error(`seed ${seed}: no end after ${kills} kills`);
    for (const { errors } of workers) if (errors.length > 0) throw errors[0];
    const choice = random.integer(100);
    if (choice < 10) workers[random.integer(workers.length)].act();
    else if (choice < 12) cluster.clock.advance(random.integer(40));
    else if (choice < 14) cluster.servers[random.integer(cluster.servers.length)].disk?.finishWrite();
    else if (choice < 15 && (await trial.fault(cluster, random))) kills++;
    else cluster.deliverOne();
    if (choice < 20) await cluster.breathe();
  }
  await cluster.settle();
  expect(cluster.faults.map(({ error }) => error.message)).toEqual([]);
  if (topology.serverGroups > 1) await exchange(cluster);
  await balance(cluster, topology, all);
  return kills;
}

/** Lets every server group tell the others about its last updates. */
async function exchange(cluster: SimulatedCluster): Promise<void> {
  for (let time = 0; time < 3; time++) {
    cluster.clock.advance(500);
    await cluster.settle();
  }
}

/** Every worker sees exactly what all have pushed, in the right version. */
async function balance(cluster: SimulatedCluster, topology: KVTopology, all: readonly number[]): Promise<void> {
  const expected = sumTo(all, rounds);
  for (const worker of all) {
    const { core, values } = cluster.clientOf(worker);
    const outs = sizes.map((size) => values.allocate(4 * size));
    const entries = outs.map(({ ref }, k) => ({ key: `p${k}`, out: ref }));
    await cluster.run<void>((done) => core.transfer(worker, { entries, priority: 0 }, done));
    for (const [k, { view }] of outs.entries()) {
      const sums = new Set(new Float32Array(view.buffer));
      expect({ parameter: k, sums: [...sums] }).toEqual({ parameter: k, sums: sizes[k] === 0 ? [] : [expected] });
    }
    for (const k of sizes.keys()) {
      const info = await cluster.run<{ version: number; ahead: number }>((done) => core.info(worker, `p${k}`, done));
      expect(info).toEqual(expect.objectContaining({ ahead: 0, version: rounds * topology.workerGroups }));
    }
  }
  if (topology.serverGroups > 1) return;
  // The optimiser's own sum has begun at zero, like the values: it must have come through every restart with them.
  await cluster.run<void>((done) => cluster.clients[0].core.state(0, 'save', 'end', done));
  for (const disk of cluster.folders.values()) {
    const { tensors } = (await disk.load())!;
    const names = [...tensors.keys()].filter((name) => name.startsWith('parameter/'));
    expect(names.length).toBeGreaterThan(0);
    for (const name of names) {
      const total = tensors.get(name.replace('parameter/', 'state/total/'))!;
      expect(Buffer.compare(tensors.get(name)!.data, total.data)).toBe(0);
    }
  }
}

function pick(cluster: SimulatedCluster, random: Random): ClusterServer {
  return cluster.servers[random.integer(cluster.servers.length)];
}

async function killAndRestart(cluster: SimulatedCluster, random: Random): Promise<boolean> {
  const server = pick(cluster, random);
  if (random.integer(4) === 0) {
    cluster.reconnect(cluster.clients[random.integer(cluster.clients.length)], server);
    return false;
  }
  cluster.kill(server);
  for (let k = random.integer(30); k > 0; k--) cluster.deliverOne();
  await cluster.restart(server);
  return true;
}

async function killAndPromote(cluster: SimulatedCluster, random: Random): Promise<boolean> {
  const server = pick(cluster, random);
  const choice = random.integer(8);
  if (choice === 7) {
    cluster.reconnectStandby(server);
    return false;
  }
  if (choice === 0) {
    cluster.reconnect(cluster.clients[random.integer(cluster.clients.length)], server);
  } else if (choice === 1) {
    cluster.killStandby(server);
    for (let k = random.integer(30); k > 0; k--) cluster.deliverOne();
    await cluster.addStandby(server);
  } else {
    // A standby that has not heard the whole state yet cannot take over.
    while (!server.standby!.core.informed) if (!cluster.deliverOne()) break;
    // One that shares memory with the workers is ended before it could go on: here it cannot.
    if (choice === 6 && !cluster.mappable) {
      const { resume, end } = await cluster.replaceFrozen(server);
      for (let k = random.integer(30); k > 0; k--) cluster.deliverOne();
      resume();
      for (let k = random.integer(30); k > 0; k--) cluster.deliverOne();
      end();
      return true;
    }
    cluster.kill(server);
    for (let k = random.integer(30); k > 0; k--) cluster.deliverOne();
    cluster.promote(server);
    for (let k = random.integer(30); k > 0; k--) cluster.deliverOne();
    await cluster.addStandby(server);
  }
  return choice !== 0;
}

const sandblaster: KVTopology = { workerGroups: 1, workersPerGroup: 3, serverGroups: 1, serversPerGroup: 2, replicas: 1 };
const downpour: KVTopology = { workerGroups: 3, workersPerGroup: 1, serverGroups: 1, serversPerGroup: 2, replicas: 1 };
const hogwild: KVTopology = { workerGroups: 3, workersPerGroup: 1, serverGroups: 3, serversPerGroup: 2, replicas: 1 };

const seeds = Number(process.env.LEDGER_SEEDS ?? 12);

describe('ledger', () => {
  let kills = 0;

  it.each([
    { name: 'one worker group, checkpoints', topology: sandblaster, disks: true, mappable: true, localWorkers: 1, fault: killAndRestart },
    {
      name: 'one worker group, checkpoints, inline',
      topology: sandblaster,
      disks: true,
      mappable: false,
      localWorkers: 3,
      fault: killAndRestart,
    },
    {
      name: 'a small log',
      topology: sandblaster,
      disks: true,
      mappable: true,
      localWorkers: 1,
      replayBytes: 800_000,
      fault: killAndRestart,
    },
    { name: 'many worker groups, checkpoints', topology: downpour, disks: true, mappable: true, localWorkers: 1, fault: killAndRestart },
    {
      name: 'one worker group, checkpoints, apart',
      topology: sandblaster,
      disks: true,
      mappable: false,
      localWorkers: 1,
      fault: killAndRestart,
    },
    {
      name: 'many worker groups, checkpoints, apart',
      topology: downpour,
      disks: true,
      mappable: false,
      localWorkers: 1,
      fault: killAndRestart,
    },
    { name: 'many server groups, checkpoints', topology: hogwild, disks: true, mappable: true, localWorkers: 1, fault: killAndRestart },
    {
      name: 'one worker group, standbys',
      topology: { ...sandblaster, replicas: 2 },
      disks: false,
      mappable: true,
      localWorkers: 1,
      fault: killAndPromote,
    },
    {
      name: 'many worker groups, standbys',
      topology: { ...downpour, replicas: 2 },
      disks: false,
      mappable: false,
      localWorkers: 1,
      fault: killAndPromote,
    },
    {
      name: 'many server groups, standbys',
      topology: { ...hogwild, replicas: 2 },
      disks: false,
      mappable: true,
      localWorkers: 1,
      fault: killAndPromote,
    },
  ] satisfies (Trial & { name: string })[])(
    '$name',
    async ({ name, ...trial }) => {
      for (let seed = 1; seed <= seeds; seed++) {
        try {
          kills += await runTrial(seed, trial);
        } catch (error) {
          throw new Error(`${name}, seed ${seed}: ${(error as Error).message}`, { cause: error });
        }
      }
    },
    10_000 * seeds,
  );

  it('has seen a thousand kills', () => {
    expect(kills).toBeGreaterThan(process.env.LEDGER_SEEDS ? 0 : 1000);
  });
});
