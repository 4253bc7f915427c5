/** `shoal run` with ranks that fail: what it says of them, to whom, and what it ends with. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { absentScript, endedElsewhereScript, noiseScript, pidsOf, rankScript, shoalRun } from '../fixtures/launch-harness.ts';

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
});
