import { configDefaults, defineConfig } from 'vitest/config';
import { leftOutWithoutAddon } from './scripts/addon-independence.ts';
import { readSources } from './scripts/repository.ts';
import TestOrder from './scripts/test-order.ts';

/** They run in the pass with the addon. */
const leftOut = process.env.SHOAL_NATIVE === '0' ? leftOutWithoutAddon(readSources()) : [];

export default defineConfig({
  test: {
    include: ['src/**/*.test.ts', 'test/**/*.test.ts'],
    exclude: [...configDefaults.exclude, ...leftOut.flatMap(({ files }) => files)],
    // For what hangs, not for what is slow: machines may be busy.
    testTimeout: 600_000,
    hookTimeout: 600_000,
    expect: { poll: { timeout: 60_000 } },
    globalSetup: './test/support/fixtures.ts',
    // More than there are CPUs in CI: tests of processes often wait, for each other or for time to pass.
    maxWorkers: 3,
    pool: 'forks',
    sequence: { sequencer: TestOrder },
    reporters: ['default', ['./scripts/summary-reporter.ts', { leftOut }]],
    coverage: { include: ['src/**/*.ts'], exclude: ['src/**/*.test.ts', 'src/**/conformance.ts', 'src/**/testing/**'] },
  },
});
