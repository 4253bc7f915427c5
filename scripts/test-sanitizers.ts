/** `npm run test:sanitizers`: the step machine under ThreadSanitizer, with ranks as threads (test/sanitizers/step-threads.cc), and the addon
 *  under AddressSanitizer and UndefinedBehaviorSanitizer, in the suites that call it most. A step machine without acquiring loads must be
 *  found out, or the check proves nothing. Linux with g++; some ten minutes. */
import { spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { repositoryRoot } from './repository.ts';
import { stepCases } from './step-cases.ts';

const folder = join(repositoryRoot, 'build/sanitizers');
const sources = ['kernels', 'kernels_generic', 'kernels_avx2', 'kernels_avx512'].map((name) => `native/${name}.cc`);
const flags = ['-std=c++17', '-O1', '-g', '-fno-strict-aliasing', '-ffp-contract=off', '-fsanitize=thread', '-Wno-tsan'];
const weakened = ['-U__ATOMIC_ACQUIRE', '-D__ATOMIC_ACQUIRE=__ATOMIC_RELAXED'];

interface Result {
  readonly status: number;
  readonly output: string;
}

function run(program: string, args: readonly string[], environment: NodeJS.ProcessEnv = {}, cwd = repositoryRoot): Result {
  const env = { ...process.env, ...environment };
  const { status, stdout, stderr, error } = spawnSync(program, args, { cwd, env, encoding: 'utf8', maxBuffer: 2 ** 28 });
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

/** Files to compile, and files that vitest needs to run suites of src/. */
const copied = [
  'bench',
  'examples',
  'native',
  'scripts',
  'src',
  'test',
  'layers.json',
  'package.json',
  'tsconfig.json',
  'vitest.config.ts',
];
const addressFlags = '-g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all';
const addressSuites = ['src/memory', 'src/fabric', 'src/call', 'src/group/comm/paths', 'src/ps/optimizers'];

/** The part of native-build.mjs that is used here. */
interface NativeBuild {
  readonly binaries: { readonly built: readonly string[] };
  compileNative(options: {
    readonly arch: string;
    readonly portable: boolean;
    readonly target: string;
    readonly names: readonly string[];
    readonly environment: Readonly<Record<string, string>>;
  }): { readonly reason: string } | undefined;
}

/** Checks the addon in a copy of the repository, so that the one here stays as it is. */
async function checkAddon(): Promise<void> {
  const copy = join(folder, 'repository');
  rmSync(copy, { recursive: true, force: true });
  for (const name of copied) cpSync(join(repositoryRoot, name), join(copy, name), { recursive: true });
  symlinkSync(join(repositoryRoot, 'node_modules'), join(copy, 'node_modules'));
  const { binaries, compileNative } = (await import(pathToFileURL(join(copy, 'scripts/native-build.mjs')).href)) as NativeBuild;
  const target = join(copy, 'build/Release');
  const environment = { CXXFLAGS: addressFlags, LDFLAGS: addressFlags };
  const problem = compileNative({ arch: process.arch, portable: false, target, names: binaries.built, environment });
  if (problem !== undefined) throw new Error(`the addon cannot be built: ${problem.reason}`);
  check('the addon reports addresses', readFileSync(join(target, binaries.built[0])).includes('__asan_report_store'), '');
  const runtimes = ['libasan.so', 'libubsan.so'].map((name) => run('g++', [`-print-file-name=${name}`]).output.trim());
  const { status, output } = run(
    process.execPath,
    [join(repositoryRoot, 'node_modules/vitest/vitest.mjs'), 'run', '--project', 'modules', ...addressSuites],
    {
      LD_PRELOAD: runtimes.join(':'),
      // Node.js frees nothing when it ends, and handles signals of its own.
      ASAN_OPTIONS: 'detect_leaks=0:allow_user_segv_handler=1',
      UBSAN_OPTIONS: 'print_stacktrace=1',
    },
    copy,
  );
  const counts = /Tests .*/.exec(output)?.[0] ?? 'no test ran';
  check(`no wrong address, nothing undefined: ${counts}`, status === 0, output.slice(-20_000));
}

await checkAddon();
process.exitCode = failed === 0 ? 0 : 1;
