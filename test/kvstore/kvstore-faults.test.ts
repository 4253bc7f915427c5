/** Servers as real processes, killed with SIGKILL while workers push: every push counts once, whatever happens. */
import { once } from 'node:events';
import { mkdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { ShoalError } from '../../src/base/errors.ts';
import { seededRandom } from '../../src/base/random.ts';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { CommChannel } from '../../src/comm/caller/comm-channel.ts';
import { hostGuest } from '../../src/comm/caller/comm-thread.ts';
import { create } from '../../src/kvstore/stores/create.ts';
import type { KVStore } from '../../src/kvstore/calls/types.ts';
import type { Asked } from '../fixtures/comm-guest.ts';
import { CountedPushes } from '../support/counted-pushes.ts';
import { KVJob } from '../support/kv-job.ts';

/** Timeout of polls for files that servers write at some time. */
const patience = { timeout: 60_000 };

/** A silence that is long for a process that is only busy, short for a test that waits until it has passed. */
const silence = { SHOAL_KV_SILENCE_MS: '4000' };

const pushes = new CountedPushes({ small: 3, large: 70_000 });

describe('a server that is killed', () => {
  test('and started again resumes from its checkpoint and the pushes since: 20 kills, every push counts once', async () => {
    const [workers, kills] = [2, 20];
    const random = seededRandom(11);
    await using job = await KVJob.start({
      workers,
      servers: 2,
      checkpointDir: temporaryFolder('kvstore'),
      env: { SHOAL_KV_CHECKPOINT_MS: '100' },
    });
    const stores = await job.stores('dist_sync');
    await pushes.begin(stores);
    const rounds = await pushes.pushThroughKills(job, stores, { random, kills, roundsMax: 6, turnsMax: 4 });
    await pushes.expectSum(stores[0], rounds * workers);
    expect((await stores[1].info('large')).version).toBe(rounds);
  });

  test('is replaced by its standby, which has everything', async () => {
    const env = { ...silence, SHOAL_LOG_LEVEL: 'info' };
    await using job = await KVJob.start({ workers: 2, servers: 1, replicas: 2, env });
    const stores = await job.stores('dist_sync');
    await pushes.begin(stores);
    await expect.poll(() => job.stderr, patience).toContain('stands by');
    for (let round = 0; round < 5; round++) await pushes.push(...stores);
    const pushed = pushes.push(...stores);
    await job.kill(0);
    await pushed;
    await pushes.push(...stores);
    await pushes.expectSum(stores[1], 7 * 2);
    await expect.poll(() => job.stderr, patience).toContain('takes over');
  });

  test('says that it cannot save, and that it can again', async () => {
    const folder = temporaryFolder('kvstore');
    // No process can write where a folder is in the way.
    const obstacle = join(folder, 'server-0-0', 'snapshot.part');
    mkdirSync(obstacle, { recursive: true });
    const env = { SHOAL_KV_CHECKPOINT_MS: '50', SHOAL_LOG_LEVEL: 'info' };
    await using job = await KVJob.start({ workers: 1, servers: 1, checkpointDir: folder, env });
    const [kv] = (await job.stores('dist_async')) as [KVStore];
    await pushes.begin([kv]);
    await pushes.push(kv);
    await expect
      .poll(() => job.stderr, patience)
      .toMatch(/server 0 of group 0 warn .*cannot save a checkpoint: .*snapshot\.part.*tried again/);
    rmSync(obstacle, { recursive: true });
    await expect.poll(() => job.stderr, patience).toContain('saves checkpoints again');
    expect(job.stderr.match(/cannot save a checkpoint/g)).toHaveLength(1);
    await pushes.push(kv);
    await pushes.expectSum(kv, 2);
  });

  test.each([{ hosts: 'one' }, { hosts: 'apart' }] as const)(
    'without checkpoint and standby ends all operations; hosts: $hosts',
    async ({ hosts }) => {
      await using job = await KVJob.start({ workers: 2, servers: 1, hosts });
      const [kv, other] = (await job.stores('dist_sync')) as [KVStore, KVStore];
      await pushes.begin([kv, other]);
      const said = /server 0 .* has ended, and all that it knew is lost; .*--checkpoint-dir <folder>.*--replicas 2/;
      // The other does not push.
      const pending = kv.pushPull(pushes.keys, pushes.arrays(0));
      pending.then(undefined, () => undefined);
      await job.kill(0);
      await expect(pending).rejects.toMatchObject({ code: 'peer-lost', message: expect.stringMatching(said) as string });
      await expect(kv.pull(pushes.keys, pushes.arrays(0))).rejects.toThrow(said);
      await kv.close();
    },
  );
});

test('pushes of a worker that has left count', async () => {
  await using job = await KVJob.start({ workers: 2, servers: 1 });
  const stores = await job.stores('dist_sync');
  await pushes.begin(stores);
  await pushes.push(...stores);
  const [early, late] = stores;
  early.push(pushes.keys, pushes.arrays(-1));
  await early.close();
  await pushes.push(late);
  await pushes.expectSum(late, 4);
});

test('a standby that is lost does not stop its server', async () => {
  const env = { ...silence, SHOAL_LOG_LEVEL: 'info' };
  await using job = await KVJob.start({ workers: 1, servers: 1, replicas: 2, env });
  const [kv] = (await job.stores('dist_async')) as [KVStore];
  await pushes.begin([kv]);
  await expect.poll(() => job.stderr, patience).toContain('stands by');
  await pushes.push(kv);
  await job.kill(0, 'standby');
  for (let round = 0; round < 3; round++) await pushes.push(kv);
  await pushes.expectSum(kv, 4);
  await expect.poll(() => job.stderr, patience).toContain('goes on alone');
});

test('every one of many single calls at once is answered', async () => {
  await using job = await KVJob.start({ workers: 2, servers: 1 });
  const stores = await job.stores('dist_sync');
  // More answers than a socket holds for a peer that has not come to read.
  const keys = Array.from({ length: 9000 }, (_, k) => `w${k}`);
  const value = Float64Array.of(1);
  await Promise.all(
    stores.map((kv) =>
      kv.init(
        keys,
        keys.map(() => value),
      ),
    ),
  );
  await Promise.all(stores.flatMap((kv) => keys.map((key) => kv.push(key, value))));
  expect(job.stderr).toBe('');
}, 120_000);

test.each([{ checkpoints: 'none' }, { checkpoints: 'some' }])(
  'a store is closed that has nothing to say since it was opened, or saved; checkpoints: $checkpoints',
  async ({ checkpoints }) => {
    const env = { SHOAL_KV_CHECKPOINT_MS: '50', SHOAL_LOG_LEVEL: 'info' };
    const saved = checkpoints === 'none' ? {} : { checkpointDir: temporaryFolder('kvstore') };
    await using job = await KVJob.start({ workers: 2, servers: 2, env, ...saved });
    const stores = await job.stores('dist_sync');
    if (checkpoints === 'some') {
      await pushes.begin(stores);
      await pushes.push(...stores);
      // Nothing changes from now on: all of it is saved, sooner or later.
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
    await Promise.all(stores.map((kv) => kv.close()));
    expect(await job.served()).toEqual([0, 0]);
  },
  120_000,
);

test.each([{ replicas: 1 }, { replicas: 2 }] as const)(
  'a second server of the same number is refused, and the job goes on; replicas: $replicas',
  async ({ replicas }) => {
    await using job = await KVJob.start({ workers: 1, servers: 1, replicas, env: { SHOAL_LOG_LEVEL: 'info' } });
    const [kv] = (await job.stores('dist_sync')) as [KVStore];
    await pushes.begin([kv]);
    if (replicas === 2) await expect.poll(() => job.stderr, patience).toContain('stands by');
    const seats = replicas === 2 ? (['server', 'standby'] as const) : (['server'] as const);
    for (const seat of seats) {
      const refused = job.startAnother(0, seat);
      await pushes.push(kv);
      expect(await refused).toBe(1);
    }
    expect(job.stderr.match(/server 0 of group 0 is process \d+ at .*this process is one too many/g)).toHaveLength(seats.length);
    await pushes.push(kv);
    await pushes.expectSum(kv, seats.length + 1);
  },
  120_000,
);

/** In each of the two, on a machine with nothing else to do, the other would count as lost soon after half of it. */
const absentMs = 2 * Number(silence.SHOAL_KV_SILENCE_MS);

test('a worker whose comm thread computes for longer than it may be silent is not lost', async () => {
  await using job = await KVJob.start({ workers: 2, servers: 1, env: silence });
  const stores = await job.stores('dist_sync');
  await pushes.begin(stores);
  const busy = new CommChannel<Asked, string>((handlers) =>
    hostGuest({ entry: '../.built/comm-guest.mjs', plan: { name: String(absentMs) }, who: 'it' }, handlers),
  );
  await busy.ready();
  await busy.start({ type: 'ask', what: 'compute' }, 'compute');
  await busy.leave(new ShoalError('closed', 'it has computed'));
  await pushes.push(...stores);
  await pushes.expectSum(stores[0], 2);
  expect(job.stderr).not.toContain('silent');
});

test('a server that was stopped takes nobody for silent', async () => {
  await using job = await KVJob.start({ workers: 2, servers: 1, env: silence });
  const stores = await job.stores('dist_sync');
  await pushes.begin(stores);
  process.kill(job.pidOf(0), 'SIGSTOP');
  await new Promise((resolve) => setTimeout(resolve, absentMs));
  process.kill(job.pidOf(0), 'SIGCONT');
  await pushes.push(...stores);
  await pushes.expectSum(stores[0], 2);
  expect(job.stderr).not.toContain('silent');
});

test('a pull into a tensor of the store that has timed out writes nothing any more', async () => {
  await using job = await KVJob.start({ workers: 2, servers: 1 });
  const [early, late] = await job.stores('dist_sync');
  const ones = new Float32Array(100_000).fill(1);
  await Promise.all([early, late].map((kv) => kv.init('w', ones)));
  const out = early.tensor('float32', [ones.length]);
  const pushed = early.push('w', ones);
  await expect(early.pull('w', out, { timeoutMs: 500 })).rejects.toMatchObject({ code: 'timeout' });
  out.data.fill(7);
  await late.push('w', ones);
  await pushed;
  await Promise.all([early.barrier(), late.barrier()]);
  expect(new Set(out.data)).toEqual(new Set([7]));
  await early.pull('w', out);
  expect(new Set(out.data)).toEqual(new Set([2]));
});

test('a worker that was killed is lost within the time that it may be silent', async () => {
  await using job = await KVJob.start({ workers: 2, servers: 1, env: silence });
  const store = create('dist_sync', { environment: job.environment('worker', 0) });
  const victim = job.startWorker(1, 'kvstore-ledger');
  const kv = await store;
  await kv.init(
    ['large', 'pushes', 'ending'],
    [50_000, 2, 1].map((count) => new Float64Array(count)),
  );
  await kv.setOptimizer({ name: 'sgd', learningRate: 1 });
  await kv.barrier();
  victim.kill('SIGKILL');
  await once(victim, 'exit');
  // It may have pushed once before it was killed: the round after that lacks it.
  const waited = kv.pushPull('pushes', new Float64Array(2)).then(() => kv.pushPull('pushes', new Float64Array(2)));
  await expect(waited).rejects.toMatchObject({ code: 'peer-lost', message: expect.stringMatching(/worker 1/) as string });
  await kv.close();
});

test('a worker that was stopped for too long is told so', async () => {
  await using job = await KVJob.start({ workers: 1, servers: 1, env: silence });
  const worker = job.startWorker(0, 'kvstore-ledger', { STORE: 'dist_async' });
  let said = '';
  for (const stream of [worker.stdout, worker.stderr]) stream?.setEncoding('utf8').on('data', (text: string) => (said += text));
  const ended = once(worker, 'exit');
  await expect.poll(() => said, patience).toContain('pushes');
  worker.kill('SIGSTOP');
  await expect.poll(() => job.stderr, patience).toContain('has been silent');
  worker.kill('SIGCONT');
  await ended;
  expect(said).toMatch(/worker 0 counts as lost: it has been silent for \d+ s \(SHOAL_KV_SILENCE_MS\); .* was it stopped\?/);
});
