/** The conformance suite of stores over real server processes: workers in this process, each with its stub thread, sockets
 *  and memory of its own. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, test } from 'vitest';
import { asyncOptimizer, kvstoreChecks } from '../src/kvstore/conformance.ts';
import type { KVCheck } from '../src/kvstore/testing/kv-check.ts';
import type { KVStore, KVStoreType } from '../src/kvstore/values/types.ts';
import { KVJob } from './support/kv-job.ts';

const timeoutMs = 90_000;

async function run(stores: readonly KVStore[], check: KVCheck): Promise<void> {
  const folder = await mkdtemp(join(tmpdir(), 'shoal-conformance-'));
  try {
    await Promise.all(stores.map((kv) => check.run(kv, folder)));
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

describe.each<{ type: KVStoreType; workers: number; servers: number }>([
  { type: 'dist_sync', workers: 3, servers: 2 },
  { type: 'dist_async', workers: 2, servers: 2 },
])('$type, $workers workers, $servers servers', ({ type, workers, servers }) => {
  const checks = kvstoreChecks.filter(({ types }) => types.includes(type));
  const env = { SHOAL_TIMEOUT_MS: '60000' };
  let job: KVJob;
  let stores: KVStore[];

  beforeAll(async () => {
    job = await KVJob.start({ workers, servers, env });
    stores = await job.stores(type);
    if (type === 'dist_async') await stores[0].setOptimizer(asyncOptimizer);
  }, timeoutMs);

  afterAll(() => job[Symbol.asyncDispose](), timeoutMs);

  test.each(checks.filter(({ fresh }) => !fresh))('$name', (check) => run(stores, check), timeoutMs);

  test.each(checks.filter(({ fresh }) => fresh))(
    '$name',
    async (check) => {
      await using own = await KVJob.start({ workers, servers, env });
      await run(await own.stores(type), check);
    },
    timeoutMs,
  );
});
