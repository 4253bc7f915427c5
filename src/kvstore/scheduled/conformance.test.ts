/** The conformance suite of stores, on scheduled stores: one process, and workers that sum by all-reduce. */
import { describe, it } from 'vitest';
import { temporaryFolder } from '../../base/testing/temporary-folder.ts';
import { UnhurriedClock } from '../../base/testing/unhurried-clock.ts';
import { startRanks } from '../../group/testing/in-process-world.ts';
import { createKernels } from '../../memory/kernels/create-kernels.ts';
import { createParameterKernels } from '../../memory/parameter-kernels/create-parameter-kernels.ts';
import { CheckedStore } from '../calls/checked-store.ts';
import { CollectiveBackend } from '../collective/collective-backend.ts';
import { kvstoreChecks } from '../conformance.ts';
import type { KVCheck } from '../testing/kv-check.ts';
import { create } from '../stores/create.ts';
import type { KVStore } from '../calls/types.ts';
import { ScheduledKVStore } from './scheduled-kvstore.ts';

const clock = new UnhurriedClock();
/** Each part is a parameter of its own: of a push in parts one may be refused alone. */
const isAtomic = ({ name }: KVCheck): boolean => name.startsWith('a gradient that is not finite');
/** Checks of rows again, of tables in parts. */
const ofRows = kvstoreChecks.filter(({ name }) => /\brows\b/.test(name));
const scheduled = (store: KVStore, check: KVCheck, partitionBytes: number): ScheduledKVStore =>
  new ScheduledKVStore(store, {
    ...(store.numWorkers === 1 ? { creditBytes: 1024 } : {}),
    partitionBytes: isAtomic(check) ? 2 ** 30 : partitionBytes,
  });

async function inFolder(body: (folder: string) => Promise<unknown>): Promise<void> {
  const folder = temporaryFolder('scheduled');
  await body(folder);
}

describe.each([
  { partitionBytes: 65_536, all: kvstoreChecks },
  { partitionBytes: 64, all: ofRows },
])('parts of $partitionBytes bytes', ({ partitionBytes, all }) => {
  describe('of a scheduled local store', () => {
    it.each(all.filter(({ types }) => types.includes('local')))('$name', (check) =>
      inFolder(async (folder) => {
        await using kv = scheduled(await create('local'), check, partitionBytes);
        await check.run(kv, folder);
      }),
    );
  });

  describe('of scheduled collective stores of two workers', () => {
    it.each(all.filter(({ types }) => types.includes('collective')))('$name', (check) =>
      inFolder(async (folder) => {
        await using world = await startRanks(2);
        await world.each(async (group) => {
          const options = { group, kernels: createKernels(), parameterKernels: createParameterKernels(), clock, timeoutMs: 60_000 };
          await using kv = scheduled(new CheckedStore(await CollectiveBackend.open(options)), check, partitionBytes);
          await check.run(kv, folder);
        });
      }),
    );
  });
});
