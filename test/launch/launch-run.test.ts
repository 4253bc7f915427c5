/** `shoal run` with real processes: the start and the end of ranks, whatever happens, and the removal of everything. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { sleep, systemClock } from '../../src/base/clock.ts';
import { nativeUnavailableReason } from '../../src/memory/native.ts';
import {
  absentScript,
  allGone,
  endedElsewhereScript,
  isRunning,
  noiseScript,
  rankScript,
  shoalRun,
  start,
  storeScript,
} from '../fixtures/launch-harness.ts';

const pidsOf = (matches: readonly RegExpMatchArray[]): number[] => matches.flatMap((match) => match.slice(1).filter(Boolean).map(Number));

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

describe('shoal run --json', () => {
  it('reports the outcome of the job at the end, and the rank that failed first', async () => {
    const good = await shoalRun('-q', '-n', '2', '--no-node', '--json', '-', 'echo', 'hello').ended;
    const json = good.stdout.slice(good.stdout.indexOf('{'));
    expect(good.stdout.slice(0, good.stdout.indexOf('{')).match(/hello/g)).toHaveLength(2);
    expect(JSON.parse(json)).toMatchObject({ version: 1, command: ['echo', 'hello'], ranks: 2, exitCode: 0, failure: null });
    const folder = temporaryFolder('json');
    const file = join(folder, 'new', 'result.json');
    const bad = await shoalRun('-q', '-n', '2', '--grace', '0', '--no-node', '--json', file, 'sh', '-c', 'exit $((RANK * 3))').ended;
    expect(bad.code).toBe(3);
    const result = JSON.parse(await readFile(file, 'utf8')) as Record<string, unknown>;
    expect(result).toMatchObject({ exitCode: 3, failure: { rank: 1, exitCode: 3, text: expect.any(String) as string } });
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

describe('shoal run: failures', () => {
  it("end with the failing rank's exit code, and the others are stopped", async () => {
    const { code, stderr } = await shoalRun('-n', '3', '--grace', '50ms', rankScript, 'throw', '1').ended;
    expect(code).toBe(1);
    expect(stderr).toMatch(/rank 0, rank 2 are still running after 50 ms: SIGTERM/);
    const other = await shoalRun('-n', '2', rankScript, 'exit', '1', '42').ended;
    expect(other.code).toBe(42);
  });

  it('print the first error last, where it was thrown, and everything that ranks said before', async () => {
    const { stderr } = await shoalRun('-n', '2', '--grace', '50ms', rankScript, 'throw', '1').ended;
    expect(stderr.match(/^\[rank 1\] before the end, line \d+$/gm)).toHaveLength(300);
    expect(stderr).toMatch(/^\[rank 1\] the last words\n/m);
    expect(stderr.slice(stderr.indexOf('shoal: rank 1 failed first'))).toMatch(
      /^shoal: rank 1 failed first: it exited with code 1, \d+\.\d s after the start \(pid \d+\): Error: rank 1 cannot go on\nshoal: {3}\| file:.*launch-rank\.mjs:\d+\nshoal: {3}\| +throw new Error\(.*\nshoal: {3}\| +\^\n(shoal: {3}\| {5}at .*launch-rank\.mjs:.*\n)+$/,
    );
  });

  it.each([2, 10])('of %i ranks take 12 lines at most, whichever way they fail', async (ranks) => {
    const logs = temporaryFolder('noise');
    for (const how of ['throw', 'mismatch']) {
      const { code, stdout, stderr } = await shoalRun('-n', String(ranks), '--log-dir', join(logs, how), noiseScript, how).ended;
      expect(code).toBe(1);
      expect(stdout.match(/^\[rank +\d+\] joined$/gm)).toHaveLength(ranks);
      const lines = stderr.trimEnd().split('\n');
      expect(lines.length, stderr).toBeLessThanOrEqual(12);
      expect(lines.filter((line) => !line.startsWith('shoal: '))).toEqual([]);
      expect(stderr).toMatch(
        how === 'throw'
          ? /failed first: .*: Error: my mistake\n.*noise\.mjs:\d+\n.*throw new Error\("my mistake"\)/
          : /failed first: .* disagree on collective #1[\s\S]*rank 0: all-reduce #1 float32\[4\]/,
      );
      // Files have what the terminal does not.
      expect(await readFile(join(logs, how, 'rank-0', 'stderr.log'), 'utf8')).toMatch(/ShoalError: [\s\S]*\n\nNode\.js v/);
    }
  });

  it('of a process that a rank has forked are for the rank to judge, and shown', async () => {
    const { code, stderr } = await shoalRun('-q', rankScript, 'fork').ended;
    expect(code).toBe(0);
    expect(stderr).toMatch(/^\[rank 0\] Error: the child cannot go on\n[\s\S]*^\[rank 0\] the child has ended, the rank goes on$/m);
  });

  it('a rank that ends well before it joins is named to those that wait for it, at once', async () => {
    // The test's own timeout is shorter than the ranks would wait for that rank.
    const { code, stdout } = await shoalRun('-n', '3', absentScript).ended;
    expect(code).toBe(3);
    expect(stdout.match(/peer-lost, peer 2: rank 2 exited with code 0 before it joined/g)).toHaveLength(2);
  });

  // With this grace, a process that is not told of it would be waited for longer than a test may take.
  const patient = ['-q', '--grace', '10min'];

  it('of a worker are told to the workers that wait at the servers, and the servers end with the last rank', async () => {
    const job = shoalRun(...patient, '--workers', '2', '--servers', '1', endedElsewhereScript, 'worker');
    const { code, stdout } = await job.ended;
    expect(code).toBe(3);
    expect(stdout).toMatch(/^\[rank 1\] peer-lost, peer 0: .*rank 0 exited with code 3/m);
  });

  it('of a rank are told to the groups of others, and to those that wait for a key', async () => {
    const { code, stdout } = await shoalRun(...patient, '-n', '4', endedElsewhereScript, 'rank').ended;
    expect(code).toBe(3);
    for (const rank of [1, 2, 3]) expect(stdout).toMatch(new RegExp(`^\\[rank ${rank}\\] peer-lost, peer 0: .*rank 0`, 'm'));
  });

  it('of a server are told to ranks that do not use it', async () => {
    await using job = shoalRun('--grace', '10min', '--workers', '2', '--servers', '1', endedElsewhereScript, 'server');
    await job.output(/joined/, 2);
    const [server] = pidsOf(await job.output(/server 0 started \(pid (\d+)\)/, 1));
    process.kill(server, 'SIGKILL');
    const { code, stdout } = await job.ended;
    expect(code).toBe(137);
    for (const rank of [0, 1])
      expect(stdout).toMatch(new RegExp(`^\\[rank ${rank}\\] peer-lost, peer undefined: server 0 was killed by SIGKILL`, 'm'));
  });

  it('by a signal are explained and give 128 + signal', async () => {
    await using job = shoalRun('-n', '2', '--grace', '50ms', rankScript, 'stay');
    const [victim] = pidsOf(await job.output(/ready (\d+)/, 2));
    process.kill(victim, 'SIGKILL');
    const { code, stderr } = await job.ended;
    expect(code).toBe(137);
    expect(stderr).toMatch(/rank \d failed first: it was killed by SIGKILL \(by hand, or by the system because memory ran out/);
    expect(stderr).toMatch(/rank \d failed first: .*; it wrote nothing to stderr\n$/);
  });

  it('are survived as often as --max-restarts says, each time from an empty store', async () => {
    const good = await shoalRun('-n', '2', '--grace', '0', '--max-restarts', '2', rankScript, 'restart', '2').ended;
    expect(good.code).toBe(0);
    expect(good.stdout.match(/generation 2/g)).toHaveLength(2);
    expect(good.stderr).toContain('starting all ranks again, restart 2 of 2');
    const bad = await shoalRun('-n', '2', '--grace', '0', '--max-restarts', '1', rankScript, 'restart', '2').ended;
    expect(bad.code).toBe(5);
    expect(bad.stdout).not.toContain('generation 2');
  });

  it('a rank that ignores SIGTERM is killed', async () => {
    await using job = shoalRun('-n', '2', '--grace', '0', '--kill-after', '100ms', rankScript, 'signals', 'deaf');
    const pids = pidsOf(await job.output(/ready (\d+)/, 2));
    process.kill(pids[0], 'SIGKILL');
    const { stderr } = await job.ended;
    expect(stderr).toContain('is still running 100 ms after SIGTERM: SIGKILL');
    expect(pids.some(isRunning)).toBe(false);
  });
});

describe('shoal run: signals', () => {
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
