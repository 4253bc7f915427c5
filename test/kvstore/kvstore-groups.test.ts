/** Several server groups as real processes: pushes of one group's workers reach all groups, and their state is saved and loaded
 *  as one, whichever server is killed. */
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { KVJob } from '../support/kv-job.ts';
import { LaunchedServers, type LaunchedServersOptions } from '../support/launched-servers.ts';

const groups = ['--worker-groups', '2', '--server-groups', '2'];

test.each([1, 1000])(
  'a group that pushes nothing learns what others push; an exchange every %i updates',
  async (syncEvery) => {
    const env = { SHOAL_KV_SYNC_EVERY: String(syncEvery), SHOAL_KV_SYNC_MS: '50' };
    await using job = await KVJob.start({ workers: 3, workerGroups: 3, servers: 3, serverGroups: 3, env });
    const stores = await job.stores('dist_async');
    const count = 100_000;
    await Promise.all(stores.map((kv) => kv.init(['a', 'b'], [new Float32Array(count), new Float32Array(3)])));
    await stores[0].setOptimizer({ name: 'sgd', learningRate: 1 });
    await Promise.all(stores.map((kv) => kv.barrier()));
    let sum = 0;
    for (const pusher of stores) {
      for (let step = 1; step <= 3; step++) {
        sum -= step;
        await pusher.push(['a', 'b'], [new Float32Array(count).fill(step), new Float32Array(3).fill(step)]);
      }
      await Promise.all(stores.map((kv) => kv.barrier()));
      for (const kv of stores) {
        const values = [new Float32Array(count), new Float32Array(3)];
        await expect
          .poll(async () => {
            await kv.pull(['a', 'b'], values);
            return [...new Set(values.flatMap((array) => [...new Set(array)]))];
          })
          .toEqual([sum]);
        expect((await kv.info('a')).staleness).toBe(0);
      }
    }
  },
  120_000,
);

/** Runs the script that saves and loads, and kills servers as `kill` decides. @returns the state that all workers loaded last. */
async function runState(
  options: Partial<LaunchedServersOptions>,
  kill: (job: LaunchedServers) => Promise<void> = () => Promise.resolve(),
): Promise<string> {
  await using job = new LaunchedServers({ workers: 2, servers: 4, store: 'dist_sync', script: 'kvstore-state', ...options });
  await kill(job);
  await job.finish();
  const [first, ...others] = [...job.output.matchAll(/worker \d: loaded (\d+), exact/g)].map(([, sum]) => sum);
  expect(others).toEqual([first]);
  return first;
}

test('state of two server groups is loaded by one, and back; servers are killed while it is saved and loaded', async () => {
  const folder = temporaryFolder('groups');
  const env = { FOLDER: join(folder, 'state'), SHOAL_KV_SYNC_EVERY: '1000', SHOAL_KV_SYNC_MS: '200', SHOAL_KV_CHECKPOINT_MS: '300' };
  const checkpoints = [...groups, '--checkpoint-dir', join(folder, 'checkpoints')];
  const killed = await runState({ replicas: 1, flags: checkpoints, env }, async (job) => {
    for (const [server, moment] of ['saving 1', 'loading 1', 'saving 2', 'loading 2'].entries()) {
      await job.until(moment, () => job.output.includes(moment));
      job.killServer(server);
    }
  });
  const byOne = await runState({ replicas: 1, servers: 1, env: { ...env, EXPECTED: killed } });
  const byTwo = await runState({ replicas: 1, servers: 2, flags: groups, env: { ...env, EXPECTED: byOne } });
  expect([Number(killed) >= 22, Number(byOne) > Number(killed), Number(byTwo) > Number(byOne)]).toEqual([true, true, true]);
});

test('standbys of two server groups take over while state is saved and loaded', async () => {
  const folder = temporaryFolder('groups');
  const env = { FOLDER: folder, SHOAL_KV_SYNC_EVERY: '1000', SHOAL_KV_SYNC_MS: '200' };
  await runState({ servers: 2, flags: groups, env }, async (job) => {
    for (const server of job.servers) {
      await job.stoodBy(server);
      await job.killPrimary(server);
    }
  });
});
