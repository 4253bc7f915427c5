/** Snapshots of servers, as files of real processes that are killed while they save: a whole snapshot is left, and none that was
 *  durable is lost; other servers can load it. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { symlink } from 'node:fs/promises';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { expect, it } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { seededRandom } from '../../src/base/random.ts';
import { SnapshotFolder } from '../../src/checkpoint/snapshot-folder.ts';
import { fixtureCommand } from '../support/fixtures.ts';
import { killServers } from '../soaks/checkpoint-kills.ts';
import { KVJob } from '../support/kv-job.ts';

const [program, ...args] = fixtureCommand('kvstore-snapshots');
const rounds = 12;

it('kill -9 at any moment leaves a whole snapshot, no older than the last that was saved', async () => {
  const folder = temporaryFolder('killed');
  const random = seededRandom(20_261_121);
  let first = 1;
  for (let round = 0; round < rounds; round++) {
    const child = spawn(program, [...args, folder, String(first), String(2 ** (18 + random.integer(5)))], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const ended = once(child, 'exit');
    let saving = first;
    let saved = first - 1;
    // The kill comes some lines on, anywhere in a save; a few turns of this loop later, to move within it.
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
});

it('kill -9 of a server that saves checkpoints, or what saveState asks for, leaves what was saved last, and nothing beside it', async () => {
  const random = seededRandom(20_261_124);
  await killServers({ kills: 3, random, folder: temporaryFolder('killed') });
});

it.each(['itself', 'by a link'])('the folder of checkpoints, %s, takes no other state', async (how) => {
  const folder = temporaryFolder('checkpoints');
  const checkpointDir = join(folder, 'checkpoints');
  const named = how === 'itself' ? checkpointDir : join(folder, 'link');
  if (how === 'by a link') await symlink(checkpointDir, named);
  await using job = await KVJob.start({ workers: 1, servers: 1, checkpointDir, env: { SHOAL_KV_CHECKPOINT_MS: '20' } });
  const [kv] = await job.stores('dist_sync');
  await kv.init('w', new Float32Array(4));
  // The folder is there.
  await expect.poll(() => existsSync(join(checkpointDir, 'server-0-0')), { timeout: 30_000 }).toBe(true);
  for (const call of ['saveState', 'loadState'] as const)
    await expect(kv[call](named)).rejects.toMatchObject({
      code: 'usage',
      message: expect.stringMatching(/checkpoints.*another folder/) as string,
    });
  await kv.saveState(folder);
});

it('state that two servers saved is loaded by three, which cut it otherwise', async () => {
  const folder = temporaryFolder('resliced');
  const count = 300_000;
  {
    await using job = await KVJob.start({ workers: 1, servers: 2, env: { SHOAL_KV_SLICE_BYTES: '65536' } });
    const [kv] = await job.stores('dist_sync');
    await kv.init(['large', 'small'], [Float32Array.from({ length: count }, (_, k) => k), Float32Array.of(1, 2, 3)]);
    await kv.setOptimizer({ name: 'momentum', learningRate: 1, momentum: 0.5 });
    await kv.push('large', new Float32Array(count).fill(1));
    await kv.saveState(folder);
  }
  await using job = await KVJob.start({ workers: 1, servers: 3, env: { SHOAL_KV_SLICE_BYTES: '100000' } });
  const [kv] = await job.stores('dist_sync');
  await kv.init(['small', 'large'], [new Float32Array(3), new Float32Array(count)]);
  await kv.loadState(folder);
  const [large, small] = [new Float32Array(count), new Float32Array(3)];
  await kv.pull(['large', 'small'], [large, small]);
  expect(large.findIndex((value, k) => value !== k - 1)).toBe(-1);
  expect([...small]).toEqual([1, 2, 3]);
  // Velocity goes on where it was: −1 → −0.5.
  await kv.pushPull('large', new Float32Array(count), large);
  expect(large.findIndex((value, k) => value !== k - 1.5)).toBe(-1);
  expect((await kv.info('large')).version).toBe(2);
});
