/** `shoal tune` and `shoal bench --algorithms` with real processes: the measurements, the written file, and its use. */
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import type { ComparisonReport } from '../../src/tools/cli/bench/run-comparison.ts';
import { parseTuning } from '../../src/collectives/tuning-format.ts';
import { nativeUnavailableReason } from '../../src/memory/native.ts';
import { shoal } from '../fixtures/launch-harness.ts';

const directory = temporaryFolder('tune', afterAll);

const small = ['-b', '64', '-e', '4K', '-f', '64', '--budget', '20'];

it('writes the fastest algorithms; more worlds are added; groups use them', async (context) => {
  const missing = nativeUnavailableReason();
  // Without shared memory every rank is a host, and there is one world.
  if (missing !== undefined) context.skip(missing);
  const file = join(directory, 'tuning.json');
  const network = await shoal(['tune', '-n', '2', '--hosts', '2', '--collectives', 'all-reduce', ...small, '-o', file]).ended;
  expect({ code: network.code, stderr: network.stderr }).toEqual({ code: 0, stderr: '' });
  expect(network.stdout).toMatch(/^collective +size +auto +mailbox/);
  expect(network.stdout).toMatch(/^all-reduce +64 +[\d.]+ +[\d.]+/m);
  expect(network.stdout).toContain(`SHOAL_TUNING_FILE=${file}`);
  const host = await shoal(['tune', '-n', '2', '--collectives', 'broadcast', ...small, '-o', file]).ended;
  expect(host.code).toBe(0);
  const tuning = parseTuning(await readFile(file, 'utf8'), file);
  expect(tuning.worlds.map(({ hosts, choices }) => [hosts, choices.map(({ collective }) => collective)])).toEqual([
    [[1, 1], ['all-reduce']],
    [[2], ['broadcast']],
  ]);
  const [world] = tuning.worlds;
  // Only half a trip is checked: a busy machine can find that sending takes all of it.
  const { networkLatency = 0, networkOverhead = 0 } = world.rates ?? {};
  expect(networkLatency + networkOverhead).toBeGreaterThan(0);
  expect(world.choices[0].measured.map(({ bytes }) => bytes)).toEqual([64, 4096]);
  expect([world.choices[0].ranges.at(0)?.from, world.choices[0].ranges.at(-1)?.to]).toEqual([64, 4097]);

  // The choice in the file is taken, even if another one would be faster.
  const only = { ...world, choices: [{ ...world.choices[0], ranges: [{ from: 0, to: null, algorithm: 'tree' }] }] };
  await writeFile(file, JSON.stringify({ ...tuning, worlds: [only] }));
  const compared = await shoal(
    ['bench', 'all-reduce', '-n', '2', '--hosts', '2', '--sizes', '1KiB', '--algorithms', 'tree,direct', '--budget', '20', '--json', '-'],
    { env: { SHOAL_TUNING_FILE: file } },
  ).ended;
  expect(compared.code).toBe(0);
  const report = JSON.parse(compared.stdout) as ComparisonReport;
  expect(report).toMatchObject({ schema: 'shoal-comparison', topology: { hosts: [[0], [1]] }, rates: world.rates });
  // One algorithm may be found hopeless on a machine that is busy with other things.
  expect(report.rows.map(({ chosen, timesUs, hopeless, wrong }) => [chosen, [...Object.keys(timesUs), ...hopeless].sort(), wrong])).toEqual(
    [['tree', ['auto', 'direct', 'tree'], 0]],
  );
  expect(report.worstAutoOverBest).toBe(report.rows[0].autoOverBest);
});

it('refuses impossible options before anything is started', async () => {
  const foreign = join(directory, 'foreign.json');
  await writeFile(foreign, '{"schema":"something else"}');
  const cases: [string[], RegExp][] = [
    [['tune', '--collectives', 'all-to-all'], /'all-to-all' cannot be tuned; use all-reduce, all-gather/],
    [['tune', '-n', '2', '--hosts', '3'], /--hosts 3 needs as many ranks; 2 are started/],
    [['tune', '-b', '8', '-e', '4'], /exceeds --maxbytes/],
    [['tune', '-f', '1'], /whole number of at least 2/],
    [['tune', '-o', foreign], /tuning file .*foreign\.json: schema must be .*under another name \(-o\)/],
    [['bench', 'barrier', '--algorithms', 'all'], /barrier has no algorithms to compare/],
  ];
  for (const [args, message] of cases) {
    const { code, stderr } = await shoal(args).ended;
    expect(stderr).toMatch(message);
    expect(code).toBe(2);
  }
  expect(await readFile(foreign, 'utf8')).toBe('{"schema":"something else"}');
});

it('fails with the error of the ranks', async () => {
  const { code, stderr } = await shoal(['bench', 'all-reduce', '-n', '2', '--algorithms', 'tree', '-d', 'half', '--private']).ended;
  expect(code).toBe(1);
  expect(stderr).toMatch(/no typed array of its own/);
});

it('refuses more hosts than ranks before it prints a table', async () => {
  const { code, stdout, stderr } = await shoal(['tune', '--scheduler', '-n', '2', '--hosts', '3']).ended;
  expect({ code, stdout, stderr }).toEqual({ code: 2, stdout: '', stderr: 'shoal: --hosts 3 needs as many ranks; 2 are started (-n)\n' });
});

it('tunes the scheduler on real ranks: every point is applied and measured, then the best is stayed at', async () => {
  const { code, stdout, stderr } = await shoal([
    'tune',
    '--scheduler',
    '-n',
    '2',
    '--model',
    'resnet50',
    '--scale',
    '0.002',
    '--steps-per-point',
    '6',
  ]).ended;
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  const rows = stdout.split('\n').filter((line) => /^ +\d/.test(line));
  // There are 14 points, one before them, at most three more of the best four, and the final one.
  expect(rows.length).toBeGreaterThanOrEqual(16);
  expect(rows.length).toBeLessThanOrEqual(16 + 12);
  expect(rows[0]).toMatch(/not counted$/);
  expect(rows.filter((row) => row.endsWith('the best'))).toEqual([rows[rows.length - 1]]);
  expect(rows.some((row) => row.endsWith('again'))).toBe(true);
  expect(new Set(rows.map((row) => row.trim().split(/ +/)[0])).size).toBeGreaterThan(12);
  expect(stdout).toMatch(/SHOAL_SCHEDULE_CREDIT_BYTES=\d+ SHOAL_SCHEDULE_PARTITION_BYTES=\d+/);
});
