/** The reporter under a real vitest: the output at the end of `npm test` for people and scripts. */
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { readSources, repositoryRoot } from '../../scripts/repository.ts';
import { formatSummary } from '../../scripts/summary-reporter.ts';

function runCases(environment: Readonly<Record<string, string>>, ...more: readonly string[]): { lines: string[]; status: number | null } {
  const vitest = join(repositoryRoot, 'node_modules/vitest/vitest.mjs');
  const config = join(repositoryRoot, 'test/fixtures/summary/vitest.config.ts');
  // A nested run must not believe that it is a worker of this one.
  const inherited = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('VITEST')));
  const { stdout, status } = spawnSync(process.execPath, [vitest, 'run', '--config', config, ...more], {
    cwd: repositoryRoot,
    env: { ...inherited, NO_COLOR: '1', ...environment },
    encoding: 'utf8',
  });
  return { lines: stdout.trimEnd().split('\n'), status };
}

describe('the summary', () => {
  it('ends with the counts after the skips and their reasons', () => {
    const { lines, status } = runCases({});
    expect(lines.at(-1)).toBe('2 passed, 0 failed, 4 skipped');
    expect(lines).toContain('skipped: cases.ts > skips: no second host');
    expect(lines).toContain('skipped: cases.ts > shared memory > maps: the addon is off');
    expect(lines.some((line) => /Tests {2}2 passed/.test(line))).toBe(true);
    expect(status).toBe(0);
  });

  it('counts failures', () => {
    const { lines, status } = runCases({ FAILS: '1' });
    const failure = lines.indexOf('failed: cases.ts > fails (skipped: not asked to)');
    expect(failure).toBeGreaterThan(0);
    expect(lines[failure + 1]).toMatch(/^failed\| expected /);
    expect(lines.at(-1)).toBe('2 passed, 1 failed, 3 skipped');
    expect(status).toBe(1);
  });

  it('fails the run for a skip without a reason', () => {
    const { lines, status } = runCases({ UNEXPLAINED: '1' });
    expect(lines.some((line) => line.startsWith('failed: cases.ts > skips silently: skipped without a reason'))).toBe(true);
    expect(lines.at(-1)).toBe('2 passed, 1 failed, 3 skipped');
    expect(status).toBe(1);
  });

  it('does not count tests that a name filter leaves out as skipped', () => {
    const { lines, status } = runCases({}, '-t', 'also');
    expect(lines.at(-1)).toBe('1 passed, 0 failed');
    expect(status).toBe(0);
  });

  it('needs one line for all that one file skips for one reason', () => {
    const skip = (file: string, name: string, reason: string) => ({ file, name, reason });
    const skipped = [skip('a.ts', 'one', 'no addon'), skip('a.ts', 'two', 'no addon'), skip('a.ts', 'three', 'no mpirun')];
    expect(formatSummary({ passed: 1, failures: [], skipped })).toEqual([
      'skipped: a.ts, 2 tests: no addon',
      'skipped: a.ts > three: no mpirun',
      '1 passed, 0 failed, 3 skipped',
    ]);
  });

  it('can read every reason in a title, also of tests that this machine does not skip', () => {
    const unread = readSources().flatMap(({ path, text }) => (path.endsWith('.test.ts') ? (text.match(/[(]skipped [^)]*[)]/g) ?? []) : []));
    expect(unread).toEqual([]);
  });

  it('names the files that were left out', () => {
    const leftOut = ['a.test.ts', 'b.test.ts'];
    expect(formatSummary({ passed: 1, failures: [], skipped: [] }, leftOut)).toEqual([
      'skipped: 2 files: nothing they import reaches the addon: a.test.ts b.test.ts',
      '1 passed, 0 failed',
    ]);
  });
});
