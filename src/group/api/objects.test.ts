/** Collectives of objects: what is refused, and what ranks hear that do not agree. What they do is in the conformance suite. */
import { describe, expect, it } from 'vitest';
import { ShoalError } from '../../base/errors.ts';
import { startRanks } from '../testing/in-process-world.ts';

const codeOf = (thrown: unknown): string => ShoalError.from(thrown).code;

describe('object collectives', () => {
  it('refuse what cannot be sent before any rank hears of it', async () => {
    await using world = await startRanks(2);
    const [group] = world.groups;
    await expect(group.allGatherObject(() => 1)).rejects.toMatchObject({
      code: 'usage',
      message: /allGatherObject: the value cannot be sent/,
    });
    await expect(group.broadcastObject(Symbol('x'), { root: 0 })).rejects.toMatchObject({ code: 'usage' });
    await expect(group.gatherObject(1, { root: 2 })).rejects.toThrow(/root 2 is not a rank/);
    await expect(group.allGatherObject(1, { root: 0 } as object)).rejects.toThrow(/'root'|root/);
    await expect(group.scatterObject([1])).rejects.toThrow(/one value for each of 2 ranks, not 1/);
    await expect(group.scatterObject(null)).rejects.toThrow(/one value for each of 2 ranks, not null/);
    await expect(group.scatterObject([1, 2], { root: 1 })).rejects.toThrow(/only the root, rank 1, has values/);
    const values = await world.each((each) => each.allGatherObject(each.rank));
    expect(values).toEqual([
      [0, 1],
      [0, 1],
    ]);
  });

  it('tell ranks that call different ones, by name', async () => {
    await using world = await startRanks(2);
    const [first, second] = world.groups;
    const outcomes = await Promise.allSettled([first.allGatherObject('a'), second.broadcastObject('b')]);
    for (const outcome of outcomes) {
      expect(outcome).toMatchObject({ status: 'rejected', reason: { code: 'mismatch' } });
      expect((outcome as PromiseRejectedResult).reason.message).toMatch(
        /allGatherObject.*broadcastObject|broadcastObject.*allGatherObject/s,
      );
    }
  });

  it('a work is caught and finished as a promise is', async () => {
    await using world = await startRanks(2);
    const ends: string[] = [];
    await world.each((group) => group.barrier().finally(() => ends.push(`${group.rank}`)));
    expect(ends.toSorted()).toEqual(['0', '1']);
    const [first, second] = world.groups;
    const caught = first.allReduce(new Float32Array(1)).catch(codeOf);
    const other = second.allReduce(new Float32Array(2)).catch(codeOf);
    expect(await Promise.all([caught, other])).toEqual(['mismatch', 'mismatch']);
  });
});
