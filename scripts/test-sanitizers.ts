/** `npm run test:sanitizers`: the step machine under ThreadSanitizer, with ranks as threads (test/sanitizers/step-threads.cc). A step
 *  machine without acquiring loads must be found out, or the check proves nothing. Linux with g++; a few minutes. */
import { spawnSync } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { repositoryRoot } from './repository.ts';
import { stepCases } from './step-cases.ts';

const folder = join(repositoryRoot, 'build/sanitizers');
const sources = ['kernels', 'kernels_generic', 'kernels_avx2', 'kernels_avx512'].map((name) => `native/${name}.cc`);
const flags = ['-std=c++17', '-O1', '-g', '-fno-strict-aliasing', '-ffp-contract=off', '-fsanitize=thread', '-Wno-tsan'];
const weakened = ['-U__ATOMIC_ACQUIRE', '-D__ATOMIC_ACQUIRE=__ATOMIC_RELAXED'];

function run(program: string, args: readonly string[], environment: NodeJS.ProcessEnv = {}): { status: number; output: string } {
  const env = { ...process.env, ...environment };
  const { status, stdout, stderr, error } = spawnSync(program, args, { cwd: repositoryRoot, env, encoding: 'utf8', maxBuffer: 2 ** 28 });
  if (error !== undefined) throw new Error(`${program} does not start: ${error.message}`);
  return { status: status ?? 1, output: `${stdout}${stderr}` };
}

function compile(args: readonly string[], target: string): string {
  const path = join(folder, target);
  const { status, output } = run('g++', [...flags, ...args, '-o', path]);
  if (status !== 0) throw new Error(`${target} cannot be built:\n${output}`);
  return path;
}

mkdirSync(folder, { recursive: true });
const common = ['test/sanitizers/step-threads.cc', ...sources].map((source) => compile(['-c', source], `${basename(source)}.o`));
const machine = 'native/step_machine.cc';
const sound = compile([...common, compile(['-c', machine], 'sound.o'), '-lpthread'], 'step-threads');
const broken = compile([...common, compile(['-c', ...weakened, machine], 'weakened.o'), '-lpthread'], 'step-threads-weakened');

let failed = 0;
const check = (what: string, passed: boolean, output: string): void => {
  console.log(`${passed ? 'ok    ' : 'FAILED'} ${what}`);
  if (passed) return;
  failed++;
  console.error(output);
};
for (const ranks of [2, 3, 4]) {
  const cases = join(folder, `cases-${ranks}.txt`);
  writeFileSync(cases, stepCases(ranks, 4));
  const { status, output } = run(sound, [cases]);
  check(`no races: ${output.trim().split('\n').at(-1)}`, status === 0, output);
  // One report is enough.
  const found = run(broken, [cases], { TSAN_OPTIONS: 'halt_on_error=1' });
  check(`loads that do not acquire are found out: ${ranks} ranks`, found.status !== 0 && /data race/.test(found.output), found.output);
}
process.exitCode = failed === 0 ? 0 : 1;
