/** Checks of saved state that is not what it should be: of other parameters, or damaged. */
import assert from 'node:assert/strict';
import { readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { sleep, systemClock } from '../../base/clock.ts';
import type { OptimizerSpec } from '../../ps/optimizers/optimizer.ts';
import type { KVStore } from '../calls/types.ts';
import { refuses, syncTypes as sync, type KVCheck } from './kv-check.ts';
import { expectAll, filled } from './known-values.ts';

/** Two minutes, for what hangs. */
const waitsMax = 2400;
const waitMs = 50;

/** Worker 0 does it between two barriers. */
async function lead(kv: KVStore, action: () => Promise<void>): Promise<void> {
  await kv.barrier();
  if (kv.rank === 0) await action();
  await kv.barrier();
}

/** The files of saves, by place, the latest last. */
async function savedFiles(folder: string): Promise<string[][]> {
  const entries = await readdir(folder, { recursive: true });
  const places = new Map<string, string[]>();
  for (const entry of entries.filter((name) => name.endsWith('.safetensors')).sort()) {
    const place = entry.slice(0, entry.lastIndexOf('snapshot'));
    places.set(place, [...(places.get(place) ?? []), join(folder, entry)]);
  }
  return [...places.values()];
}

async function flipBit(path: string): Promise<void> {
  const bytes = await readFile(path);
  bytes[Math.floor(bytes.length / 2)] ^= 4;
  await writeFile(path, bytes);
}

/** Every worker's pushes change what is stored by their sum, however many server groups there are. */
const adding: OptimizerSpec = { name: 'sgd', learningRate: 1, rescale: -1 };

/** The sum of the values that every worker pushed, one after the other, and the number of updates that they make. */
function expected(kv: KVStore, pushed: readonly number[]): { readonly sum: number; readonly version: number } {
  const sum = pushed.reduce((a, b) => a + b, 0) * kv.numWorkers;
  return { sum, version: (pushed.length * kv.numWorkers) / kv.workersPerGroup };
}

/** Checks that every worker sees what is stored. With `all: 'soon'`, other server groups' updates may be on their way. */
async function expectStored(kv: KVStore, key: string, pushed: readonly number[], all: 'now' | 'soon', first = 0): Promise<void> {
  const { sum, version } = expected(kv, pushed);
  const { shape } = await kv.info(key);
  const value = new Float32Array(shape[0]);
  for (let waits = all === 'soon' ? waitsMax : 0; ; waits--) {
    await kv.pull(key, value);
    if (waits === 0 || value.every((each) => each === first + sum)) break;
    await sleep(systemClock, waitMs);
  }
  expectAll(value, 'float32', () => first + sum, `'${key}' after ${pushed.join(', ')}`);
  const info = await kv.info(key);
  assert.deepEqual({ version: info.version, staleness: info.staleness }, { version, staleness: 0 });
}

export const stateChecks: readonly KVCheck[] = [
  {
    name: 'loadState: state of other parameters is refused, and nothing changes',
    types: sync,
    fresh: true,
    async run(kv, folder) {
      await kv.init(
        'saved',
        filled('float32', 5, () => 1),
      );
      await lead(kv, () => kv.setOptimizer(adding));
      await lead(kv, () => kv.saveState(folder));
      await kv.push('saved', new Float32Array(5).fill(2));
      await kv.init(
        'later',
        filled('float32', 3, () => 9),
      );
      await lead(kv, () => refuses('mismatch', /'later' is not in the files; init the same parameters/, () => kv.loadState(folder)));
      await expectStored(kv, 'saved', [2], 'soon', 1);
      await expectStored(kv, 'later', [], 'now', 9);
      await kv.barrier();
      await kv.push('later', new Float32Array(3).fill(4));
      await expectStored(kv, 'later', [4], 'soon', 9);
    },
  },
  {
    name: 'loadState: what was saved before a damaged state; an error that names the files when all are',
    types: sync,
    fresh: true,
    async run(kv, folder) {
      // More than one slice, so that every server has a part.
      const gradient = new Float32Array(300_000);
      await kv.init('w', gradient);
      await lead(kv, () => kv.setOptimizer(adding));
      for (const step of [1, 2]) {
        await kv.push('w', gradient.fill(step));
        await lead(kv, () => kv.saveState(folder));
      }
      await kv.push('w', gradient.fill(3));
      // One of several servers has lost its latest file: all go back to the one before.
      await lead(kv, async () => {
        const [latest] = (await savedFiles(folder)).map((files) => files.at(-1)!);
        await flipBit(latest);
        await kv.loadState(folder);
      });
      await expectStored(kv, 'w', [1], 'now');
      await kv.barrier();
      await kv.push('w', gradient.fill(2));
      await lead(kv, async () => {
        for (const [before] of await savedFiles(folder)) await flipBit(before);
        await refuses('protocol', /snapshot-0+\d\.safetensors: damaged: /, () => kv.loadState(folder));
      });
      await expectStored(kv, 'w', [1, 2], 'soon');
      // The next save makes it good.
      await lead(kv, () => kv.saveState(folder));
      await kv.push('w', gradient.fill(7));
      await lead(kv, () => kv.loadState(folder));
      await expectStored(kv, 'w', [1, 2], 'now');
      await kv.barrier();
      await kv.push('w', gradient.fill(5));
      await expectStored(kv, 'w', [1, 2, 5], 'soon');
    },
  },
];
