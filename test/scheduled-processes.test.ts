/** Scheduled groups of real processes: all-reduces run in the comm thread, whatever the main thread does, and a rank that dies ends
 *  what is queued on the others. */
import { describe, expect, it } from 'vitest';
import { nativeUnavailableReason } from '../src/memory/native.ts';
import { startRanks } from './support/ranks.ts';

const missing = nativeUnavailableReason();
const fabricLists = missing === undefined ? ['', 'tcp'] : [''];

describe.each(fabricLists)('scheduled all-reduces, fabrics "%s"', (fabrics) => {
  it('are done while a busy main thread never returns to its event loop', async () => {
    await using world = await startRanks({ fixture: 'scheduled', n: 2, env: { SHOAL_FABRICS: fabrics } });
    for (const { lines, stderr, code } of await world.outcomes()) {
      expect(stderr).toBe('');
      expect(lines).toEqual([{ wrong: 0 }]);
      expect(code).toBe(0);
    }
  });

  it('end with peer-lost when a rank is killed, also those that are queued', async () => {
    await using world = await startRanks({ fixture: 'scheduled', n: 3, env: { SHOAL_FABRICS: fabrics, SCENARIO: 'killed' } });
    await Promise.all(world.ranks.map((rank) => rank.line((line: { ready?: number }) => line.ready !== undefined)));
    world.ranks[1].kill();
    await world.ranks[1].exited;
    for (const rank of [world.ranks[0], world.ranks[2]]) rank.tell();
    for (const rank of [world.ranks[0], world.ranks[2]]) {
      const report = await rank.line(({ what }: { what?: string }) => what === 'ends');
      expect(report).toMatchObject({ codes: ['peer-lost'], peers: [1], waited: 'peer-lost' });
    }
  });
});
