/** `shoal run` with real processes: what ranks get, what the user sees, and that nothing is left. */
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { nativeUnavailableReason } from '../src/memory/native.ts';
import { absentScript, allGone, isRunning, rankScript, shoal, shoalRun, start, storeScript } from './fixtures/launch-harness.ts';

// Generous: every test starts several processes, on machines that may be busy.
vi.setConfig({ testTimeout: 120_000 });

let directory: string;

beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'shoal-launch-'));
});

afterAll(async () => {
  await rm(directory, { recursive: true });
});

const pidsOf = (matches: readonly RegExpMatchArray[]): number[] => matches.flatMap((match) => match.slice(1).filter(Boolean).map(Number));

describe('shoal run: ranks', () => {
  it("start with torchrun's environment and the script's own arguments", async () => {
    const { code, stdout } = await shoalRun('-n', '2', rankScript, 'environment', '--', '--epochs', '3').ended;
    expect(code).toBe(0);
    const reports = stdout.trim().split('\n').sort();
    expect(reports).toHaveLength(2);
    for (const [rank, line] of reports.entries()) {
      const prefix = `[rank ${rank}] `;
      expect(line.startsWith(prefix)).toBe(true);
      expect(JSON.parse(line.slice(prefix.length))).toEqual({
        args: ['--', '--epochs', '3'],
        RANK: `${rank}`,
        WORLD_SIZE: '2',
        LOCAL_RANK: `${rank}`,
        LOCAL_WORLD_SIZE: '2',
        GROUP_RANK: '0',
        GROUP_WORLD_SIZE: '1',
        MASTER_ADDR: '127.0.0.1',
        TORCHELASTIC_RESTART_COUNT: '0',
      });
    }
  });

  it('takes options of the script without --, and drops a -- right behind it', async () => {
    for (const separator of [[], ['--']]) {
      const { stdout } = await shoalRun(rankScript, ...separator, 'environment', '-n', '3').ended;
      expect(JSON.parse(stdout.slice(stdout.indexOf('{')))).toMatchObject({ args: ['-n', '3'], WORLD_SIZE: '1' });
    }
  });

  it('run TypeScript from any directory, and meet in the store of the launcher', async () => {
    const { code, stdout } = await shoal(['run', '-n', '3', storeScript], { cwd: directory }).ended;
    expect(code).toBe(0);
    expect(stdout.match(/met \d of 3 by shoal/g)?.sort()).toEqual(['met 0 of 3 by shoal', 'met 1 of 3 by shoal', 'met 2 of 3 by shoal']);
    expect(stdout.match(/first true/g)).toHaveLength(1);
  });

  it('take TypeScript for modules where no package.json says otherwise', async () => {
    const folder = await mkdtemp(join(directory, 'package-'));
    await writeFile(
      join(folder, 'part.ts'),
      'export enum Answer { Right = 42 }\nexport const answer: Answer = await Promise.resolve(Answer.Right);\n',
    );
    await writeFile(
      join(folder, 'main.ts'),
      "import { answer } from './part.ts';\nconsole.log(await answer, import.meta.url.slice(-7));\n",
    );
    await writeFile(join(folder, 'old.ts'), 'console.log(typeof require, __filename.slice(-6));\n');
    for (const manifest of [undefined, '{}', '{"type":"module"}']) {
      if (manifest !== undefined) await writeFile(join(folder, 'package.json'), manifest);
      const { stdout, stderr } = await shoalRun('-q', join(folder, 'main.ts')).ended;
      expect(stdout + stderr).toBe('[rank 0] 42 main.ts\n');
    }
    await writeFile(join(folder, 'package.json'), '{"type":"commonjs"}');
    expect((await shoalRun('-q', join(folder, 'old.ts')).ended).stdout).toBe('[rank 0] function old.ts\n');
  });

  it('of two jobs started at once do not meet', async () => {
    const jobs = await Promise.all([shoalRun('-n', '2', storeScript).ended, shoalRun('-n', '2', storeScript).ended]);
    for (const { code, stdout } of jobs) {
      expect(code).toBe(0);
      expect(stdout.match(/first true/g)).toHaveLength(1);
    }
  });

  it('get a secret that no command line shows', async () => {
    const { stdout } = await shoalRun(rankScript, 'secret').ended;
    expect(JSON.parse(stdout.slice(stdout.indexOf('{')))).toEqual({ length: 64, shown: false });
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

describe('shoal run: output', () => {
  it('never mixes ranks within a line', async () => {
    const { stdout } = await shoalRun('-q', '-n', '3', rankScript, 'chatter').ended;
    const lines = stdout.trimEnd().split('\n');
    expect(lines).toHaveLength(6000);
    for (const line of lines) expect(line).toMatch(/^\[rank (\d)\] rank \1 says \d+ \.*$/);
  });

  it.each(['throw', 'exit'])('loses nothing when a rank ends faster than it is read (%s)', async (how) => {
    const { stdout, stderr, code } = await shoalRun('-q', rankScript, 'flood', how).ended;
    expect(code).toBe(how === 'exit' ? 9 : 1);
    const numbers = (text: string): number[] => [...text.matchAll(/^\[rank 0\] flood, line (\d+)$/gm)].map((match) => Number(match[1]));
    expect(numbers(stdout)).toEqual(Array.from({ length: 10_000 }, (_, i) => 2 * i));
    expect(numbers(stderr)).toEqual(Array.from({ length: 10_000 }, (_, i) => 2 * i + 1));
    if (how === 'throw') expect(stderr).toMatch(/^\[rank 0\] Error: after the flood$/m);
  });

  it('bounds lines without an end, and completes the last', async () => {
    const { stdout } = await shoalRun('-q', rankScript, 'endless', '100000').ended;
    const lines = stdout.trimEnd().split('\n');
    expect(lines.length).toBeGreaterThan(5);
    expect(lines.map((line) => line.slice('[rank 0] '.length)).join('')).toBe('x'.repeat(100_000));
  });

  it('reports every start and end of a rank, or with -q nothing about those that are well', async () => {
    const { stderr } = await shoalRun('-n', '2', rankScript, 'exit', '9', '9').ended;
    expect(stderr.match(/^shoal: rank [01] started \(pid \d+\)$/gm)).toHaveLength(2);
    expect(stderr.match(/^shoal: rank [01] exited with code 0$/gm)).toHaveLength(2);
    expect((await shoalRun('-q', '-n', '2', rankScript, 'exit', '9', '9').ended).stderr).toBe('');
  });

  it('goes to files as well, or instead, or for some ranks only', async () => {
    const logs = join(directory, 'logs');
    const both = await shoalRun('-n', '2', '--log-dir', logs, '--local-ranks-filter', '1', rankScript, 'streams').ended;
    expect(both.stdout).toBe('[rank 1] out 1\n');
    expect((await readdir(logs)).sort()).toEqual(['rank-0', 'rank-1']);
    expect(await readFile(join(logs, 'rank-0', 'stdout.log'), 'utf8')).toBe('out 0\n');
    expect(await readFile(join(logs, 'rank-1', 'stderr.log'), 'utf8')).toBe('err 1\n');
    const instead = await shoalRun('-q', '-n', '2', '--log-dir', join(directory, 'logs2'), '--redirects', '0:3,1:1', rankScript, 'streams')
      .ended;
    expect(instead.stdout).toBe('');
    expect(instead.stderr).toBe('[rank 1] err 1\n');
    expect(await readdir(join(directory, 'logs2', 'rank-1'))).toEqual(['stdout.log']);
  });

  it('files that cannot be made are refused before a rank starts', async () => {
    await writeFile(join(directory, 'a-file'), '');
    const { code, stderr } = await shoalRun('--log-dir', join(directory, 'a-file'), rankScript, 'streams').ended;
    expect(code).toBe(2);
    expect(stderr).toMatch(/^shoal: the log folder .*a-file\/rank-0 cannot be made: .*\n$/);
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

  it('and so does a full disk, which is said', async () => {
    const command = `exec "$0" dist/cli/main.js run -n 2 --kill-after 500ms ${rankScript} forever > /dev/full`;
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

  it('print the first error last and whole', async () => {
    const { stderr } = await shoalRun('-n', '2', '--grace', '50ms', rankScript, 'throw', '1').ended;
    const report = stderr.slice(stderr.indexOf('failed first'));
    expect(report).toMatch(
      /^failed first: it exited with code 1 \d+\.\d s after the start \(pid \d+\)\nshoal: what rank 1 wrote to stderr:\n/,
    );
    const lines = report.trimEnd().split('\n').slice(2);
    for (const line of lines) expect(line).toMatch(/^shoal: {3}\|/);
    expect(lines.filter((line) => /before the end, line \d+$/.test(line))).toHaveLength(300);
    expect(lines.some((line) => line.includes('Error: rank 1 cannot go on'))).toBe(true);
    expect(lines.at(-1)).toContain('Node.js v');
  });

  it('a rank that ends well before it joins is named to those that wait for it, at once', async () => {
    // Within the test's time, which is less than the ranks would wait for it.
    const { code, stdout } = await shoalRun('-n', '3', absentScript).ended;
    expect(code).toBe(3);
    expect(stdout.match(/peer-lost, peer 2: rank 2 exited with code 0 before it joined/g)).toHaveLength(2);
  });

  it('by a signal are explained and give 128 + signal', async () => {
    await using job = shoalRun('-n', '2', '--grace', '50ms', rankScript, 'stay');
    const [victim] = pidsOf(await job.output(/ready (\d+)/, 2));
    process.kill(victim, 'SIGKILL');
    const { code, stderr } = await job.ended;
    expect(code).toBe(137);
    expect(stderr).toMatch(/rank \d failed first: it was killed by SIGKILL \(by hand, or by the system because memory ran out/);
    expect(stderr).toMatch(/rank \d wrote nothing to stderr\n$/);
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
    // At the same moment it would be the same request, which is how `timeout` sends them.
    const again = setInterval(() => process.kill(job.pid, 'SIGINT'), 200);
    void job.ended.then(() => clearInterval(again));
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

describe('shoal: command line', () => {
  it('wrong use gives exit code 2 and says what is wrong', async () => {
    const cases: [string[], RegExp][] = [
      [['run', '--nproc_per_node', '2', 'x.ts'], /unknown option '--nproc_per_node'\s+\(Did you mean --nproc-per-node\?\)/],
      [['run'], /missing required argument 'script'/],
      [['run', 'no-such-file.ts'], /there is no script .*no-such-file\.ts/],
      [['run', '-n', '0', rankScript], /expected a number from 1 to 99999, auto or cpu/],
      [['run', '--nnodes', '1:4', rankScript], /number of machines is fixed/],
      [['run', '--nnodes', '2', rankScript], /needs --node-rank/],
      [['run', '--tee', '3', rankScript], /--log-dir/],
      [['run', '--grace', 'soon', rankScript], /Expected a time/],
      [['fly'], /unknown command 'fly'/],
    ];
    const results = await Promise.all(cases.map(([args]) => shoal(args).ended));
    for (const [i, { code, stderr }] of results.entries()) {
      expect(stderr, cases[i][0].join(' ')).toMatch(cases[i][1]);
      expect(code, cases[i][0].join(' ')).toBe(2);
    }
  });

  it('--help and --version are no errors', async () => {
    for (const args of [['--help'], ['run', '--help'], ['info', '--help'], ['--version']]) {
      const { code, stdout } = await shoal(args).ended;
      expect(code).toBe(0);
      expect(stdout).toMatch(args.includes('--help') ? /Usage: shoal/ : /^\d+\.\d+\.\d+\n$/);
    }
  });

  it('info describes this machine, for people and for programs', async () => {
    const people = await shoal(['info'], { env: { SHOAL_SECRET: 'hunter2', SHOAL_TIMEOUT: '1' } }).ended;
    expect(people.code).toBe(0);
    expect(people.stdout).toMatch(/processors +\d+ may be used/);
    expect(people.stdout).toMatch(/SHOAL_SECRET +\(set\) +from SHOAL_SECRET/);
    expect(people.stdout).toMatch(/SHOAL_TIMEOUT is not a setting.*did you mean SHOAL_TIMEOUT_MS/);
    expect(people.stdout).not.toContain('hunter2');
    const programs = await shoal(['info', '--json'], { env: { SHOAL_NATIVE: '0' } }).ended;
    const info = JSON.parse(programs.stdout);
    expect(info).toMatchObject({ schema: 1, native: { loaded: false }, world: { source: 'none', size: 1 }, links: null });
    expect(info.fabrics.find((fabric: { name: string }) => fabric.name === 'tcp').available).toBe(true);
  });

  it('info -n shows what ranks reach each other over', async () => {
    const env = { SHOAL_FABRICS: 'tcp' };
    const { stdout, code } = await shoal(['info', '-n', '2', '--json'], { env }).ended;
    expect(code).toBe(0);
    expect(JSON.parse(stdout).links).toEqual({
      hosts: [[0, 1]],
      fabrics: [
        ['self', 'tcp'],
        ['tcp', 'self'],
      ],
    });
    const people = await shoal(['info', '-n', '2'], { env }).ended;
    expect(people.stdout).toMatch(/links\n +rank 0 +rank 1\n +rank 0 +· +tcp +host 0\n +rank 1 +tcp +· +host 0\n/);
  });
});
