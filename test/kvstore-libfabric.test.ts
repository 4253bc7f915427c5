/** Parameter servers whose values travel over libfabric, killed with SIGKILL while they do: every push counts once, and what nobody waits
 *  for any more does not arrive. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import { seededRandom, systemRandom } from '../src/base/random.ts';
import { libfabricUnavailable } from '../src/fabric/providers/libfabric-devices.ts';
import type { KVStore } from '../src/kvstore/values/types.ts';
import { KVJob } from './support/kv-job.ts';

const folders: string[] = [];
afterEach(() => {
  for (const folder of folders.splice(0)) rmSync(folder, { recursive: true, force: true });
});

const patience = { timeout: 60_000 };
const keys = ['small', 'large', 'larger'];
/** Of those that are written from tensor to tensor: 256 KiB and more. */
const counts = [3, 140_000, 700_000];

async function begin(stores: readonly KVStore[]): Promise<void> {
  const zeros = counts.map((count) => new Float64Array(count));
  await Promise.all(stores.map((kv) => kv.init(keys, zeros)));
  // Value −= gradient: with gradients of −1 every push adds one, exactly.
  await stores[0].setOptimizer({ name: 'sgd', learningRate: 1 });
  await Promise.all(stores.map((kv) => kv.barrier()));
}

async function pushOnce(kv: KVStore): Promise<void> {
  const outs = counts.map((count) => new Float64Array(count).fill(-1));
  await kv.pushPull(keys, outs);
}

async function expectSum(kv: KVStore, sum: number): Promise<void> {
  const outs = counts.map((count) => new Float64Array(count));
  await kv.pull(keys, outs);
  for (const out of outs) expect(new Set(out)).toEqual(new Set([sum]));
}

for (const provider of ['tcp;ofi_rxm', 'shm']) {
  const reason = libfabricUnavailable({ provider });
  const plane = { SHOAL_FABRICS: 'libfabric', SHOAL_LIBFABRIC_PROVIDER: provider };

  describe.skipIf(reason !== undefined)(`a server over libfabric ${provider}${reason === undefined ? '' : ` (skipped: ${reason})`}`, () => {
    it('that is killed and started again resumes: every push counts once', { timeout: 240_000 }, async () => {
      const seed = systemRandom.integer(2 ** 31);
      const random = seededRandom(seed);
      const [workers, kills] = [2, 6];
      const folder = mkdtempSync(join(tmpdir(), 'shoal-kvstore-'));
      folders.push(folder);
      const env = { ...plane, SHOAL_KV_CHECKPOINT_MS: '100' };
      await using job = await KVJob.start({ workers, servers: 2, checkpointDir: folder, hosts: 'apart', env });
      const stores = await job.stores('dist_sync');
      await begin(stores);
      let pushes = 0;
      for (let kill = 0; kill < kills; kill++) {
        const rounds = 1 + random.integer(4);
        const victim = random.integer(2);
        const after = random.integer(rounds);
        for (let round = 0; round < rounds; round++) {
          const pushed = Promise.all(stores.map(pushOnce));
          if (round === after) {
            // Sometimes before the pushes have left, sometimes with values on their way.
            for (let turn = random.integer(40); turn > 0; turn--) await new Promise((resolve) => void setImmediate(resolve));
            await job.kill(victim);
            job.startServer(victim);
          }
          await pushed;
          pushes++;
        }
      }
      await expectSum(stores[0], pushes * workers);
      expect((await stores[1].info('large')).version, `seed ${seed}`).toBe(pushes);
    });

    it('that is killed is replaced by its standby, which has everything', { timeout: 240_000 }, async () => {
      const env = { ...plane, SHOAL_KV_SILENCE_MS: '4000', SHOAL_LOG_LEVEL: 'info' };
      await using job = await KVJob.start({ workers: 2, servers: 1, replicas: 2, hosts: 'apart', env });
      const stores = await job.stores('dist_sync');
      await begin(stores);
      await expect.poll(() => job.stderr, patience).toContain('stands by');
      for (let round = 0; round < 3; round++) await Promise.all(stores.map(pushOnce));
      const pushed = Promise.all(stores.map(pushOnce));
      await job.kill(0);
      await pushed;
      await expectSum(stores[1], 4 * 2);
      expect(job.stderr).toContain('takes over');
    });

    it('that is stopped while it answers writes nothing to what was given up', { timeout: 240_000 }, async () => {
      const seed = systemRandom.integer(2 ** 31);
      const random = seededRandom(seed);
      await using job = await KVJob.start({ workers: 1, servers: 1, hosts: 'apart', env: plane });
      const [kv] = await job.stores('dist_async');
      await begin([kv]);
      await pushOnce(kv);
      let givenUp = 0;
      for (let round = 0; round < 60 && givenUp < 6; round++) {
        const outs = counts.map((count) => kv.tensor('float64', [count]));
        const pulled = kv.pull(keys, outs, { timeoutMs: 300 });
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
        await expectSum(kv, 1);
        for (const { data } of outs) expect(new Set(data), `seed ${seed}, round ${round}`).toEqual(new Set([7]));
      }
      expect(givenUp, `seed ${seed}`).toBeGreaterThan(0);
    });
  });
}
