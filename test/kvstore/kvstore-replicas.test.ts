/** Servers with standbys under the launcher, killed, stopped and resumed while workers push: the job goes on, and its workers'
 *  books balance. `test/kvstore/server-kills.ts` does more of the same. */
import { expect, test } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { runServerKills } from './server-kills.ts';
import { freezeSilenceMs, LaunchedServers } from '../support/launched-servers.ts';

const store = 'dist_sync';

async function expectBalance(job: LaunchedServers, workers: number): Promise<void> {
  await job.finish();
  expect(job.output.match(/worker \d: \d+ pushes, exact/g)).toHaveLength(workers);
}

test('a standby takes over, and gets a standby of its own: three kills in a row', async () => {
  await using job = new LaunchedServers({ workers: 2, servers: 1, store });
  const [server] = job.servers;
  for (let kill = 0; kill < 3; kill++) {
    await job.stoodBy(server);
    await job.killPrimary(server);
  }
  await job.stoodBy(server);
  await job.killStandby(server);
  await job.stoodBy(server);
  await expectBalance(job, 2);
}, 300_000);

test('without restarts, a job survives each of its servers once, or their standbys', async () => {
  await using job = new LaunchedServers({ workers: 1, servers: 2, store, flags: ['--server-restarts', '0'] });
  const [first, second] = job.servers;
  await Promise.all([job.stoodBy(first), job.stoodBy(second)]);
  await job.killPrimary(first);
  await job.killStandby(second);
  await expectBalance(job, 1);
  expect(job.output).not.toMatch(/the job ended/);
}, 300_000);

test('the last process of a server that is killed ends the job, which says so', async () => {
  await using job = new LaunchedServers({ workers: 1, servers: 1, store, flags: ['--server-restarts', '0'] });
  const [server] = job.servers;
  await job.stoodBy(server);
  await job.killStandby(server);
  job.signal(server.primary, 'SIGKILL');
  expect(await job.ended).toBe(137);
  expect(job.output).toMatch(/the job ended: (server|standby) 0 was killed by SIGKILL/);
}, 300_000);

test('with checkpoints: killed, started again, stopped when it serves again, resumed when it does not', async () => {
  const folder = temporaryFolder('replicas');
  const flags = ['--checkpoint-dir', folder];
  const env = { SHOAL_KV_CHECKPOINT_MS: '100' };
  await using job = new LaunchedServers({ workers: 2, servers: 1, store, silenceMs: freezeSilenceMs, flags, env });
  const [server] = job.servers;
  for (let time = 0; time < 2; time++) {
    await job.stoodBy(server);
    await job.killPrimary(server);
    await job.stoodBy(server);
    await job.freezePrimary(server);
  }
  await job.stoodBy(server);
  await expectBalance(job, 2);
}, 300_000);

test.each([
  { kind: 'dist_sync', seed: 5 },
  { kind: 'dist_async', seed: 6 },
] as const)(
  'at random, $kind',
  async ({ kind, seed }) => {
    const done = await runServerKills({ kills: 5, seed, store: kind });
    expect([...done.values()].reduce((sum, times) => sum + times, 0)).toBe(5);
  },
  300_000,
);
