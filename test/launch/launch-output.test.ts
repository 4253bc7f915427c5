/** `shoal run` with real processes: the inputs of ranks and the output that the user sees. */
import { mkdtemp, readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { rankScript, shoal, shoalRun, start, storeScript } from '../fixtures/launch-harness.ts';

const directory = temporaryFolder('launch', afterAll);

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

  it('are not started for a CommonJS script that awaits at its top level', async () => {
    const folder = await mkdtemp(join(directory, 'commonjs-'));
    await writeFile(join(folder, 'package.json'), '{ "type": "commonjs" }');
    const source = "#!/usr/bin/env node\nconst path = await import('node:path');\nconsole.log(path.sep);\n";
    const inside = 'async function f() { await 1; }\nf();\nreturn;\n';
    for (const name of ['top.cjs', 'top.js', 'top.ts', 'top.cts']) {
      await writeFile(join(folder, name), source);
      const { code, stdout, stderr } = await shoalRun('-n', '2', join(folder, name)).ended;
      expect({ code, stdout }, name).toEqual({ code: 2, stdout: '' });
      expect(stderr).toContain(`${name} awaits at its top level, which CommonJS does not have; name it top.m`);
    }
    await writeFile(join(folder, 'inside.cjs'), inside);
    await writeFile(join(folder, 'inside.ts'), inside.replace('return;', ''));
    for (const name of ['inside.cjs', 'inside.ts']) expect((await shoalRun(join(folder, name)).ended).code, name).toBe(0);
  });

  it("rank 0 reads the launcher's standard input, the others have none", async () => {
    const script = join(directory, 'stdin.mjs');
    await writeFile(script, "for await (const part of process.stdin) console.log('read', String(part).trim());\n");
    const main = join(import.meta.dirname, '../../dist/tools/cli/main.js');
    const job = start(['sh', '-c', 'echo piped | "$@"', 'sh', process.execPath, main, 'run', '-q', '-n', '2', script]);
    expect(await job.ended).toMatchObject({ code: 0, stdout: '[rank 0] read piped\n' });
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

  it('get a secret that no command line shows', async () => {
    const { stdout } = await shoalRun(rankScript, 'secret').ended;
    expect(JSON.parse(stdout.slice(stdout.indexOf('{')))).toEqual({ length: 64, shown: false });
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
    if (how === 'throw') expect(stderr).toMatch(/^shoal: rank 0 failed first: .*: Error: after the flood$/m);
  });

  it('bounds lines without an end, and completes the last', async () => {
    const { stdout } = await shoalRun('-q', rankScript, 'endless', '3500000').ended;
    const lines = stdout
      .trimEnd()
      .split('\n')
      .map((line) => line.slice('[rank 0] '.length));
    expect(lines.length).toBeGreaterThanOrEqual(4);
    for (const line of lines) expect(line.length).toBeLessThanOrEqual(2 ** 20);
    expect(lines.join('') === 'x'.repeat(3_500_000)).toBe(true);
  });

  it('reports every start and end of a rank, or with -q nothing about those that are well', async () => {
    const { stderr } = await shoalRun('-n', '2', rankScript, 'exit', '9', '9').ended;
    expect(stderr).toMatch(
      /^shoal: rank 0 started \(pid \d+\), rank 1 started \(pid \d+\)\nshoal: rank [01], rank [01] exited with code 0\n$/,
    );
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

describe('shoal: command line', () => {
  it('wrong use gives exit code 2 and says what is wrong', async () => {
    const cases: [string[], RegExp][] = [
      [['run', '--nproc_per_nod', '2', 'x.ts'], /unknown option '--nproc-per-nod'\s+\(Did you mean --nproc-per-node\?\)/],
      [['run', '-m', 'train'], /^shoal: shoal run has no -m: name the file of the script/],
      [['run'], /missing required argument 'script'/],
      [['run', 'no-such-file.ts'], /there is no script .*no-such-file\.ts/],
      [['run', '-n', '0', rankScript], /expected a number from 1 to 99999, auto or cpu/],
      [['run', '--nnodes', '3:1', rankScript], /Expected a whole number from 1, or two, the least and the most: 1:4/],
      [['run', '--nnodes', '0:2', rankScript], /Expected a whole number from 1, or two/],
      [['run', '--nnodes', 'a:b', rankScript], /Expected a whole number from 1, or two/],
      [['run', '--nnodes', '1:4', rankScript], /several nodes need --master-addr/],
      [['run', '--nnodes', '2', rankScript], /--nnodes needs --node-rank/],
      [['run', '--node-rank', '1', rankScript], /--node-rank needs --nnodes/],
      [['run', '.', '-n', '2'], /there is no script file /],
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

  it('ends quietly when nobody reads its help', async () => {
    const main = join(import.meta.dirname, '../../dist/tools/cli/main.js');
    const { stdout, stderr } = await start(['sh', '-c', '"$@" | head -c 1', 'sh', process.execPath, main, 'run', '--help']).ended;
    expect({ stdout, stderr }).toEqual({ stdout: 'U', stderr: '' });
  });

  it('--help and --version are no errors', async () => {
    for (const args of [['--help'], ['run', '--help'], ['graph', '--help'], ['info', '--help'], ['--version']]) {
      const { code, stdout } = await shoal(args).ended;
      expect(code).toBe(0);
      expect(stdout, 'defaults are shown as people write them').not.toMatch(/default: [[{]/);
      expect(stdout).toMatch(args.includes('--help') ? /Usage: shoal/ : /^\d+\.\d+\.\d+\n$/);
    }
  });

  it('info describes this machine, for people and for programs', async () => {
    const people = await shoal(['info'], { env: { SHOAL_SECRET: 'hunter2', SHOAL_TIMEOUT: '1' } }).ended;
    expect(people.code).toBe(0);
    expect(people.stdout).toMatch(/processors +\d+ may be used/);
    expect(people.stdout).toMatch(/SHOAL_SECRET +\(set\) +default -/);
    expect(people.stdout).toMatch(/SHOAL_TIMEOUT is not a setting.*did you mean SHOAL_TIMEOUT_MS/);
    expect(people.stdout).not.toContain('hunter2');
    // The test harness sets SHOAL_SLOW_MS, too.
    expect(people.stdout).toMatch(/SHOAL_SLOW_MS +600000 +default 2000\n/);
    expect(people.stdout).toMatch(/\n {2}\d+ others have their defaults: --json shows all, docs\/settings\.md explains them\n/);
    expect(people.stdout).not.toContain('SHOAL_ORDER');
    const programs = await shoal(['info', '--json'], { env: { SHOAL_NATIVE: '0' } }).ended;
    const info = JSON.parse(programs.stdout);
    expect(info).toMatchObject({ schema: 1, native: { loaded: false }, world: { source: 'none', size: 1 }, links: null });
    expect(info.fabrics.find((fabric: { name: string }) => fabric.name === 'tcp').available).toBe(true);
  });

  it('info -n shows the links over which ranks reach each other', async () => {
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
