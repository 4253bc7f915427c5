/** Several server groups as real processes: what one group's workers push reaches all. */
import { expect, test } from 'vitest';
import { KVJob } from './support/kv-job.ts';

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
