/** The messaging benchmark runs, in small, and measures all its subjects. */
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';

it('bench/messaging measures every backend, beside zeromq and postMessage', () => {
  const script = fileURLToPath(new URL('../../bench/messaging/run.ts', import.meta.url));
  const { status, stdout, stderr } = spawnSync(process.execPath, ['--import', 'tsx', script, '--rounds', '1', '--scale', '0.01'], {
    encoding: 'utf8',
  });
  expect([status, stderr]).toEqual([0, '']);
  const report = JSON.parse(stdout) as { checksum: number; ratios: Record<string, number>; results: { subject: string; median: number }[] };
  expect(report.checksum).toBeGreaterThan(0);
  const subjects = new Set(report.results.map(({ subject }) => subject));
  for (const name of ['tcp curve', 'tcp plain', 'zeromq curve', 'zeromq plain', 'fabric tcp copy', 'inproc', 'postMessage']) {
    expect(subjects).toContain(name);
  }
  for (const { median } of report.results) expect(median).toBeGreaterThan(0);
  for (const [name, ratio] of Object.entries(report.ratios)) expect([name, ratio > 0]).toEqual([name, true]);
});
