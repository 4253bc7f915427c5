import { describe, expect, it } from 'vitest';
import { groupChecks } from '../conformance.ts';
import { startRanks, type InProcessOptions } from '../testing/in-process-world.ts';

const kinds: readonly NonNullable<InProcessOptions['kind']>[] = ['host', 'network', 'tcp'];

describe.each(kinds)('process group over %s', (kind) => {
  for (const n of [1, 2, 3, 4]) {
    describe(`${n} ranks`, () => {
      it.each(groupChecks)('$name', async ({ run }) => {
        await using world = await startRanks(n, { kind });
        await world.each(run);
        expect(world.groups).toHaveLength(n);
      });
    });
  }
});
