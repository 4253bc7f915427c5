/** The fabric benchmark runs, in small, and moves the right bytes. */
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';
import { subjects } from '../../bench/fabric/subjects.ts';

it('bench/fabric measures every fabric there is, beside plain net and memcpy', () => {
  const script = fileURLToPath(new URL('../../bench/fabric/run.ts', import.meta.url));
  const { status, stdout } = spawnSync(process.execPath, ['--import', 'tsx', script, '--rounds', '1', '--bytes', '1048576'], {
    encoding: 'utf8',
  });
  expect(status).toBe(0);
  const report = JSON.parse(stdout) as { checksum: string; results: { fabric: string; bytes: number }[] };
  expect(report.checksum).toMatch(/^\d+$/);
  const names = subjects.filter(({ provider }) => provider.unavailable() === undefined).map(({ title }) => title);
  expect(new Set(report.results.map(({ fabric }) => fabric))).toEqual(new Set([...names, 'net', 'memcpy']));
  expect(new Set(report.results.map(({ bytes }) => bytes))).toEqual(new Set([64, 4096, 65_536, 2 ** 20]));
});
