/** `shoal bench` with real processes: the table, the report, and the process that starts the ranks. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, expect, it } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import type { BenchReport } from '../../src/tools/timing/report.ts';
import { shoal, shoalRun } from '../fixtures/launch-harness.ts';

const main = fileURLToPath(new URL('../../src/tools/cli/main.ts', import.meta.url));
const row = /^ +(\d+) +(\d+) +(\S+) +(\S+) +(-?\d+) +([\d.]+) +([\d.]+) +([\d.]+) +(\S+) +(\S+) +(\S+) +(\S+) +(\S+)$/gm;
const directory = temporaryFolder('bench', afterAll);

it('starts ranks, prints a row per size and writes the report', async () => {
  const file = join(directory, 'report.json');
  const flags = ['-n', '2', '-b', '1K', '-e', '4K', '-f', '2', '--iters', '3', '-w', '1', '--json', file, '--raw'];
  const { code, stdout, stderr } = await shoal(['bench', 'all-reduce', ...flags]).ended;
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  const rows = [...stdout.matchAll(row)];
  expect(rows.map(([, size, count, type, op, root]) => [size, count, type, op, root].join(' '))).toEqual([
    '1024 256 float sum -1',
    '2048 512 float sum -1',
    '4096 1024 float sum -1',
  ]);
  expect(rows.map((cells) => [cells[9], cells[13]].join(' '))).toEqual(['0 0', '0 0', '0 0']);
  expect(stdout).toContain('# Out of bounds values : 0 OK');
  const report = JSON.parse(await readFile(file, 'utf8')) as BenchReport;
  expect(report).toMatchObject({ schema: 'shoal-bench', version: 1, options: { memory: 'shared', wait: 'async' }, summary: { wrong: 0 } });
  expect(report.ranks.map(({ rank }) => rank)).toEqual([0, 1]);
  expect(new Set(report.ranks.map(({ pid }) => pid)).size).toBe(2);
  expect(report.rows.map(({ size, inPlace }) => [size, inPlace?.samplesUs?.map((samples) => samples.length)])).toEqual([
    [1024, [3, 3]],
    [2048, [3, 3]],
    [4096, [3, 3]],
  ]);
});

it('measures as a rank of a job that is there already; only rank 0 speaks', async () => {
  const { code, stdout } = await shoalRun(
    '-n',
    '2',
    '-q',
    main,
    'bench',
    'broadcast',
    '--sizes',
    '64:2',
    '--sync',
    '--private',
    '--json',
    '-',
  ).ended;
  expect(code).toBe(0);
  expect(stdout.split('\n').filter((line) => line.startsWith('[rank 1]'))).toEqual([]);
  const report = JSON.parse(stdout.replaceAll('[rank 0] ', '')) as BenchReport;
  expect(report.options).toMatchObject({ collective: 'broadcast', memory: 'private', wait: 'sync' });
  expect(report.rows.map(({ size, iterations }) => [size, iterations])).toEqual([[64, 2]]);
});

it.each([
  ['latency', 'Latency \\(us\\)', []],
  ['bandwidth', 'Bandwidth \\(MB/s\\)', ['--sync']],
  ['bidirectional', 'Bandwidth \\(MB/s\\)', ['--buckets', '4']],
])('prints the table of OSU for %s, checked', async (name, title, more) => {
  const { code, stdout, stderr } = await shoal(['bench', name, '-e', '4K', '--iters', '2', ...more]).ended;
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  expect(stdout).toMatch(new RegExp(`^# Size +${title} +Validation$`, 'm'));
  expect([...stdout.matchAll(/^(\d+) +\d+\.\d\d +Pass$/gm)].map(([, bytes]) => Number(bytes))).toEqual(
    Array.from({ length: 13 }, (_, power) => 2 ** power),
  );
});

it('prints how much of the communication computation covers', async () => {
  const { code, stdout } = await shoal(['bench', 'gather-v', '-n', '3', '--sizes', '64:2,4K:2', '-r', '1', '--overlap']).ended;
  expect(code).toBe(0);
  expect(stdout).toMatch(/^# Size {11}Overall\(us\) {7}Compute\(us\) {4}Pure Comm\.\(us\) {8}Overlap\(%\) {8}Validation$/m);
  expect([...stdout.matchAll(/^\d+( +\d+\.\d\d){4} +Pass$/gm)]).toHaveLength(2);
});

it('measures all types and operators on request', async () => {
  const { code, stdout } = await shoal(['bench', 'reduce', '-n', '2', '--sizes', '64:1:0', '-d', 'all', '-o', 'all']).ended;
  expect(code).toBe(0);
  const rows = [...stdout.matchAll(row)].map(([, , , type, op]) => `${type} ${op}`);
  expect(rows).toHaveLength(4 * 5 + 8 * 7);
  expect(rows).toContain('bfloat16 avg');
  expect(rows).toContain('bool bxor');
});

it('refuses unknown options before anything is started', async () => {
  const cases: [string[], RegExp][] = [
    [['allreduces'], /did you mean all-reduce\?/],
    [['broadcast', '-r', '2'], /--root 2 is not a rank; use 0…1/],
    [['all-reduce', '-d', 'quad'], /--datatype quad is not known/],
    [['all-reduce', '-b', '8', '-e', '4'], /exceeds --maxbytes/],
    [['all-reduce', '--parallel', '3', '--buckets', '2'], /--parallel 3 exceeds --buckets 2/],
    [['latency', '--overlap'], /--overlap measures collectives beside computation/],
    [['all-reduce', '--overlapp'], /unknown option '--overlapp'/],
    [['all-reduce', '--algorithms', 'all', '-d', 'all'], /leave out --overlap and all/],
    [['all-reduce', '-n', '0'], /whole number from 1/],
    [['all-reduce', '-o', 'bxor'], /--op bxor with --datatype float: .*needs an integer dtype/],
    [['all-reduce', '--backend', 'rings'], /unknown backend 'rings'; use auto, mpi, .*ring/],
    [['all-reduce', '--algorithms', 'rings'], /unknown algorithm 'rings'; use all, auto, .*ring/],
    [['all-reduce', '-b', '1M', '-e', '4G'], /more than 1000 sizes; use --stepfactor/],
  ];
  for (const [args, message] of cases) {
    const { code, stderr } = await shoal(['bench', ...args]).ended;
    expect(stderr).toMatch(message);
    expect(code).toBe(2);
  }
});

it('fails with the error of the ranks', async () => {
  const { code, stderr } = await shoal(['bench', 'all-reduce', '-n', '2', '-d', 'half', '--private', '-b', '8', '-e', '8']).ended;
  expect(code).toBe(1);
  expect(stderr).toMatch(/no typed array of its own/);
});
