import { configDefaults, defineConfig } from 'vitest/config';
import { testsIndependentOfAddon } from './scripts/addon-independence.ts';
import { readSources } from './scripts/repository.ts';
import { longSeconds, readDurations } from './scripts/test-durations.ts';
import TestOrder from './scripts/test-order.ts';

// Each process of Node.js would read these certificates for 60 ms before it starts, and no test needs them.
delete process.env.NODE_EXTRA_CA_CERTS;

const sources = readSources();
/** They run in the pass with the addon. */
const leftOut = process.env.SHOAL_NATIVE === '0' ? testsIndependentOfAddon(sources) : [];
const exclude = [...configDefaults.exclude, ...leftOut];

/** Test files of src/ that run in a process each: those that replace modules, and those that take long. */
const durations = readDurations();
const testsIn = (folder: string): typeof sources => sources.filter(({ path }) => path.startsWith(folder) && path.endsWith('.test.ts'));
const alone = testsIn('src/')
  .filter(({ path, text }) => text.includes('vi.mock(') || (durations.get(path) ?? 0) >= longSeconds)
  .map(({ path }) => path);

/** Matches test files whose own process is a rank, a worker or a thread of one, or is changed or measured by them. */
const usesProcess =
  /\bvi\.(mock|spyOn|stub|setConfig|use)|\.stores\(|initProcessGroup\(|\bnew Worker\(|process\.(chdir|on|once|report|memoryUsage)\b|process\.env(\.\w+|\[[^\]]+\]) = |\/proc\/self|from 'shoal|from '@(tensorflow|jax)/;
/** Test files of test/ that only start processes, and look at what these say. */
const starters = testsIn('test/')
  .filter(({ text }) => !usesProcess.test(text))
  .map(({ path }) => path);

export default defineConfig({
  test: {
    projects: [
      {
        extends: true,
        test: {
          name: 'processes',
          include: ['test/**/*.test.ts', ...alone],
          exclude: [...exclude, ...starters],
          globalSetup: './test/support/fixtures.ts',
        },
      },
      { extends: true, test: { name: 'starters', include: starters, exclude, isolate: false, globalSetup: './test/support/fixtures.ts' } },
      // One after the other in the same process: starting one for each, with all that it imports, takes longer than most of them.
      { extends: true, test: { name: 'modules', include: ['src/**/*.test.ts'], exclude: [...exclude, ...alone], isolate: false } },
    ],
    // For what hangs, not for what is slow: machines may be busy.
    testTimeout: 600_000,
    hookTimeout: 600_000,
    expect: { poll: { timeout: 60_000 } },
    // More than there are CPUs in CI: tests of processes often wait, for each other or for time to pass.
    maxWorkers: 3,
    pool: 'forks',
    sequence: { sequencer: TestOrder },
    reporters: ['default', ['./scripts/summary-reporter.ts', { leftOut }]],
    coverage: { include: ['src/**/*.ts'], exclude: ['src/**/*.test.ts', 'src/**/conformance.ts', 'src/**/testing/**'] },
  },
});
