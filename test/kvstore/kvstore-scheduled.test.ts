/** Scheduled stores over real server processes. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { kvstoreChecks } from '../../src/kvstore/conformance.ts';
import { ScheduledKVStore } from '../../src/kvstore/scheduled/scheduled-kvstore.ts';
import { KVJob } from '../support/kv-job.ts';

const env = { SHOAL_TIMEOUT_MS: '60000' };
/** Checks without those of a refused gradient: one part of a push may be refused alone. */
const checks = kvstoreChecks.filter(
  ({ name, types, fresh }) => types.includes('dist_sync') && !fresh && !name.startsWith('a gradient that is not finite'),
);

it('rows of tables in parts', async () => {
  await using job = await KVJob.start({ workers: 2, servers: 2, env });
  const stores = (await job.stores('dist_sync')).map((store) => new ScheduledKVStore(store, { partitionBytes: 64 }));
  const ofRows = checks.filter(({ name }) => /\brows\b/.test(name));
  expect(ofRows.length).toBeGreaterThan(1);
  const folder = temporaryFolder('scheduled');
  for (const { run } of ofRows) await Promise.all(stores.map((kv) => run(kv, folder)));
});

describe('two workers and two servers', () => {
  let job: KVJob;
  let stores: ScheduledKVStore[];

  beforeAll(async () => {
    job = await KVJob.start({ workers: 2, servers: 2, env });
    stores = (await job.stores('dist_sync')).map((store) => new ScheduledKVStore(store, { partitionBytes: 65_536 }));
  });

  afterAll(() => job[Symbol.asyncDispose]());

  it.each(checks)('$name', async ({ run }) => {
    const folder = temporaryFolder('scheduled');
    await Promise.all(stores.map((kv) => run(kv, folder)));
  });

  it('workers that push in other orders do not wait for each other', async () => {
    const keys = Array.from({ length: 12 }, (_, index) => `order/${index}`);
    const count = 40_000;
    await Promise.all(
      stores.map((kv) =>
        kv.init(
          keys,
          keys.map(() => new Float32Array(count)),
        ),
      ),
    );
    const sums = await Promise.all(
      stores.map(async (kv, worker) => {
        const order = worker === 0 ? keys : keys.toReversed();
        const outs = order.map(() => new Float32Array(count));
        const works = [];
        for (const [index, key] of order.entries()) {
          kv.push(key, new Float32Array(count).fill(worker + 1), { priority: -Number(key.slice(6)) });
          works.push(kv.pull(key, outs[index]));
          // Each push is under way before the next one is called.
          for (let turn = 0; turn < 5; turn++) await new Promise(setImmediate);
        }
        await Promise.all(works);
        return outs.map((out) => out[count - 1]);
      }),
    );
    expect(sums).toEqual(stores.map(() => keys.map(() => 3)));
  });

  it('workers that cut a parameter in other ways are told at once', async () => {
    await using other = await KVJob.start({ workers: 2, servers: 1, env });
    const cut = (await other.stores('dist_sync')).map(
      (store, worker) => new ScheduledKVStore(store, { partitionBytes: 1000 * (worker + 1) }),
    );
    const inits = await Promise.allSettled(cut.map((kv) => kv.init('w', new Float32Array(1000))));
    expect(inits.filter(({ status }) => status === 'rejected')).not.toHaveLength(0);
    for (const init of inits) {
      if (init.status === 'fulfilled') continue;
      expect(init.reason).toMatchObject({ code: 'mismatch', message: expect.stringContaining("'w/part-0'") as string });
    }
    await Promise.all(cut.map((kv) => kv.close()));
  });

  it('tune credit and partition together, and a worker that tunes alone is told', async () => {
    const space = { creditBytes: { least: 65_536, most: 2 ** 20 }, partitionBytes: { least: 16_384, most: 2 ** 18 } };
    // Drift is switched off: it is measured on a machine that others use as well, and would begin tuning anew.
    const tuning = { space, points: 4, coveringPoints: 2, stepsPerPoint: 6, stepsAhead: 4, driftShare: 1e9 };
    await using other = await KVJob.start({ workers: 2, servers: 1, env: { ...env, SHOAL_SCHEDULE_TUNING_DIR: '-' } });
    const environment = { SHOAL_SCHEDULE_TUNING_DIR: '-' };
    const tuned = (await other.stores('dist_sync')).map(
      (store) => new ScheduledKVStore(store, { tuning, partitionBytes: 65_536, environment }),
    );
    const count = 100_000;
    await Promise.all(tuned.map((kv) => kv.init(['a', 'b'], [new Float32Array(count), new Float32Array(7)])));
    const seen = await Promise.all(
      tuned.map(async (kv, worker) => {
        const statuses = [];
        for (let step = 0; step < 60 + 12 * 11; step++) {
          const keys = worker === 0 ? ['a', 'b'] : ['b', 'a'];
          const works = keys.map((key) => kv.pushPull(key, new Float32Array(key === 'a' ? count : 7).fill(1), undefined, { priority: 1 }));
          await Promise.all(works);
          statuses.push(kv.scheduling);
        }
        return statuses;
      }),
    );
    expect(seen[1].at(-1)).toEqual(seen[0].at(-1));
    expect(seen[0].at(-1)).toMatchObject({ tuning: 'converged' });
    for (const statuses of seen) {
      const points = new Set(statuses.map(({ creditBytes, partitionBytes }) => `${creditBytes} ${partitionBytes}`));
      expect(points.size).toBeGreaterThanOrEqual(4);
    }
    await Promise.all(tuned.map((kv) => kv.close()));

    await using lonely = await KVJob.start({ workers: 2, servers: 1, env });
    const [alone, plain] = await lonely.stores('dist_sync');
    const tuningAlone = new ScheduledKVStore(alone, { tuning: true, timeoutMs: 300, environment });
    await expect(tuningAlone.init('w', new Float32Array(1))).rejects.toMatchObject({
      code: 'mismatch',
      message: expect.stringContaining('worker 0 tunes credit and partition, and worker 1 has not said') as string,
    });
    await Promise.all([tuningAlone.close(), plain.close()]);
  });

  it('tune where their threads never return to the event loop, and in one space', async () => {
    const space = { creditBytes: { least: 4096, most: 65_536 }, partitionBytes: { least: 1024, most: 8192 } };
    const tuning = { space, points: 3, coveringPoints: 2, stepsPerPoint: 6, stepsAhead: 2, driftShare: 1e9 };
    const environment = { SHOAL_SCHEDULE_TUNING_DIR: '-' };
    await using other = await KVJob.start({ workers: 2, servers: 1, env });
    const tuned = (await other.stores('dist_async')).map((store) => new ScheduledKVStore(store, { tuning, environment }));
    await tuned[0].setOptimizer({ name: 'sgd', learningRate: 0.1 });
    await Promise.all(tuned.map((kv) => kv.init('w', new Float32Array(1000))));
    const areTuning = (): boolean => tuned.some(({ scheduling }) => scheduling.tuning === 'tuning');
    for (let step = 0; step < 5000 && areTuning(); step++) for (const kv of tuned) kv.pushPull('w', new Float32Array(1000)).waitSync();
    for (const { scheduling } of tuned) expect(scheduling.tuning).toBe('converged');
    expect(tuned[1].scheduling).toMatchObject({
      creditBytes: tuned[0].scheduling.creditBytes,
      partitionBytes: tuned[0].scheduling.partitionBytes,
    });
    await Promise.all(tuned.map((kv) => kv.close()));

    await using apart = await KVJob.start({ workers: 2, servers: 1, env });
    const spaces = [1024, 2048].map((least) => ({ ...space, partitionBytes: { least, most: 8192 } }));
    const differing = (await apart.stores('dist_sync')).map(
      (store, worker) => new ScheduledKVStore(store, { tuning: { ...tuning, space: spaces[worker] }, environment }),
    );
    const inits = await Promise.allSettled(differing.map((kv) => kv.init('w', new Float32Array(1000))));
    expect(inits).toMatchObject([
      {
        status: 'rejected',
        reason: {
          code: 'mismatch',
          message: expect.stringContaining('worker 1 creditBytes 4096-65536, partitionBytes 2048-8192') as string,
        },
      },
      {
        status: 'rejected',
        reason: {
          code: 'mismatch',
          message: expect.stringContaining('worker 0 creditBytes 4096-65536, partitionBytes 1024-8192') as string,
        },
      },
    ]);
    await Promise.all(differing.map((kv) => kv.close()));
  });

  it('a credit that could make them wait for each other is refused', () => {
    const refused = (): unknown => new ScheduledKVStore(stores[0], { creditBytes: 4096 });
    expect(refused).toThrow(
      expect.objectContaining({ code: 'usage', message: expect.stringContaining('SHOAL_KV_CREDIT_BYTES') as string }),
    );
  });
});
