/** Processes that are killed while they save: what is left is a whole snapshot, and none that was durable is lost. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';
import { seededRandom } from '../src/base/random.ts';
import { SnapshotFolder } from '../src/kvstore/checkpoint/snapshot-folder.ts';

const program = fileURLToPath(new URL('fixtures/kvstore-snapshots.ts', import.meta.url));
const rounds = 12;

it('kill -9 at any moment leaves a whole snapshot, no older than the last that was saved', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'shoal-killed-'));
  const random = seededRandom(20_261_121);
  let first = 1;
  try {
    for (let round = 0; round < rounds; round++) {
      const child = spawn(process.execPath, ['--import', 'tsx', program, folder, String(first), String(2 ** (18 + random.integer(5)))], {
        stdio: ['ignore', 'pipe', 'inherit'],
      });
      const ended = once(child, 'exit');
      let saving = first;
      let saved = first - 1;
      // Some lines on, wherever in a save that is; a few turns of this loop later, to move within it.
      let lines = 1 + random.integer(6);
      const reader = createInterface({ input: child.stdout });
      for await (const line of reader) {
        const [what, number] = line.split(' ');
        if (what === 'saving') saving = Number(number);
        else saved = Number(number);
        if (--lines !== 0) continue;
        for (let turn = random.integer(4); turn > 0; turn--) await new Promise(setImmediate);
        child.kill('SIGKILL');
      }
      expect(await ended).toEqual([null, 'SIGKILL']);
      const snapshot = await new SnapshotFolder(folder).load();
      const version = Number(snapshot?.metadata.version ?? 0);
      expect(version).toBeGreaterThanOrEqual(saved);
      expect(version).toBeLessThanOrEqual(saving);
      for (const { data } of snapshot?.tensors.values() ?? []) expect(data.every((byte) => byte === (version & 0xff))).toBe(true);
      first = version + 1;
    }
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}, 60_000);
