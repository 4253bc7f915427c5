/** `shoal run --min --max-restarts`: lost ranks are started again alone, whatever their program makes of it. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { allGone, pidsOf, shoal, shoalRun, type Ended } from '../fixtures/launch-harness.ts';
import { fixtureScript } from '../support/fixtures.ts';

/** Rank 1 fails. One that is started again does what `again` says; the others end when it has written the file that is named. */
function program(again: string, rest = ''): string[] {
  const newcomer = `if [ "$SHOAL_JOIN" = 1 ]; then ${again}; fi`;
  return ['--no-node', 'sh', '-c', `${newcomer}; [ $RANK = 1 ] && exit 3; ${rest} until [ -e done ]; do sleep 0.05; done`];
}

/** A job of three ranks that goes on with two. */
async function run(restarts: number, ...rest: readonly string[]): Promise<Ended> {
  const cwd = temporaryFolder('elastic');
  await using job = shoal(['run', '-n', '3', '--min', '2', '--max-restarts', String(restarts), '--log-dir', 'logs', ...rest], { cwd });
  return await job.ended;
}

describe('a rank that is started again alone', () => {
  it('has a number of its own and the place of the lost one; the others are not touched', async () => {
    const { code, stdout, stderr } = await run(
      3,
      '--json',
      '-',
      ...program('echo "as $RANK of $WORLD_SIZE at $LOCAL_RANK"; touch done; exit 0'),
    );
    expect(code, stderr).toBe(0);
    expect(stdout).toContain('[rank 3] as 3 of 3 at 1\n');
    expect(stderr).toMatch(/world 3 → 2: rank 1 exited with code 3; the others go on; it is started again in 1 s \(1 of 3\)/);
    expect(stderr).toContain('rank 3 (started again for rank 1) did not join: rank 3 exited with code 0');
    const { changes } = JSON.parse(stdout.slice(stdout.indexOf('{'))) as { changes: unknown };
    expect(changes).toEqual([{ seconds: expect.any(Number) as number, from: 3, to: 2, rank: 1, text: 'exited with code 3' }]);
  });

  it('and fails each time is given up after its restarts, and the job ends well', async () => {
    const { code, stderr } = await run(2, ...program('[ $RANK = 4 ] && touch done; exit 4'));
    expect(code, stderr).toBe(0);
    expect(stderr).toContain(
      'rank 3 (started again for rank 1) did not join: rank 3 exited with code 4; it is started again in 2 s (2 of 2)',
    );
    expect(stderr).not.toContain('failed first');
  });

  it('and still waits when the others have ended well is dismissed without a word', async () => {
    const { code, stdout, stderr } = await run(3, ...program('echo "pid $$"; touch done; exec sleep 1000'));
    expect(code, stderr).toBe(0);
    expect(stderr).not.toMatch(/SIGTERM|did not join|failed/);
    await allGone(pidsOf([...stdout.matchAll(/pid (\d+)/g)]));
  });

  it('ends with the job when too few are left, and when the launcher is told to end', async () => {
    const few = await run(
      1,
      '--grace',
      '50ms',
      ...program(
        'echo "pid $$"; touch done; exec sleep 1000',
        '[ $RANK = 2 ] && { until [ -e done ]; do sleep 0.05; done; exit 5; }; sleep 1000;',
      ),
    );
    expect(few.stderr).toMatch(/rank 2 failed first: it exited with code 5/);
    await allGone(pidsOf([...few.stdout.matchAll(/pid (\d+)/g)]));
    const cwd = temporaryFolder('elastic');
    await using job = shoal(['run', '-n', '3', '--min', '2', '--max-restarts', '3', ...program('echo "pid $$"; exec sleep 1000')], { cwd });
    const pids = pidsOf(await job.output(/pid (\d+)/, 1));
    job.child.kill('SIGTERM');
    expect((await job.ended).code).toBe(143);
    await allGone(pids);
  });

  it('writes into a folder of its own', async () => {
    const logs = join(temporaryFolder('elastic'), 'logs');
    const cwd = temporaryFolder('elastic');
    const flags = ['-n', '3', '--min', '2', '--max-restarts', '1', '--log-dir', logs];
    expect((await shoal(['run', ...flags, ...program('echo here; touch done; exit 0')], { cwd }).ended).code).toBe(0);
    expect(readFileSync(join(logs, 'rank-3', 'stdout.log'), 'utf8')).toBe('here\n');
  });
});

it('ranks that shrink and never grow end well, though one waits', async () => {
  const flags = ['-n', '3', '--min', '2', '--max-restarts', '2'];
  const { code, stdout, stderr } = await shoalRun(...flags, fixtureScript('shrinks'), '200', '1:5').ended;
  expect(code, stderr).toBe(0);
  expect(stdout.match(/world 0,2, total 20100/g)).toHaveLength(2);
});
