/** The hints that `shoal run` adds to last words of a rank that would puzzle its user; with the real programs that print them. */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { shoalRun } from '../fixtures/launch-harness.ts';

it('says what is needed by a file that a script imports, and that awaits at its top level in a CommonJS package', async () => {
  const folder = temporaryFolder('hints');
  await writeFile(join(folder, 'package.json'), '{"type":"commonjs"}');
  await writeFile(join(folder, 'main.ts'), "import './part.ts';\n");
  await writeFile(join(folder, 'part.ts'), "import { setImmediate } from 'node:timers/promises';\nawait setImmediate();\n");
  const { code, stderr } = await shoalRun('-q', join(folder, 'main.ts')).ended;
  expect(code).toBe(1);
  expect(stderr).toMatch(/\nshoal: package.json says "type": "commonjs", .* make that "module", or name the script .mts\n$/);
});
