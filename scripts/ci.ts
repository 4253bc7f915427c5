/** `.ci/run`, once the dependencies are there: every step, also after one has failed; then the failures, and counts as the last line. */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { CheckReport } from './check-report.ts';
import { repositoryRoot } from './repository.ts';

interface Step {
  /** The command that does the same, for one person at a terminal. */
  readonly text: string;
  /** The command without the build that it begins with: `npm ci` has made it. */
  readonly command: readonly [program: string, ...args: string[]];
  readonly env?: Readonly<Record<string, string>>;
}

/** Quick suites whose outcome can differ from one Node.js to the next: the addon, memory, threads, processes. */
const onEveryNode = [
  'src/base',
  'src/memory/native',
  'src/memory/regions',
  'src/fabric/providers/shm',
  'src/fabric/providers/tcp',
  'test/group/comm-thread',
  'test/group/scheduled-processes',
];

/** Suites whose outcome differs without the addon: kernels and step machines in JavaScript, ranks of a host with sockets between
 *  them, ranks that a shell starts. The suites that hold for every implementation run here; `npm run test:nonative` runs all that can tell. */
const withoutAddon = [
  'src/memory',
  'src/fabric/congestion',
  'src/fabric/providers',
  'src/group/api/process-group',
  'src/group/random-programs',
  'src/ps/parameter-server',
  'src/messaging/backends/fabric',
  'src/rendezvous/carriers/fabric',
  'test/group/bad-input-processes',
  'test/group/comm-thread',
  'test/fabric/fabric-processes',
  'test/group/group-processes',
  'test/launch/launch-run',
  'test/group/scheduled-processes',
  'test/tools/trace-processes',
];

function onNode(major: string): Step {
  const args = ['scripts/test-node.mjs', major, ...onEveryNode];
  return { text: `node ${args.join(' ')}`, command: [process.execPath, ...args] };
}

const worlds = ['test/soaks/worlds.ts', '--from', '101', '--seeds', '300'];

/** Exit code of a step that cannot be done here, and has said why. */
const unavailable = 3;

const steps: readonly Step[] = [
  { text: 'npm test', command: ['vitest', 'run'] },
  { text: `npm run test:nonative -- ${withoutAddon.join(' ')}`, command: ['vitest', 'run', ...withoutAddon], env: { SHOAL_NATIVE: '0' } },
  // The suite has run the first 100.
  { text: `npx tsx ${worlds.join(' ')}`, command: ['tsx', ...worlds] },
  onNode('22'),
  onNode('24'),
  { text: 'npm run check', command: ['tsx', 'scripts/check.ts'] },
];

const folder = mkdtempSync(join(tmpdir(), 'shoal-ci-'));
const started = performance.now() - 1000 * Number(process.argv[2] ?? 0);
const totals = { passed: 0, skipped: 0 };
const failures: CheckReport['failures'][number][] = [];
for (const [index, step] of steps.entries()) {
  const { text } = step;
  const [program, ...args] = step.command;
  const stepStarted = performance.now();
  const file = join(folder, `${index}.json`);
  console.log(`\n── ${text}`);
  // npx, which has started this, puts node_modules/.bin first in the path.
  const env = { ...process.env, ...step.env, CHECK_REPORT: file };
  const { status } = spawnSync(program, args, { cwd: repositoryRoot, env, stdio: ['ignore', 'inherit', 'inherit'] });
  const outcome = status === 0 ? 'passed' : status === unavailable ? 'skipped, for the reason above,' : `failed with ${status}`;
  console.log(`── ${text}: ${outcome} after ${seconds(stepStarted)} s`);
  if (status === unavailable) {
    totals.skipped += 1;
    continue;
  }
  const report = existsSync(file) ? (JSON.parse(readFileSync(file, 'utf8')) as CheckReport) : { passed: 0, failures: [], skipped: 0 };
  totals.passed += report.passed;
  totals.skipped += report.skipped;
  failures.push(...report.failures);
  // A step may break without saying what failed.
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
