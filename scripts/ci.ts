/** `.ci/run`, once the dependencies are there: every step, also after one has failed; then what failed, and counts as the last line. */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { CheckReport } from './check-report.ts';
import { repositoryRoot } from './repository.ts';

const steps: readonly (readonly [string, ...string[]])[] = [
  ['npm', 'test'],
  ['npm', 'run', 'test:nonative'],
  ['npm', 'run', 'check'],
];

const folder = mkdtempSync(join(tmpdir(), 'shoal-ci-'));
const started = performance.now() - 1000 * Number(process.argv[2] ?? 0);
const totals = { passed: 0, skipped: 0 };
const failures: CheckReport['failures'][number][] = [];
for (const [index, command] of steps.entries()) {
  const [program, ...args] = command;
  const text = command.join(' ');
  const stepStarted = performance.now();
  const file = join(folder, `${index}.json`);
  console.log(`\n── ${text}`);
  const env = { ...process.env, CHECK_REPORT: file };
  const { status } = spawnSync(program, args, { cwd: repositoryRoot, env, stdio: ['ignore', 'inherit', 'inherit'] });
  console.log(`── ${text}: ${status === 0 ? 'passed' : `failed with ${status}`} after ${seconds(stepStarted)} s`);
  const report = existsSync(file) ? (JSON.parse(readFileSync(file, 'utf8')) as CheckReport) : { passed: 0, failures: [], skipped: 0 };
  totals.passed += report.passed;
  totals.skipped += report.skipped;
  failures.push(...report.failures);
  // A step that broke without saying what failed.
  if (status !== 0 && report.failures.length === 0) failures.push({ name: text, message: `ended with ${status}` });
}
rmSync(folder, { recursive: true });

console.log('');
for (const { name, message } of failures) {
  console.log(`failed: ${name}`);
  for (const line of message.split('\n').slice(0, 12)) console.log(`failed| ${line.slice(0, 300)}`);
}
console.log(`\nall steps took ${seconds(started)} s\n${totals.passed} passed, ${failures.length} failed, ${totals.skipped} skipped`);
process.exitCode = failures.length === 0 ? 0 : 1;

function seconds(since: number): number {
  return Math.round((performance.now() - since) / 1000);
}
