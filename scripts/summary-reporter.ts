/** A vitest reporter that adds to the usual one: every skipped test with its reason, and a last line
 *  `N passed, N failed[, N skipped]`. A skip without a reason fails the run: nobody could say what is not tested. */
import type { Reporter, TestCase, TestModule } from 'vitest/node';

export interface Skip {
  readonly name: string;
  readonly reason: string | undefined;
}

export interface Counts {
  readonly passed: number;
  readonly failed: number;
  readonly skipped: readonly Skip[];
}

export default class SummaryReporter implements Reporter {
  onTestRunEnd(modules: readonly TestModule[], unhandledErrors: readonly unknown[]): void {
    // A name filter marks every other test as skipped; those are not the suite's skips.
    const filtered = modules.some((module) => module.project.config.testNamePattern !== undefined);
    const counts = countTests(modules, unhandledErrors.length);
    const lines = formatSummary(filtered ? { ...counts, skipped: [] } : counts);
    const unexplained = filtered ? [] : counts.skipped.filter(({ reason }) => reason === undefined);
    if (unexplained.length > 0) process.exitCode = 1;
    // At exit, so that no other reporter writes after the last line.
    process.once('exit', () => process.stdout.write(`${lines.join('\n')}\n`));
  }
}

/** Counts over all modules. Files that fail to load and errors outside tests count as failures. */
export function countTests(modules: readonly TestModule[], unhandledErrors: number): Counts {
  let passed = 0;
  let failed = unhandledErrors;
  const skipped: Skip[] = [];
  for (const module of modules) {
    failed += module.errors().length;
    for (const suite of module.children.allSuites()) failed += suite.errors().length;
    for (const test of module.children.allTests()) {
      const { state } = test.result();
      if (state === 'passed') passed++;
      else if (state === 'failed') failed++;
      else skipped.push({ name: `${module.relativeModuleId} > ${test.fullName}`, reason: reasonOf(test) });
    }
  }
  return { passed, failed, skipped };
}

/** Skips with their reasons, then the line of counts. */
export function formatSummary({ passed, failed, skipped }: Counts): string[] {
  return [
    ...skipped.map(
      ({ name, reason }) =>
        `skipped: ${name}: ${reason ?? 'NO REASON GIVEN (use context.skip(reason), or name it in the title: "… (skipped: reason)")'}`,
    ),
    `${passed} passed, ${failed} failed${skipped.length > 0 ? `, ${skipped.length} skipped` : ''}`,
  ];
}

/** `context.skip(reason)`, or `(skipped: reason)` in the title of the test or of a suite around it. */
function reasonOf(test: TestCase): string | undefined {
  const result = test.result();
  if (result.state === 'skipped' && result.note !== undefined) return result.note;
  return /\(skipped: ([^)]+)\)/.exec(test.fullName)?.[1];
}
