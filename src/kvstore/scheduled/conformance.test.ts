/** The conformance suite of stores, on scheduled stores: one process, and workers that sum by all-reduce. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, it } from 'vitest';
import { UnhurriedClock } from '../../base/testing/unhurried-clock.ts';
import { startRanks } from '../../group/testing/in-process-world.ts';
import { createKernels } from '../../memory/kernels/create-kernels.ts';
import { createParameterKernels } from '../../memory/parameter-kernels/create-parameter-kernels.ts';
import { CollectiveStore } from '../collective/collective-store.ts';
import { kvstoreChecks } from '../conformance.ts';
import type { KVCheck } from '../testing/kv-check.ts';
import { create } from '../stores/create.ts';
import type { KVStore } from '../values/types.ts';
import { ScheduledKVStore } from './scheduled-kvstore.ts';

const clock = new UnhurriedClock();
/** Each part is a parameter of its own: of a push in parts one may be refused alone. */
const isAtomic = ({ name }: KVCheck): boolean => name.startsWith('a gradient that is not finite');
const scheduled = (store: KVStore, check: KVCheck): ScheduledKVStore =>
  new ScheduledKVStore(store, {
    ...(store.numWorkers === 1 ? { creditBytes: 1024 } : {}),
    partitionBytes: isAtomic(check) ? 2 ** 30 : 65_536,
  });

async function inFolder(body: (folder: string) => Promise<unknown>): Promise<void> {
  const folder = await mkdtemp(join(tmpdir(), 'shoal-scheduled-'));
  try {
    await body(folder);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

describe('a scheduled local store', () => {
  it.each(kvstoreChecks.filter(({ types }) => types.includes('local')))('$name', (check) =>
    inFolder(async (folder) => {
      await using kv = scheduled(await create('local'), check);
      await check.run(kv, folder);
    }),
  );
});

describe.each([2])('scheduled collective stores of %i workers', (n) => {
  it.each(kvstoreChecks.filter(({ types }) => types.includes('collective')))('$name', (check) =>
    inFolder(async (folder) => {
      await using world = await startRanks(n);
      await world.each(async (group) => {
        const options = { group, kernels: createKernels(), parameterKernels: createParameterKernels(), clock, timeoutMs: 60_000 };
        await using kv = scheduled(await CollectiveStore.open(options), check);
        await check.run(kv, folder);
      });
    }),
  );
});
