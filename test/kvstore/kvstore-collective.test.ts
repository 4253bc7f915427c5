/** Collective stores of real processes: all checks of stores. */
import { expect, it } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { kvstoreChecks } from '../../src/kvstore/conformance.ts';
import { nativeUnavailableReason } from '../../src/memory/native.ts';
import { startRanks } from '../support/ranks.ts';

const missing = nativeUnavailableReason();
if (missing !== undefined) it(`2 ranks that share memory (skipped: ${missing})`, (context) => context.skip(missing));

it.each([...(missing === undefined ? [{ n: 2, fabrics: '' }] : []), { n: 3, fabrics: 'tcp' }])(
  '$n ranks, fabrics "$fabrics"',
  { timeout: 300_000 },
  async ({ n, fabrics }) => {
    const folder = temporaryFolder('collective');
    await using world = await startRanks({ fixture: 'kvstore-collective', n, env: { SHOAL_FABRICS: fabrics, FOLDER: folder } });
    for (const { code, lines, stderr } of await world.outcomes()) {
      expect(stderr).toBe('');
      const names = kvstoreChecks.filter(({ types }) => types.includes('collective')).map(({ name }) => name);
      expect(new Set(lines)).toEqual(new Set(['waitSync', 'released', ...names].map((name) => ({ passed: name }))));
      expect(code).toBe(0);
    }
  },
);
