/** `shoal run --workers --servers --min`: workers are killed, leave or are stopped, the others go on, and processes that come in their place go on
 *  with them. */
import { describe, expect, it } from 'vitest';
import { shoal, type Ended, type Running } from '../fixtures/launch-harness.ts';
import { fixtureScript } from '../support/fixtures.ts';

const script = fixtureScript('kvstore-returning');

interface Job {
  readonly type: 'dist_sync' | 'dist_async';
  readonly awaited: string;
  readonly ends: readonly string[];
  readonly flags?: readonly string[];
  readonly env?: Record<string, string>;
}

function run({ type, awaited, ends, flags = [], env = {} }: Job): Running {
  const all = ['--workers', '3', '--servers', '2', '--min', '1', '--max-restarts', '3', ...flags];
  return shoal(['run', ...all, script, type, awaited, ...ends], { env: { SHOAL_KV_SLICE_BYTES: '100000', ...env } });
}

/** All that have gone on to the end have found their books right. */
function expectExact({ code, stdout, stderr }: Ended, ranks: readonly number[]): void {
  expect(code, stdout + stderr).toBe(0);
  const exact = [...stdout.matchAll(/as rank (\d+): exact/g)].map(([, rank]) => Number(rank));
  expect(exact.sort((a, b) => a - b)).toEqual(ranks);
}

describe.each(['dist_sync', 'dist_async'] as const)('%s', (type) => {
  it('goes on without a worker that is killed, and with the one that is started in its place', async () => {
    await using job = run({ type, awaited: '3', ends: ['1:SIGKILL:5'] });
    const ended = await job.ended;
    expectExact(ended, [0, 2, 3]);
    expect(ended.stderr).toMatch(/world 3 → 2: rank 1 was killed by SIGKILL.*; the others go on; it is started again in 1 s \(1 of 3\)/);
    expect(ended.stderr).toContain('world 2 → 3: rank 3 (started again for rank 1) joined');
  });

  it('goes on without one that SIGTERM ends, which stays away', async () => {
    await using job = run({ type, awaited: '0', ends: ['1:SIGTERM:5'] });
    expectExact(await job.ended, [0, 2]);
  });

  it('goes on when worker 0 is killed, and again', async () => {
    await using job = run({ type, awaited: '4', ends: ['0:SIGKILL:5', '3:SIGKILL:5'] });
    expectExact(await job.ended, [1, 2, 4]);
  });

  it('goes on when two are killed at once', async () => {
    await using job = run({ type, awaited: '3,4', ends: ['1:SIGKILL:5', '2:SIGKILL:5'] });
    expectExact(await job.ended, [0, 3, 4]);
  });

  it('takes out one that is stopped, which is told so when it goes on, and comes back as another', async () => {
    await using job = run({ type, awaited: '3', ends: ['1:SIGSTOP:5'], env: { SHOAL_KV_SILENCE_MS: '4000' } });
    const [[, pid]] = await job.output(/worker 1 begins \((\d+)\)/, 1);
    await job.output(/has been silent/, 1);
    process.kill(Number(pid), 'SIGCONT');
    const ended = await job.ended;
    expectExact(ended, [0, 2, 3]);
    expect(ended.stderr).toMatch(/worker 1 counts as lost: it has been silent for \d+ s \(SHOAL_KV_SILENCE_MS\)/);
  });

  it('goes on when a worker is killed while a standby takes over', async () => {
    const flags = ['--replicas', '2'];
    await using job = run({
      type,
      awaited: '3',
      ends: ['1:SIGKILL:5'],
      flags,
      env: { SHOAL_KV_SILENCE_MS: '4000', SHOAL_LOG_LEVEL: 'info' },
    });
    const [[, pid]] = await job.output(/server 0 started \(pid (\d+)\)/, 1);
    await job.output(/world 3 → 2/, 1);
    process.kill(Number(pid), 'SIGKILL');
    expectExact(await job.ended, [0, 2, 3]);
  });
});

it('fewer workers than --min end the job', async () => {
  await using job = run({
    type: 'dist_sync',
    awaited: '0',
    ends: ['1:SIGKILL:5'],
    flags: ['--min', '3', '--max-restarts', '0', '--grace', '1s'],
  });
  const { code, stderr } = await job.ended;
  expect(code).toBe(137);
  expect(stderr).toMatch(/rank 1 failed first: it was killed by SIGKILL/);
});

it('--min is not for worker groups', async () => {
  const { code, stderr } = await shoal(['run', '--workers', '4', '--servers', '1', '--worker-groups', '2', '--min', '2', script]).ended;
  expect([code, stderr]).toEqual([2, expect.stringContaining('--min with --servers is for one group of workers')]);
});
