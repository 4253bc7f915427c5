/** Calls between hosts of scripts that block for them, and of scripts that do not. */
import { expect, it } from 'vitest';
import { nativeUnavailableReason } from '../../src/memory/native.ts';
import { startRanks } from '../support/ranks.ts';

/** Calls that were complete when they returned on rank 0, for each of which rank 1 was 0.2 s late: far longer than the usual wait. */
async function completeCalls(blocks: string): Promise<boolean[]> {
  const env = { SCENARIO: 'late each time', BLOCKS: blocks, SHOAL_FABRICS: 'tcp', SHOAL_SYNC_SPIN_US: '50000' };
  await using world = await startRanks({ fixture: 'scenario', n: 2, env });
  const { done } = await world.ranks[0].line((line: { done?: boolean[] }) => line.done !== undefined);
  for (const { code, stderr } of await world.outcomes()) expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  return done!;
}

it('a script that blocks at once keeps its calls on its thread from the second one on', async (context) => {
  const missing = nativeUnavailableReason();
  if (missing !== undefined) context.skip(missing);
  expect(await completeCalls('1')).toContain(true);
});

it('a script that goes on gets them back, and the comm thread waits', async (context) => {
  const missing = nativeUnavailableReason();
  if (missing !== undefined) context.skip(missing);
  expect(await completeCalls('0')).toContain(false);
});
