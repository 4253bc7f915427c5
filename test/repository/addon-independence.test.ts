/** The pass without the addon leaves out the tests that reach it in no way, and only those. */
import { describe, expect, it } from 'vitest';
import { testsIndependentOfAddon } from '../../scripts/addon-independence.ts';
import { readSources } from '../../scripts/repository.ts';

const skeleton: Readonly<Record<string, string>> = {
  'src/memory/native.ts': '',
  'src/memory/kernels.ts': "import { loadNative } from './native.ts';",
  'src/plan/ir.ts': "import type { Clock } from '../base/clock.ts';",
  'src/base/clock.ts': '',
  'src/launch/supervisor.ts': "import { spawn } from 'node:child_process';",
};

function independent(text: string): boolean {
  const files = Object.entries({ ...skeleton, 'src/plan/a.test.ts': text }).map(([path, body]) => ({ path, text: body }));
  return testsIndependentOfAddon(files).length === 1;
}

describe('a test', () => {
  it.each([
    ['of pure modules', "import './ir.ts'; import { expect } from 'vitest';", true],
    ['that reads a file', "import './ir.ts'; readFileSync(new URL('./table.json', import.meta.url));", true],
    ['of the loader itself', "import { loadNative } from '../memory/native.ts';", false],
    ['of a module that imports the loader', "import '../memory/kernels.ts';", false],
    ['that imports it when it runs', "await import('../memory/kernels.ts');", false],
    ['that replaces it', "vi.mock('../memory/native.ts');", false],
    ['of a module that starts processes', "import '../launch/supervisor.ts';", false],
    ['that starts threads', "import { Worker } from 'node:worker_threads';", false],
    ['of built code', "new URL('../../dist/plan/entry.js', import.meta.url);", false],
    ['of the package by its name', "import { sum } from 'shoal/ddp';", false],
  ])('%s', (_, text, expected) => {
    expect(independent(text)).toBe(expected);
  });

  it('of this repository is one or the other', () => {
    const found = testsIndependentOfAddon(readSources());
    expect(found).toContain('src/plan/verify.test.ts');
    expect(found).not.toContain('src/memory/kernels/kernels.test.ts');
    expect(found).not.toContain('test/group/group-processes.test.ts');
  });
});
