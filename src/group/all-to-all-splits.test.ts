/** An all-to-all of which each rank knows its own part only is one call, in its place among the others. */
import { describe, expect, it } from 'vitest';
import { startRanks } from './testing/in-process-world.ts';
import type { ProcessGroup, Work } from './caller/types.ts';

/** Rank 1 sends two elements to rank 0 and keeps one. */
const splits = [
  { inputSplits: [1, 0], outputSplits: [1, 2] },
  { inputSplits: [2, 1], outputSplits: [0, 1] },
] as const;
const inputs = [[10], [20, 21, 22]] as const;
const outputs = [[10, 20, 21], [22]] as const;

function exchange(group: ProcessGroup, output: Int32Array): Work {
  return group.allToAll(output, Int32Array.from(inputs[group.rank]), splits[group.rank]);
}

const outputOf = ({ rank }: ProcessGroup): Int32Array => new Int32Array(outputs[rank].length);

describe('an all-to-all with splits', () => {
  it('is recorded where it was called, not where its last step begins', async () => {
    await using world = await startRanks(2);
    await world.each(async (group) => exchange(group, outputOf(group)));
    for (const flight of world.flights) {
      const entry = flight.dump().entries.find(({ profiling_name: name }) => name === 'shoal:all_to_all');
      expect(entry?.frames.map(({ filename }) => filename)).toEqual(['all-to-all-splits.test.ts']);
    }
  });

  it.each(['host', 'network'] as const)('has the place of its call, whatever ranks call before it has ended: %s', async (kind) => {
    await using world = await startRanks(2, { kind, settings: { inFlightMax: 1 } });
    const [first, second] = world.groups;
    const received = world.groups.map(outputOf);
    const sums = world.groups.map(({ rank }) => Float64Array.of(rank + 1));
    // One rank waits for the end of it before its next call, the other one does not.
    const early = exchange(first, received[0]);
    const late = [exchange(second, received[1]), second.allReduce(sums[1]), exchange(second, received[1])];
    await early;
    await first.allReduce(sums[0]);
    await exchange(first, received[0]);
    await Promise.all(late);
    expect(sums).toEqual([Float64Array.of(3), Float64Array.of(3)]);
    expect(received.map((each) => [...each])).toEqual(outputs);
  });

  it('whose splits contradict each other fails alike on every rank, and nothing else does', async () => {
    await using world = await startRanks(3);
    const wrong = [
      { inputSplits: [0, 1, 0], outputSplits: [0, 0, 0] },
      { inputSplits: [0, 0, 0], outputSplits: [2, 0, 0] },
      { inputSplits: [0, 0, 0], outputSplits: [0, 0, 0] },
    ];
    const total = (counts: readonly number[]): number => counts.reduce((sum, count) => sum + count, 0);
    const outcomes = await world.each(async (group) => {
      const { inputSplits, outputSplits } = wrong[group.rank];
      const output = new Int32Array(total(outputSplits));
      const refused = group.allToAll(output, new Int32Array(total(inputSplits)).fill(7), wrong[group.rank]);
      const sum = Float64Array.of(group.rank);
      const works = [refused, ...Array.from({ length: 40 }, () => group.allReduce(sum))];
      const [exchanged, ...others] = await Promise.allSettled(works);
      return { exchanged, output: [...output], failed: others.filter(({ status }) => status === 'rejected') };
    });
    for (const { exchanged, output, failed } of outcomes) {
      expect(exchanged).toMatchObject({
        status: 'rejected',
        reason: { code: 'mismatch', message: expect.stringMatching(/rank 0 sends 1 elements to rank 1, which expects 2/) },
      });
      expect(output.every((element) => element === 0)).toBe(true);
      expect(failed).toEqual([]);
    }
  });

  it('and another call in its place: a mismatch that shows both', async () => {
    await using world = await startRanks(2);
    const [first, second] = world.groups;
    const outcomes = await Promise.allSettled([exchange(first, outputOf(first)), second.allReduce(Float64Array.of(1))]);
    for (const outcome of outcomes) {
      expect(outcome).toMatchObject({
        reason: {
          code: 'mismatch',
          message: expect.stringMatching(/all-to-all #0 int32\[1\] sends \[1, 0\] receives \[1, 2\] at .*\n.*all-reduce #0/),
        },
      });
    }
  });
});
