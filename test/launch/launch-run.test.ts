/** `shoal run` with real processes: the start and the end of ranks, whatever happens, and the removal of everything. */
import { readFile } from 'node:fs/promises';
import { describe, expect, it } from 'vitest';
import { sleep, systemClock } from '../../src/base/clock.ts';
import { nativeUnavailableReason } from '../../src/memory/native.ts';
import { allGone, isRunning, pidsOf, rankScript, shoalRun, start, storeScript } from '../fixtures/launch-harness.ts';

describe('shoal run: ranks', () => {
  it('of two jobs started at once do not meet', async () => {
    const jobs = await Promise.all([shoalRun('-n', '2', storeScript).ended, shoalRun('-n', '2', storeScript).ended]);
    for (const { code, stdout } of jobs) {
      expect(code).toBe(0);
      expect(stdout.match(/first true/g)).toHaveLength(1);
    }
  });

  it('have a process group each, and no session of their own unless a shell starts them', async () => {
    const { stdout } = await shoalRun('-q', '--no-node', '-n', '2', 'sh', '-c', 'cut -d " " -f 1,5,6 /proc/$$/stat').ended;
    const ranks = [...stdout.matchAll(/\] (\d+) (\d+) (\d+)$/gm)].map((match) => match.slice(1).map(Number));
    expect(ranks).toHaveLength(2);
    const [, , , ownSession] = (await readFile('/proc/self/stat', 'utf8')).split(') ')[1].split(' ').map(Number);
    for (const [pid, group, session] of ranks) {
      expect(group).toBe(pid);
      expect(session).toBe(nativeUnavailableReason() === undefined ? ownSession : pid);
    }
  });

  it('can be any program', async () => {
    const { code, stdout } = await shoalRun('--no-node', '-n', '2', 'sh', '-c', 'echo rank $RANK').ended;
    expect(code).toBe(0);
    expect(stdout.trim().split('\n').sort()).toEqual(['[rank 0] rank 0', '[rank 1] rank 1']);
    const missing = await shoalRun('--no-node', 'no-such-program').ended;
    expect(missing.code).toBe(127);
    expect(missing.stderr).toContain('the program was not found');
  });
});

describe('shoal run: a reader that goes away', () => {
  it('ends the ranks', async () => {
    await using job = shoalRun('-n', '2', '--kill-after', '500ms', rankScript, 'forever');
    const pids = pidsOf(await job.output(/started \(pid (\d+)\)/, 2));
    await job.output(/again/, 10);
    job.child.stdout!.destroy();
    const { code, stderr } = await job.ended;
    expect(code).toBe(1);
    expect(stderr).toContain('standard output cannot be written (nobody reads it any more): ending all ranks');
    expect(stderr).not.toContain('SIGTERM: passing');
    await allGone(pids);
  });

  it('and so does a full disk, which is reported', async () => {
    const command = `exec "$0" dist/tools/cli/main.js run -n 2 --kill-after 500ms ${rankScript} forever > /dev/full`;
    const { code, stderr } = await start(['sh', '-c', command, process.execPath]).ended;
    expect(code).toBe(1);
    expect(stderr).toMatch(/standard output cannot be written \(.*ENOSPC.*\): ending all ranks/);
    expect(stderr).toMatch(/standard output could not be written/);
  });
});

describe('shoal run: signals', () => {
  it('a rank that ignores SIGTERM is killed', async () => {
    await using job = shoalRun('-n', '2', '--grace', '0', '--kill-after', '100ms', rankScript, 'signals', 'deaf');
    const pids = pidsOf(await job.output(/ready (\d+)/, 2));
    process.kill(pids[0], 'SIGKILL');
    const { stderr } = await job.ended;
    expect(stderr).toContain('is still running 100 ms after SIGTERM: SIGKILL');
    expect(pids.some(isRunning)).toBe(false);
  });

  it('forwards SIGINT and ends with 130 when the ranks have ended', async () => {
    await using job = shoalRun('-n', '2', rankScript, 'signals');
    const pids = pidsOf(await job.output(/ready (\d+)/, 2));
    process.kill(job.pid, 'SIGINT');
    const { code, stdout } = await job.ended;
    expect(code).toBe(130);
    expect(stdout.match(/got SIGINT/g)).toHaveLength(2);
    await allGone(pids);
  });

  it('a second SIGINT kills at once', async () => {
    await using job = shoalRun('-n', '2', '--kill-after', '10min', rankScript, 'signals', 'deaf');
    const pids = pidsOf(await job.output(/ready (\d+)/, 2));
    process.kill(job.pid, 'SIGINT');
    await job.output(/got SIGINT/, 2);
    // At the same moment it would be the same request, which is how `timeout` sends them; while the launcher ends, nobody listens.
    await sleep(systemClock, 200);
    process.kill(job.pid, 'SIGINT');
    expect((await job.ended).code).toBe(130);
    await allGone(pids);
  });

  it('a signal that comes twice at once is one', async () => {
    await using job = shoalRun('-n', '2', '--kill-after', '10min', rankScript, 'signals');
    await job.output(/ready (\d+)/, 2);
    process.kill(job.pid, 'SIGINT');
    process.kill(job.pid, 'SIGINT');
    const { code, stderr } = await job.ended;
    expect(code).toBe(130);
    expect(stderr).not.toMatch(/again|SIGKILL/);
  });

  it('SIGTERM reaches the ranks, and those that stay are killed', async () => {
    await using job = shoalRun('-n', '2', '--kill-after', '2s', rankScript, 'signals');
    const pids = pidsOf(await job.output(/ready (\d+)/, 2));
    process.kill(job.pid, 'SIGTERM');
    const { code, stdout } = await job.ended;
    expect(code).toBe(143);
    expect(stdout).toContain('got SIGTERM');
    await allGone(pids);
  });
});

describe('shoal run: nothing is left', () => {
  it('when the launcher is killed with SIGKILL, nor of what ranks have started', async () => {
    await using job = shoalRun('-n', '2', rankScript, 'family');
    const pids = pidsOf(await job.output(/ready (\d+) (\d+)/, 2));
    expect(pids).toHaveLength(4);
    expect(pids.every(isRunning)).toBe(true);
    process.kill(job.pid, 'SIGKILL');
    await allGone(pids);
  });

  it.skipIf(nativeUnavailableReason() !== undefined)(
    'when the launcher and its guard are killed at once (skipped: without the addon a shell starts the ranks)',
    async () => {
      await using job = shoalRun('-n', '2', rankScript, 'stay');
      const pids = pidsOf(await job.output(/ready (\d+)/, 2));
      const children = (await readFile(`/proc/${job.pid}/task/${job.pid}/children`, 'utf8')).trim().split(' ').map(Number);
      const others = children.filter((pid) => !pids.includes(pid));
      expect(others).toHaveLength(1);
      process.kill(others[0], 'SIGKILL');
      process.kill(job.pid, 'SIGKILL');
      await allGone(pids);
    },
  );

  it('when a rank ends well and leaves a process that holds its output', async () => {
    await using job = shoalRun('-n', '1', rankScript, 'family', 'leave');
    const pids = pidsOf(await job.output(/ready (\d+) (\d+)/, 1));
    const { code } = await job.ended;
    expect(code).toBe(0);
    await allGone(pids);
  });
});
