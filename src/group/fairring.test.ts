/** Fairring as it runs: several hosts of one process, its three channels, staging that is used again; the same bits as others. */
import { describe, expect, it } from 'vitest';
import { seededRandom } from '../base/random.ts';
import type { Settings } from '../base/settings/settings.ts';
import { startRanks } from './testing/in-process-world.ts';

async function sumOver(
  hostIds: readonly string[],
  algorithm: string,
  count: number,
  groupHosts: Settings['groupHosts'] = 'auto',
): Promise<string> {
  const settings = { algorithms: `all-reduce:${algorithm}`, sliceBytes: 16 * 1024, stagingBytes: 24 * 1024, groupHosts };
  await using world = await startRanks(hostIds.length, { kind: 'host', hostIds, settings });
  const results = await world.each(async (group) => {
    const random = seededRandom(group.rank);
    const x = group.tensor('float32', [count]);
    // Over 24 binary orders, so that the order of additions shows.
    for (let i = 0; i < count; i++) x.data[i] = (random.next() - 0.5) * 2 ** (random.integer(24) - 12);
    const y = group.tensor('float32', [count]);
    y.data.set(x.data);
    await Promise.all([group.allReduce(x), group.allReduce(y)]);
    return [x, y].map((each) => Buffer.from(each.data.buffer, each.data.byteOffset, each.bytes).toString('base64'));
  });
  expect(new Set(results.flat()).size, 'all ranks and both operations have the same bits').toBe(1);
  return results[0][0];
}

describe('fairring', () => {
  it.each([
    ['2 hosts × 2', ['a', 'a', 'b', 'b']],
    ['3 hosts × 1', ['a', 'b', 'c']],
    ['2 hosts × 3, ranks interleaved', ['a', 'b', 'a', 'b', 'a', 'b']],
    ['4 hosts × 2', ['a', 'a', 'b', 'b', 'c', 'c', 'd', 'd']],
  ])('gives the bits of direct and of halving-doubling: %s', async (_, hostIds) => {
    for (const count of [1, 1013, 50_001]) {
      const sums = await Promise.all(['fairring', 'direct', 'halving-doubling'].map((name) => sumOver(hostIds, name, count)));
      expect(new Set(sums).size).toBe(1);
    }
  });

  it.each([
    ['5 hosts × 1', ['a', 'b', 'c', 'd', 'e'], '2'],
    ['6 hosts × 1', ['a', 'b', 'c', 'd', 'e', 'f'], '4'],
    ['5 hosts × 2, ranks interleaved', ['a', 'b', 'c', 'd', 'e', 'e', 'd', 'c', 'b', 'a'], '2'],
  ] as const)('gives the same bits in groups of hosts: %s', async (_, hostIds, groupHosts) => {
    for (const count of [1, 1013, 50_001]) {
      const sums = await Promise.all((['all', groupHosts] as const).map((each) => sumOver(hostIds, 'fairring', count, each)));
      expect(new Set([...sums, await sumOver(hostIds, 'direct', count)]).size).toBe(1);
    }
  });

  /** More pieces than the window: owners have a channel of their own, staging and rings are used again. */
  it('gives the bits of direct and of halving-doubling: many pieces', async () => {
    const count = 2_200_001;
    const sums = await Promise.all(['fairring', 'direct', 'halving-doubling'].map((name) => sumOver(['a', 'b', 'c'], name, count)));
    expect(new Set(sums).size).toBe(1);
  });

  it('refuses hosts of different sizes by name, and auto takes another', async () => {
    await expect(sumOver(['a', 'a', 'b'], 'fairring', 10)).rejects.toThrow(/host 0 has 2, host 1 has 1/);
    await using world = await startRanks(3, { kind: 'host', hostIds: ['a', 'a', 'b'] });
    const sums = await world.each(async (group) => {
      const x = group.tensor('float32', [70_000]);
      x.data.fill(1);
      await group.allReduce(x);
      return x.data[69_999];
    });
    expect(sums).toEqual([3, 3, 3]);
  });
});
