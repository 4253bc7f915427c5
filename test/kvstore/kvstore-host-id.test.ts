/** Processes that claim one host by SHOAL_HOST_ID and cannot map each other's memory: a server in a container, or of another user. */
import { expect, it } from 'vitest';
import { foreignPlaces } from '../support/foreign-places.ts';
import { KVJob } from '../support/kv-job.ts';

for (const { where, within, missing } of foreignPlaces()) {
  it.skipIf(missing)(`a server ${where} with the workers' SHOAL_HOST_ID serves them by messages, and its death is told`, async () => {
    await using job = await KVJob.start({ workers: 2, servers: 1, within, env: { SHOAL_HOST_ID: 'one', SHOAL_TIMEOUT_MS: '30000' } });
    const stores = await job.stores('dist_sync');
    const [kv] = stores;
    const value = kv.tensor('float32', [100_000]);
    await Promise.all(stores.map((store) => store.init('w', new Float32Array(100_000))));
    for (let round = 1; round <= 3; round++) {
      await Promise.all(
        stores.map((store) => store.pushPull('w', new Float32Array(100_000).fill(round), store === kv ? value : new Float32Array(100_000))),
      );
      expect(value.data.every((each) => each === 2 * round)).toBe(true);
    }
    // The other worker pushes nothing more.
    const pending = kv.pushPull('w', new Float32Array(100_000), value);
    await job.kill(0);
    await expect(pending).rejects.toMatchObject({ code: 'peer-lost', message: expect.stringContaining('server 0') as string });
  });
}
