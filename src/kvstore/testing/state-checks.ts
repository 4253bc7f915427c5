/** Checks of saved state that is not what it should be: of other parameters, or damaged. */
import assert from 'node:assert/strict';
import { readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { KVStore } from '../values/types.ts';
import { refuses, syncTypes as sync, type KVCheck } from './kv-check.ts';
import { expectAll, filled } from './known-values.ts';

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
      await lead(kv, () => kv.saveState(folder));
      await kv.pushPull('saved', new Float32Array(5).fill(2));
      await kv.init(
        'later',
        filled('float32', 3, () => 9),
      );
      await lead(kv, () => refuses('mismatch', /'later' is not in the files; init the same parameters/, () => kv.loadState(folder)));
      const [saved, later] = [new Float32Array(5), new Float32Array(3)];
      await kv.pull(['saved', 'later'], [saved, later]);
      expectAll(saved, 'float32', () => 2 * kv.numWorkers, 'saved');
      expectAll(later, 'float32', () => 9, 'later');
      assert.equal((await kv.info('saved')).version, 1);
      await kv.pushPull('later', later);
      expectAll(later, 'float32', () => 9 * kv.numWorkers, 'pushed afterwards');
    },
  },
  {
    name: 'loadState: what was saved before a damaged state; an error that names the files when all are',
    types: sync,
    fresh: true,
    async run(kv, folder) {
      // More than one slice, so that every server has a part.
      const count = 300_000;
      const value = new Float32Array(count);
      await kv.init('w', value);
      for (const step of [1, 2]) {
        await kv.pushPull('w', value.fill(step));
        await lead(kv, () => kv.saveState(folder));
      }
      await kv.pushPull('w', value.fill(3));
      const check = async (expected: number, what: string): Promise<void> => {
        await kv.pull('w', value);
        expectAll(value, 'float32', () => expected * kv.numWorkers, what);
        assert.equal((await kv.info('w')).version, expected, what);
      };
      // Of several servers one has lost the latest: all go back to the one before.
      await lead(kv, async () => {
        const [latest] = (await savedFiles(folder)).map((files) => files.at(-1)!);
        await flipBit(latest);
        await kv.loadState(folder);
      });
      await check(1, 'the one before');
      await kv.pushPull('w', value.fill(2));
      await lead(kv, async () => {
        for (const [before] of await savedFiles(folder)) await flipBit(before);
        await refuses('protocol', /snapshot-0+\d\.safetensors: damaged: /, () => kv.loadState(folder));
      });
      await check(2, 'unchanged');
      // The next save makes it good.
      await lead(kv, () => kv.saveState(folder));
      await kv.pushPull('w', value.fill(7));
      await lead(kv, () => kv.loadState(folder));
      await check(2, 'saved again');
    },
  },
];
