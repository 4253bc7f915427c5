/** Workers that come and go: rounds and barriers are of those that are there, and whoever comes in another's place goes on with them. */
import { describe, expect, it } from 'vitest';
import { ShoalError } from '../base/errors.ts';
import { seededRandom, type Random } from '../base/random.ts';
import type { KeylessInfo } from './client/client-options.ts';
import { entryRounds, packCounts, unpackCounts } from './protocol/entry-rounds.ts';
import { ParameterDirectory } from './protocol/parameter-directory.ts';
import type { ValueBlock } from './protocol/value-space.ts';
import { adding, Bench, sandblaster, small, type Outcome, type Parameter } from './testing/server-bench.ts';

const three = { ...sandblaster, workersPerGroup: 3 };
const asynchronous = { ...three, workerGroups: 3, workersPerGroup: 1 };
/** Cut into three slices, which lie on both servers. */
const large: Parameter = { key: 'large', dtype: 'float32', shape: [3000] };
const keys = [small, large];

interface Options {
  readonly topology?: typeof three;
  readonly seed?: number;
  readonly disks?: boolean;
  readonly mappable?: boolean;
}

/** A job whose workers all push ones, in all parameters. */
class Job {
  readonly bench: Bench;

  private constructor(bench: Bench) {
    this.bench = bench;
  }

  static async of({ topology = three, ...options }: Options = {}): Promise<Job> {
    const bench = await Bench.of({
      topology,
      server: { elastic: true, checkpointEveryMs: 100 },
      client: { sliceBytes: 4000, timeoutMs: 1e9 },
      mappable: false,
      ...options,
    });
    const job = new Job(bench);
    await bench.init(keys);
    await bench.setOptimizer();
    return job;
  }

  get cluster(): Bench['cluster'] {
    return this.bench.cluster;
  }

  push(worker: number): Outcome {
    return this.bench.begin(
      worker,
      keys.map(({ key, shape }) => ({ key, push: this.bench.block(worker, new Float32Array(shape[0]).fill(1)).ref })),
    );
  }

  /** The outcome of a push of each of them, or of calls that were made before. */
  async settled(...calls: readonly (number | Outcome)[]): Promise<(string | undefined)[]> {
    const outcomes = calls.map((call) => (typeof call === 'number' ? this.push(call) : call));
    await this.cluster.settle();
    return outcomes.map(({ done, error }) => (done ? error?.message : 'it waits'));
  }

  /** The value of all elements of all parameters. */
  async value(worker: number): Promise<number> {
    const pulled = await Promise.all(keys.map(({ key, shape }) => this.bench.pulled(worker, key, shape[0])));
    const values = new Set(pulled.flat());
    expect(values.size, [...values].join()).toBe(1);
    return [...values][0];
  }

  barrier(worker: number): Outcome {
    const outcome: Outcome = { done: false, error: undefined };
    this.cluster.clientOf(worker).core.barrier(worker, (error) => {
      outcome.done = true;
      outcome.error = error;
    });
    return outcome;
  }

  /** Another process in a worker's place, which does at its start what all did. */
  async rejoin(worker: number): Promise<void> {
    this.cluster.rejoin(worker);
    await this.bench.init(keys, () => 7, [worker]);
    if (worker === 0) await this.bench.setOptimizer();
  }
}

const well = [undefined, undefined, undefined];

describe('a worker that is lost', () => {
  it('is not waited for, and counts again with the first push of the one in its place', async () => {
    const job = await Job.of();
    expect(await job.settled(0, 1, 2)).toEqual(well);
    const waiting = job.push(0);
    expect(await job.settled(waiting, 1)).toEqual(['it waits', 'it waits']);
    job.cluster.lose(2);
    expect(await job.settled(waiting)).toEqual([undefined]);
    expect(await job.settled(0, 1)).toEqual([undefined, undefined]);
    expect(await job.value(0)).toBe(3 + 2 + 2);
    await job.rejoin(2);
    expect(await job.settled(0, 1)).toEqual([undefined, undefined]);
    expect(await job.value(2)).toBe(9);
    // It has looked: the others wait for it.
    expect((await job.bench.info(2, 'w'))?.version).toBe(4);
    const [first, second] = [job.push(0), job.push(1)];
    expect(await job.settled(first, second)).toEqual(['it waits', 'it waits']);
    expect(await job.settled(2, first, second)).toEqual(well);
    expect(await job.value(1)).toBe(12);
    expect(job.cluster.faults).toEqual([]);
  });

  it('takes with it what it had pushed to open rounds', async () => {
    const job = await Job.of();
    const pushed = job.push(2);
    await job.settled(pushed);
    job.cluster.lose(2);
    expect(await job.settled(0, 1)).toEqual([undefined, undefined]);
    expect(await job.value(0)).toBe(2);
    expect(job.cluster.lent).toBe(0);
  });

  it('and was only stopped is told so, and changes nothing', async () => {
    const job = await Job.of();
    const zombie = job.cluster.clientOf(1);
    const pushed = job.push(1);
    await job.settled(pushed);
    job.cluster.lose(1, { alive: true });
    expect(await job.settled(pushed, 0, 2)).toEqual([
      expect.stringContaining('worker 1 counts as lost: it has been silent'),
      undefined,
      undefined,
    ]);
    for (const server of job.cluster.servers) job.cluster.reconnect(zombie, server);
    expect(await job.settled(1)).toEqual([expect.stringContaining('worker 1 counts as lost: it has been silent')]);
    await job.rejoin(1);
    expect(await job.value(1)).toBe(2);
    const again: Outcome = { done: false, error: undefined };
    zombie.core.transfer(1, { entries: [{ key: 'w', push: zombie.values.allocate(16).ref }], priority: 0 }, (error) => {
      Object.assign(again, { done: true, error });
    });
    expect(await job.settled(again, 0, 1, 2)).toEqual([expect.stringContaining('counts as lost'), ...well]);
    expect(await job.value(0)).toBe(5);
  });

  it('before it has come is not waited for either', async () => {
    const bench = await Bench.of({ topology: three, server: { elastic: true } });
    const { cluster } = bench;
    cluster.lose(2);
    await bench.init([small], undefined, [0, 1]);
    await bench.setOptimizer();
    const outcomes = [0, 1].map((worker) => bench.push(worker, 'w', new Float32Array(4).fill(1)));
    await cluster.settle();
    expect(outcomes.map(({ done }) => done)).toEqual([true, true]);
  });

  it('is worker 0: the one in its place declares and sets what is there already, and nothing changes', async () => {
    const job = await Job.of();
    expect(await job.settled(0, 1, 2)).toEqual(well);
    job.cluster.lose(0);
    expect(await job.settled(1, 2)).toEqual([undefined, undefined]);
    await job.rejoin(0);
    expect(await job.value(0)).toBe(5);
    expect(await job.settled(0, 1, 2)).toEqual(well);
    expect(await job.value(1)).toBe(8);
    expect(job.cluster.faults).toEqual([]);
  });

  it('is not waited for in an asynchronous store, and comes back', async () => {
    const job = await Job.of({ topology: asynchronous });
    expect(await job.settled(0, 1, 2)).toEqual(well);
    job.cluster.lose(2);
    await job.rejoin(2);
    expect(await job.value(2)).toBe(3);
    expect(await job.settled(2, 2, 0)).toEqual(well);
    expect(await job.value(1)).toBe(6);
  });
});

it('a worker that leaves counts with what it has pushed', async () => {
  const job = await Job.of();
  const pushed = job.push(2);
  await job.settled(pushed);
  const { core, address } = job.cluster.clientOf(2);
  await job.cluster.run<void>((done) => core.leave(2, done));
  // Then its process ends.
  for (const server of job.cluster.servers) server.core.peerLost(address, new ShoalError('peer-lost', 'exited with code 0'));
  expect(await job.settled(0, 1)).toEqual([undefined, undefined]);
  expect(await job.value(0)).toBe(3);
  expect(await job.settled(0, 1)).toEqual([undefined, undefined]);
  expect(await job.value(0)).toBe(5);
});

describe('barriers', () => {
  it('count those that are there, and one that comes later from its first push on', async () => {
    const job = await Job.of();
    const started = [0, 1, 2].map((worker) => job.barrier(worker));
    expect(await job.settled(...started)).toEqual(well);
    expect(await job.settled(0, 1, 2)).toEqual(well);
    const waiting = [job.barrier(0), job.barrier(1)];
    expect(await job.settled(...waiting)).toEqual(['it waits', 'it waits']);
    job.cluster.lose(2);
    expect(await job.settled(...waiting)).toEqual([undefined, undefined]);
    await job.rejoin(2);
    // The one at the start, which the others have passed.
    expect(await job.settled(job.barrier(2))).toEqual([undefined]);
    expect(await job.value(2)).toBe(3);
    expect(await job.settled(0, 1, 2)).toEqual(well);
    const next = [job.barrier(0), job.barrier(1)];
    expect(await job.settled(...next)).toEqual(['it waits', 'it waits']);
    expect(await job.settled(job.barrier(2), ...next)).toEqual(well);
  });

  it.each([{ sets: 'before it reads' }, { sets: 'after it has read' }])(
    'wait at first for worker 0 or the one in its place; it sets $sets',
    async ({ sets }) => {
      const job = await Job.of();
      const waiting = [job.barrier(1), job.barrier(2)];
      await job.settled(...waiting);
      job.cluster.lose(0);
      expect(await job.settled(...waiting)).toEqual(['it waits', 'it waits']);
      await job.rejoin(0);
      if (sets === 'after it has read') expect(await job.value(0)).toBe(0);
      expect(await job.settled(...waiting)).toEqual(['it waits', 'it waits']);
      expect(await job.settled(job.barrier(0), ...waiting)).toEqual(well);
      expect(await job.value(0)).toBe(0);
      expect(await job.settled(0, 1, 2)).toEqual(well);
    },
  );

  it('do not wait for a worker 0 that nobody starts again', async () => {
    const job = await Job.of();
    const waiting = [job.barrier(1), job.barrier(2)];
    job.cluster.lose(0, { returns: false });
    expect(await job.settled(...waiting)).toEqual([undefined, undefined]);
  });
});

describe('the first round of one that comes later', () => {
  it('is the same of all parameters that are pushed equally often', () => {
    const directory = new ParameterDirectory(2);
    expect(
      entryRounds(
        [
          [7, 7, 6],
          [6, 6, 2],
        ],
        directory,
      ),
    ).toEqual([
      [8, 8, 8],
      [8, 8, 3],
    ]);
    expect(entryRounds([[], [0]], directory)).toEqual([[], [1]]);
    const slices = { firstPiece: [0, 2], pieceServer: [0, 1], pieceSlot: [1, 0] };
    expect(entryRounds([[3, 3], [9]], slices)).toEqual([[4, 10], [10]]);
    expect(unpackCounts(packCounts([7, 7, 6, 7]))).toEqual([7, 7, 6, 7]);
    expect(() => unpackCounts([2 ** 40, 1])).toThrow(/a list of rounds/);
  });

  /** `standbys`: servers fail over; `checkpoints`: they begin again from what is on disk. */
  const kinds = ['servers stay', 'checkpoints', 'standbys'] as const;
  const worlds = Array.from({ length: 45 }, (_, seed) => ({ seed, kind: kinds[seed % 3] }));
  it.each(worlds)('is one at which all are, whoever is lost, and whenever another comes; $kind, seed $seed', async ({ seed, kind }) => {
    const training = await Training.of(seed, kind);
    await training.run({ losses: 6 });
    expect(training.failures, `seed ${seed}`).toEqual([]);
    expect(training.cluster.faults, `seed ${seed}`).toEqual([]);
    expect(training.over, `seed ${seed}`).toEqual(new Set([0, 1, 2]));
    // Pushes of a lost worker that are in no checkpoint are lost with the server.
    if (kind === 'checkpoints') return;
    const [{ value }, ...others] = training.seen.values();
    expect(others, `seed ${seed}`).toEqual([
      { version: steps, value },
      { version: steps, value },
    ]);
    // Each lost worker may have been in the middle of a push.
    expect(value).toBeGreaterThanOrEqual(training.pushed);
    expect(value).toBeLessThanOrEqual(training.pushed + training.losses);
  });
});

const steps = 12;

/** Three workers that make steps, of which one after the other is lost and comes again. */
class Training {
  readonly #job: Job;
  readonly #random: Random;
  readonly #kind: string;
  readonly failures: ShoalError[] = [];
  /** The version and an element that each worker has seen last. */
  readonly seen = new Map<number, { readonly version: number | undefined; readonly value: number }>();
  /** Pushes that are done. */
  pushed = 0;
  losses = 0;
  readonly over = new Set<number>();

  private constructor(job: Job, random: Random, kind: string) {
    this.#job = job;
    this.#random = random;
    this.#kind = kind;
  }

  static async of(seed: number, kind: string): Promise<Training> {
    const topology = kind === 'standbys' ? { ...three, replicas: 2 as const } : three;
    const job = await Job.of({ seed, disks: kind === 'checkpoints', mappable: seed % 2 === 0, topology });
    return new Training(job, seededRandom(seed), kind);
  }

  get cluster(): Bench['cluster'] {
    return this.#job.cluster;
  }

  async run({ losses }: { readonly losses: number }): Promise<void> {
    const { cluster } = this;
    const [server] = cluster.servers;
    for (const worker of [0, 1, 2]) this.#train(worker);
    for (let turn = 0; turn < 100_000 && this.over.size < 3; turn++) {
      await cluster.breathe();
      cluster.clock.advance(1);
      const worker = this.#random.integer(3);
      if (this.losses < losses && this.#random.integer(120) === 0 && !this.over.has(worker)) this.#startAgain(worker);
      const isDue = this.#random.integer(400) === 0;
      if (isDue && this.#kind === 'checkpoints') {
        cluster.kill(server);
        await cluster.restart(server);
      }
      if (isDue && server.standby?.core.informed === true) {
        cluster.kill(server);
        cluster.promote(server);
        await cluster.addStandby(server);
      }
      if (!cluster.deliverOne()) cluster.servers.find(({ disk }) => disk?.busy)?.disk?.finishWrite();
    }
  }

  /** Does as the launcher, and as a script at its start. */
  #startAgain(worker: number): void {
    const { cluster } = this;
    this.losses++;
    cluster.lose(worker);
    cluster.rejoin(worker);
    const { core } = cluster.clientOf(worker);
    const entries = keys.map(({ key, dtype, shape }) => ({ key, dtype, shape, value: this.#block(worker, shape[0]) }));
    const train = this.#ofProcess(worker, () => this.#train(worker));
    core.init(worker, entries, () => (worker === 0 ? core.setOptimizer(0, adding, train) : train(undefined)));
  }

  /** A script: it takes its step from the version, and pushes until all steps are made. */
  #train(worker: number): void {
    const { core } = this.cluster.clientOf(worker);
    core.info(worker, 'large', (error, info) => {
      let step = info?.version ?? 0;
      const next = this.#ofProcess(worker, () => {
        if (step++ === steps) return this.#end(worker);
        const entries = keys.map(({ key, shape }) => ({ key, push: this.#block(worker, shape[0], 1) }));
        return core.transfer(worker, { entries, priority: 0 }, (failure) => {
          if (failure === undefined) this.pushed++;
          next(failure);
        });
      });
      next(error);
    });
  }

  #end(worker: number): void {
    const { core, values } = this.cluster.clientOf(worker);
    const out = values.allocate(16);
    core.info(
      worker,
      'large',
      this.#ofProcess(worker, (info) => {
        const leave = this.#ofProcess(worker, () => {
          this.seen.set(worker, { version: info?.version, value: new Float32Array(out.view.buffer, out.view.byteOffset, 4)[0] });
          core.leave(worker, () => this.over.add(worker));
        });
        core.transfer(worker, { entries: [{ key: 'w', out: out.ref }], priority: 0 }, leave);
      }),
    );
  }

  #block(worker: number, count: number, value = 0): ValueBlock['ref'] {
    return this.#job.bench.block(worker, new Float32Array(count).fill(value)).ref;
  }

  /** Goes on after a call while this process is the worker's. */
  #ofProcess(worker: number, go: (info?: KeylessInfo) => void): (error: ShoalError | undefined, info?: KeylessInfo) => void {
    const { core } = this.cluster.clientOf(worker);
    return (error, info) => {
      if (this.cluster.clientOf(worker).core !== core) return;
      if (error === undefined) return go(info);
      // It was told how far the rounds were, and its server lost that: the process ends.
      if (this.#kind === 'checkpoints' && error.message.includes('was given up without')) return this.#startAgain(worker);
      this.failures.push(error);
    };
  }
}
