/** The tables of docs/suites.md: suites of other projects, with their numbers of tests and cases, and what is left out. */
import { namesOf, type ForeignSuite } from '../test/suites/support/foreign-suite.ts';
import { foreignSuites } from '../test/suites/foreign-suites.ts';

/** One row per suite, then the reasons of each. */
export function suitesTables(): string {
  const rows = foreignSuites.map(rowOf);
  const sums = [0, 1, 2, 3].map((column) => rows.reduce((sum, { numbers }) => sum + numbers[column], 0));
  return [
    '| suite | its tests | with cases here | cases here | left out |',
    '|---|---|---|---|---|',
    ...rows.map(({ name, numbers }) => `| ${[name, ...numbers].join(' | ')} |`),
    `| **all** | ${sums.map((sum) => `**${sum}**`).join(' | ')} |`,
    '',
    '## Left out',
    ...foreignSuites.filter(({ leftOut }) => leftOut.length > 0).map(reasonsOf),
  ].join('\n');
}

function rowOf({ name, file, source, cases, covered, leftOut }: ForeignSuite): { name: string; numbers: number[] } {
  const [withCases, without] = [namesOf(covered).length, leftOut.flatMap(({ tests }) => namesOf(tests)).length];
  return { name: `${name}<br>${source}<br>\`${file}\``, numbers: [withCases + without, withCases, cases, without] };
}

function reasonsOf({ name, leftOut }: ForeignSuite): string {
  const reasons = leftOut.map(({ reason, tests }) => {
    const names = namesOf(tests);
    return `- ${reason} (${names.length}): ${names.map((each) => `\`${each}\``).join(', ')}`;
  });
  return `\n### ${name}\n\n${reasons.join('\n')}`;
}
