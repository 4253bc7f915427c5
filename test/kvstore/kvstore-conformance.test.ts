/** The conformance suite of stores over real server processes: workers in this process, whose clients share its comm thread, and
 *  have sockets and memory of their own. */
import { afterAll, beforeAll, describe, test } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { asyncOptimizer, kvstoreChecks } from '../../src/kvstore/conformance.ts';
import type { KVCheck } from '../../src/kvstore/testing/kv-check.ts';
import { stateChecks } from '../../src/kvstore/testing/state-checks.ts';
import type { KVStore, KVStoreType } from '../../src/kvstore/calls/types.ts';
import { libfabricUnavailable } from '../../src/fabric/providers/libfabric/libfabric-devices.ts';
import { nativeUnavailableReason } from '../../src/memory/native.ts';
import { KVJob } from '../support/kv-job.ts';

async function run(stores: readonly KVStore[], check: KVCheck): Promise<void> {
  const folder = temporaryFolder('conformance');
  await Promise.all(stores.map((kv) => check.run(kv, folder)));
}

/** Without the addon, values are carried and computed in other ways; the order of answers and the ownership of state are not
 *  decided there. */
const missing = nativeUnavailableReason();
const worlds: readonly { type: KVStoreType; workers: number; servers: number }[] = [
  { type: 'dist_sync', workers: 3, servers: 2 },
  ...(missing === undefined ? [{ type: 'dist_async', workers: 2, servers: 2 } as const] : []),
];
if (missing !== undefined) {
  const reason = `${missing}: dist_sync carries values without it`;
  test(`dist_async, and server groups (skipped: ${reason})`, (context) => context.skip(reason));
}

const noLibfabric = libfabricUnavailable({ provider: 'tcp;ofi_rxm' });
// Its one-sided writes cannot be encrypted.
const overLibfabric = { SHOAL_FABRICS: 'libfabric', SHOAL_LIBFABRIC_PROVIDER: 'tcp;ofi_rxm', SHOAL_ENCRYPTION: 'off' };
if (noLibfabric !== undefined) test(`dist_sync over libfabric (skipped: ${noLibfabric})`, (context) => context.skip(noLibfabric));

const overZeromq = { SHOAL_KV_CARRIER: 'zeromq' };

/** Worlds whose servers map no memory of workers: values go from memory to memory over a fabric, or in messages over ZeroMQ. */
const apart = [
  { type: 'dist_sync', workers: 2, servers: 2, plane: ' on other hosts, over tcp', more: {} },
  { type: 'dist_async', workers: 2, servers: 1, plane: ' on another host, over tcp', more: {} },
  { type: 'dist_sync', workers: 2, servers: 1, plane: ' on another host, over ZeroMQ', more: overZeromq },
  ...(noLibfabric === undefined
    ? [{ type: 'dist_sync', workers: 2, servers: 1, plane: ' on another host, over libfabric', more: overLibfabric } as const]
    : []),
] as const;

describe.each([
  ...worlds.map((world) => ({ ...world, plane: '', hosts: 'one' as const, more: {} })),
  ...(missing === undefined
    ? [
        { type: 'dist_sync' as const, workers: 2, servers: 1, plane: ' over ZeroMQ', hosts: 'one' as const, more: overZeromq },
        ...apart.map((world) => ({ ...world, hosts: 'apart' as const })),
      ]
    : []),
])('$type, $workers workers, $servers servers$plane', ({ type, workers, servers, plane, hosts, more }) => {
  const checks = kvstoreChecks.filter(({ types }) => types.includes(type));
  const env = { SHOAL_TIMEOUT_MS: '60000', ...more };
  let job: KVJob;
  let stores: KVStore[];

  beforeAll(async () => {
    job = await KVJob.start({ workers, servers, hosts, env });
    stores = await job.stores(type);
    if (type === 'dist_async') await stores[0].setOptimizer(asyncOptimizer);
  });

  afterAll(() => job[Symbol.asyncDispose]());

  test.each(checks.filter(({ fresh }) => !fresh))('$name', (check) => run(stores, check));

  // Checks that need a job of their own run in the other worlds often enough.
  test.each(checks.filter(({ fresh }) => fresh && plane === ''))('$name', async (check) => {
    await using own = await KVJob.start({ workers, servers, env });
    await run(await own.stores(type), check);
  });
});

/** Promises of stores about state, with one server group and with several. */
describe.each(missing === undefined ? ['dist_sync, 2 worker groups, 2 server groups of 2'] : [])('%s', () => {
  const env = { SHOAL_TIMEOUT_MS: '60000', SHOAL_KV_SYNC_MS: '50' };

  test.each(stateChecks)('$name', async (check) => {
    await using job = await KVJob.start({ workers: 2, workerGroups: 2, servers: 4, serverGroups: 2, env });
    await run(await job.stores('dist_sync'), check);
  });
});
