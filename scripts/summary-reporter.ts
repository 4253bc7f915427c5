/** A vitest reporter that adds to the usual one: what was skipped and why, what failed, and a last line
 *  `N passed, N failed[, N skipped]`. A skip without a reason fails the run: nobody could say what is not tested. */
import { writeFileSync, writeSync } from 'node:fs';
import type { Reporter, TestCase, TestModule } from 'vitest/node';
import { reportFile, type CheckReport } from './check-report.ts';
import { isMeasured, writeDurations } from './test-durations.ts';

export interface Skip {
  readonly file: string;
  readonly name: string;
  readonly reason: string | undefined;
}

export interface Failure {
  /** The test, or the file that does not load. */
  readonly name: string;
  /** The text of its first error, without a stack; empty where none is known. */
  readonly message: string;
}

export interface Counts {
  readonly passed: number;
  readonly failures: readonly Failure[];
  readonly skipped: readonly Skip[];
}

export default class SummaryReporter implements Reporter {
  readonly #leftOut: readonly string[];

  /** @param options.leftOut test files that do not run, because nothing they import reaches the addon. */
  constructor({ leftOut = [] }: { readonly leftOut?: readonly string[] } = {}) {
    this.#leftOut = leftOut;
  }

  onTestRunEnd(modules: readonly TestModule[], unhandledErrors: readonly unknown[]): void {
    // A name filter marks every other test as skipped; those are not the suite's skips.
    const filtered = modules.some((module) => module.project.config.testNamePattern !== undefined);
    const all = countTests(modules, unhandledErrors);
    const counts = filtered ? { ...all, skipped: [] } : all;
    if (counts.skipped.some(({ reason }) => reason === undefined)) process.exitCode = 1;
    if (isMeasured) writeDurations(modules);
    if (reportFile !== undefined) writeFileSync(reportFile, JSON.stringify(reportOf(counts)));
    const text = `${formatSummary(counts, this.#leftOut).join('\n')}\n`;
    // At exit, so that no other reporter writes after the last line.
    process.once('exit', () => writeAll(text));
  }
}

/** Counts over all modules. Files that fail to load and errors outside tests count as failures. */
export function countTests(modules: readonly TestModule[], unhandledErrors: readonly unknown[]): Counts {
  let passed = 0;
  const failures: Failure[] = unhandledErrors.map((error) => ({ name: 'an error outside every test', message: messageOf(error) }));
  const skipped: Skip[] = [];
  for (const module of modules) {
    const file = module.relativeModuleId;
    for (const error of module.errors()) failures.push({ name: file, message: messageOf(error) });
    for (const suite of module.children.allSuites()) {
      for (const error of suite.errors()) failures.push({ name: `${file} > ${suite.fullName}`, message: messageOf(error) });
    }
    for (const test of module.children.allTests()) {
      const { state, errors } = test.result();
      if (state === 'passed') passed++;
      else if (state === 'failed') failures.push({ name: `${file} > ${test.fullName}`, message: messageOf(errors?.[0]) });
      else skipped.push({ file, name: test.fullName.replace(titleReason, ''), reason: reasonOf(test) });
    }
  }
  return { passed, failures, skipped };
}

function reportOf({ passed, failures, skipped }: Counts): CheckReport {
  const unexplained = skipped
    .filter(({ reason }) => reason === undefined)
    .map(({ file, name }) => ({ name: `${file} > ${name}`, message: noReason }));
  return { passed, failures: [...failures, ...unexplained], skipped: skipped.length - unexplained.length };
}

const noReason = 'skipped without a reason (use context.skip(reason), or name it in the title: "… (skipped: reason)")';

/** Files left out; skips with their reasons, a line for all of one file and one reason; skips without one; failures; the line
 *  of counts. */
export function formatSummary({ passed, failures, skipped }: Counts, leftOut: readonly string[] = []): string[] {
  const groups = new Map<string, { file: string; reason: string; names: string[] }>();
  for (const { file, name, reason } of skipped) {
    if (reason === undefined) continue;
    const key = `${file}\n${reason}`;
    const group = groups.get(key) ?? { file, reason, names: [] };
    group.names.push(name);
    groups.set(key, group);
  }
  const unexplained = skipped.filter(({ reason }) => reason === undefined);
  return [
    ...(leftOut.length === 0 ? [] : [`skipped: ${leftOut.length} files: nothing they import reaches the addon: ${leftOut.join(' ')}`]),
    ...[...groups.values()].map(({ file, reason, names }) =>
      names.length === 1 ? `skipped: ${file} > ${names[0]}: ${reason}` : `skipped: ${file}, ${names.length} tests: ${reason}`,
    ),
    ...unexplained.map(({ file, name }) => `failed: ${file} > ${name}: ${noReason}`),
    ...failures.flatMap(({ name, message }) => [`failed: ${name}`, ...shortened(message)]),
    `${passed} passed, ${failures.length + unexplained.length} failed${skipped.length > unexplained.length ? `, ${skipped.length - unexplained.length} skipped` : ''}`,
  ];
}

function messageOf(error: unknown): string {
  const message = (error as { message?: unknown } | undefined)?.message;
  return typeof message === 'string' ? message : '';
}

/** The first lines of a message, marked so that scripts can take them along with the line above. */
function shortened(message: string): string[] {
  const linesMax = 12;
  const charactersMax = 300;
  const lines = message.split('\n').filter((line) => line.trim() !== '');
  return lines.slice(0, linesMax).map((line) => `failed| ${line.slice(0, charactersMax)}`);
}

/** All of it, also where standard output is a full pipe that does not block: `process.stdout.write` loses the rest at exit. */
function writeAll(text: string): void {
  const bytes = Buffer.from(text);
  for (let written = 0; written < bytes.length;) {
    try {
      written += writeSync(1, bytes, written);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EAGAIN') throw error;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 5);
    }
  }
}

const titleReason = / \(skipped: ([^)]+)\)/;

/** `context.skip(reason)`, or `(skipped: reason)` in the title of the test or of a suite around it. */
function reasonOf(test: TestCase): string | undefined {
  const result = test.result();
  if (result.state === 'skipped' && result.note !== undefined) return result.note;
  return titleReason.exec(test.fullName)?.[1];
}
