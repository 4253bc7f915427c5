/** `npm run quick`: types, lint, format, house rules, and the tests of the rooms that a change touches; less than a minute for a change in
 *  one room. A change is what differs from a commit, files that git does not track yet included.
 *
 *    npm run quick                    the change since HEAD
 *    npm run quick -- --base main     the change since main */
import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join, posix } from 'node:path';
import { parseArgs } from 'node:util';
import type { SourceFile } from './house-rules.ts';
import { readSources, repositoryRoot } from './repository.ts';
import { readDurations } from './test-durations.ts';

/** Test files that take longer are left to npm test, unless they are part of the change. */
const longSeconds = 5;

const { values } = parseArgs({ options: { base: { type: 'string', default: 'HEAD' } } });
const git = (...args: string[]): string[] => execFileSync('git', args, { cwd: repositoryRoot, encoding: 'utf8' }).split('\n');
const changed = [...git('diff', '--name-only', values.base), ...git('ls-files', '--others', '--exclude-standard')].filter(
  (path) => path !== '' && existsSync(join(repositoryRoot, path)),
);
const sources = changed.filter((path) => /\.(ts|mjs)$/.test(path));
const { run, left } = testsOf(new Set(changed), readSources());
const started = performance.now();
const failed = [
  step('types', 'tsc', '-p', 'tsconfig.json'),
  sources.length > 0 && step('lint', 'oxlint', '--type-aware', '--deny-warnings', ...sources),
  sources.length > 0 && step('format', 'oxfmt', '--check', ...sources),
  step('house rules', 'tsx', 'scripts/check-house-rules.ts'),
  run.some((path) => path.startsWith('test/')) && step('build', 'node', 'scripts/build.mjs'),
  run.length > 0 && step('tests', 'vitest', 'run', ...run),
].filter((name) => typeof name === 'string');
console.log(`\nquick: ${sources.length} changed files, ${run.length} test files, ${Math.round((performance.now() - started) / 1000)} s`);
if (left > 0) console.log(`quick: ${left} more test files can tell what changed: npm test`);
if (failed.length > 0) console.log(`quick: failed: ${failed.join(', ')}`);
process.exitCode = failed.length > 0 ? 1 : 0;

/** Returns the name of a step that failed. */
function step(name: string, program: string, ...args: string[]): string | undefined {
  console.log(`── ${name}`);
  const { status } = spawnSync(program, args, { cwd: repositoryRoot, stdio: 'inherit' });
  return status === 0 ? undefined : name;
}

/** The test files to run: changed ones, and short ones beside the changed files that import one of them, at any distance. */
function testsOf(changes: ReadonlySet<string>, files: readonly SourceFile[]): { run: string[]; left: number } {
  const durations = readDurations();
  const textOf = new Map(files.map(({ path, text }) => [path, text]));
  const layerOf = (path: string): string => path.split('/').slice(0, 2).join('/');
  const layers = new Set([...changes].map(layerOf));
  const reachesChange = (test: string): boolean => {
    const reached = new Set([test]);
    for (const path of reached) {
      if (changes.has(path)) return true;
      for (const [, specifier] of (textOf.get(path) ?? '').matchAll(/['"](\.{1,2}\/[^'"\n]+\.ts)['"]/g))
        reached.add(posix.join(posix.dirname(path), specifier));
    }
    return false;
  };
  const reaching = files.map(({ path }) => path).filter((path) => path.endsWith('.test.ts') && reachesChange(path));
  const run = reaching.filter((path) => changes.has(path) || (layers.has(layerOf(path)) && (durations.get(path) ?? 0) < longSeconds));
  return { run, left: reaching.length - run.length };
}
