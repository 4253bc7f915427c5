/** Parameter servers whose values travel over libfabric, killed with SIGKILL meanwhile: every push counts once, and a result that
 *  nobody waits for any more does not arrive. */
import { describe, expect, it } from 'vitest';
import { seededRandom, systemRandom } from '../../src/base/random.ts';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { libfabricUnavailable } from '../../src/fabric/providers/libfabric/libfabric-devices.ts';
import { CountedPushes } from '../support/counted-pushes.ts';
import { KVJob } from '../support/kv-job.ts';
import { locksOfKilled } from '../support/locks-of-killed.ts';

const patience = { timeout: 60_000 };
/** Sizes of values; from 256 KiB on they are written from tensor to tensor. */
const counts = { small: 3, large: 140_000, larger: 700_000 };
const pushes = new CountedPushes(counts);

for (const provider of ['tcp;ofi_rxm', 'shm']) {
  const reason = libfabricUnavailable({ provider });
  const killable = reason ?? locksOfKilled(provider);
  const because = killable === undefined || killable === reason ? '' : ` (skipped: ${killable})`;
  const plane = { SHOAL_FABRICS: 'libfabric', SHOAL_LIBFABRIC_PROVIDER: provider, SHOAL_ENCRYPTION: 'off' };

  describe.skipIf(reason !== undefined)(`a server over libfabric ${provider}${reason === undefined ? '' : ` (skipped: ${reason})`}`, () => {
    it.skipIf(killable !== undefined)(
      `that is killed and started again resumes: every push counts once${because}`,
      { timeout: 240_000 },
      async () => {
        const seed = systemRandom.integer(2 ** 31);
        const random = seededRandom(seed);
        const [workers, kills] = [2, 6];
        const env = { ...plane, SHOAL_KV_CHECKPOINT_MS: '100' };
        await using job = await KVJob.start({ workers, servers: 2, checkpointDir: temporaryFolder('kvstore'), hosts: 'apart', env });
        const stores = await job.stores('dist_sync');
        await pushes.begin(stores);
        const rounds = await pushes.pushThroughKills(job, stores, { random, kills, roundsMax: 4, turnsMax: 40 });
        await pushes.expectSum(stores[0], rounds * workers);
        expect((await stores[1].info('large')).version, `seed ${seed}`).toBe(rounds);
      },
    );

    it.skipIf(killable !== undefined)(
      `that is killed is replaced by its standby, which has everything${because}`,
      { timeout: 240_000 },
      async () => {
        const env = { ...plane, SHOAL_KV_SILENCE_MS: '4000', SHOAL_LOG_LEVEL: 'info' };
        await using job = await KVJob.start({ workers: 2, servers: 1, replicas: 2, hosts: 'apart', env });
        const stores = await job.stores('dist_sync');
        await pushes.begin(stores);
        await expect.poll(() => job.stderr, patience).toContain('stands by');
        for (let round = 0; round < 3; round++) await pushes.push(...stores);
        const pushed = pushes.push(...stores);
        await job.kill(0);
        await pushed;
        await pushes.expectSum(stores[1], 4 * 2);
        expect(job.stderr).toContain('takes over');
      },
    );

    it('that is stopped while it answers writes nothing to what was given up', { timeout: 240_000 }, async () => {
      const seed = systemRandom.integer(2 ** 31);
      const random = seededRandom(seed);
      await using job = await KVJob.start({ workers: 1, servers: 1, hosts: 'apart', env: plane });
      const [kv] = await job.stores('dist_async');
      await pushes.begin([kv]);
      await pushes.push(kv);
      let givenUp = 0;
      for (let round = 0; round < 60 && givenUp < 6; round++) {
        const outs = Object.values(counts).map((count) => kv.tensor('float64', [count]));
        const pulled = kv.pull(pushes.keys, outs, { timeoutMs: 300 });
        const outcome = Promise.resolve(pulled).then(
          () => 'came',
          ({ code }: { code: string }) => code,
        );
        for (let turn = random.integer(30); turn > 0; turn--) await new Promise((resolve) => void setImmediate(resolve));
        process.kill(job.pidOf(0), 'SIGSTOP');
        const code = await outcome;
        for (const { data } of outs) data.fill(7);
        process.kill(job.pidOf(0), 'SIGCONT');
        expect(['came', 'timeout']).toContain(code);
        if (code === 'timeout') givenUp++;
        await pushes.expectSum(kv, 1);
        for (const { data } of outs) expect(new Set(data), `seed ${seed}, round ${round}`).toEqual(new Set([7]));
      }
      expect(givenUp, `seed ${seed}`).toBeGreaterThan(0);
    });
  });
}
