/** An all-to-all of several steps is one call to whoever looks for it. */
import { expect, it } from 'vitest';
import { startRanks } from './testing/in-process-world.ts';

it('an all-to-all with splits is recorded where it was called, not where its last step begins', async () => {
  await using world = await startRanks(2);
  await world.each(async (group) => {
    // Rank 1 sends two elements to rank 0 and keeps one.
    const splits = [
      { inputSplits: [1, 0], outputSplits: [1, 2] },
      { inputSplits: [2, 1], outputSplits: [0, 1] },
    ][group.rank];
    await group.allToAll(new Int32Array([3, 1][group.rank]), new Int32Array([1, 3][group.rank]), splits);
  });
  for (const flight of world.flights) {
    const entry = flight.dump().entries.find(({ profiling_name: name }) => name === 'shoal:all_to_all');
    expect(entry?.frames.map(({ filename }) => filename)).toEqual(['all-to-all-splits.test.ts']);
  }
});
