/** `npm run check`: every static check, all of them even after one has failed, and one line per check at the end. */
import { spawn } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { reportFile, type CheckReport } from './check-report.ts';
import { repositoryRoot } from './repository.ts';

interface Check {
  readonly name: string;
  readonly command: readonly [program: string, ...args: string[]];
}

const checks: readonly Check[] = [
  { name: 'types', command: ['tsc', '-p', 'tsconfig.json'] },
  { name: 'types of pages', command: ['tsc', '-p', 'src/tools/report/page/tsconfig.json'] },
  { name: 'lint', command: ['oxlint', '--type-aware', '--deny-warnings'] },
  { name: 'format', command: ['oxfmt', '--check'] },
  { name: 'house rules', command: ['tsx', 'scripts/check-house-rules.ts'] },
  { name: 'generated pages', command: ['tsx', 'scripts/generate-docs.ts', '--check'] },
  { name: 'dead code', command: ['knip'] },
  { name: 'package', command: ['publint', '--strict'] },
  { name: 'docstrings', command: ['tsx', 'scripts/api-reference.ts'] },
];

/** Runs a check and prints its output in one piece: several run at once. */
async function run({ name, command: [program, ...args] }: Check): Promise<boolean> {
  // npm puts node_modules/.bin first in the path of its scripts.
  const child = spawn(program, args, { cwd: repositoryRoot, stdio: ['ignore', 'pipe', 'pipe'] });
  const output: Buffer[] = [];
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (data: Buffer) => output.push(data));
  const status = await new Promise<number | null>((resolve) => {
    child.on('error', ({ message }) => {
      output.push(Buffer.from(`${program} does not start: ${message}\n`));
      resolve(null);
    });
    child.on('close', resolve);
  });
  process.stdout.write(`\n── ${name}: ${[program, ...args].join(' ')}\n${Buffer.concat(output).toString()}`);
  return status === 0;
}

const passed = new Map<Check, boolean>();
const left = checks.values();
const worker = async (): Promise<void> => {
  for (const check of left) passed.set(check, await run(check));
};
await Promise.all(Array.from({ length: Math.min(availableParallelism(), checks.length) }, worker));

console.log('');
for (const check of checks) console.log(`${passed.get(check) === true ? 'ok    ' : 'FAILED'} ${check.name}`);
const failures = checks.filter((check) => passed.get(check) !== true).map(({ name }) => ({ name, message: '' }));
const report: CheckReport = { passed: checks.length - failures.length, failures, skipped: 0 };
if (reportFile !== undefined) writeFileSync(reportFile, JSON.stringify(report));
process.exitCode = failures.length === 0 ? 0 : 1;
