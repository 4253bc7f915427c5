import { describe, expect, it } from 'vitest';
import { nativeUnavailableReason } from '../../memory/native.ts';
import { groupChecks } from '../conformance.ts';
import { startRanks, type InProcessOptions } from '../testing/in-process-world.ts';

const missing = nativeUnavailableReason();
const worlds: readonly { name: string; options: InProcessOptions }[] = [
  { name: 'host', options: { kind: 'host' } },
  { name: 'host, with its fast path', options: { kind: 'host', fastPath: true } },
  { name: 'network', options: { kind: 'network' } },
  ...(missing === undefined ? [{ name: 'tcp', options: { kind: 'tcp' } } as const] : []),
];
if (missing !== undefined)
  it(`process group over tcp (skipped: ${missing}: test/group-processes is over it)`, (context) => context.skip(missing));

describe.each(worlds)('process group over $name', ({ options }) => {
  for (const n of [1, 2, 3, 4]) {
    describe(`${n} ranks`, () => {
      it.each(groupChecks)('$name', async ({ run }) => {
        await using world = await startRanks(n, options);
        await world.each(run);
        expect(world.groups).toHaveLength(n);
      });
    });
  }
});
