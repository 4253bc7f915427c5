import { expect, it } from 'vitest';
import { groupIdMax, GroupNumbers } from '../../membership/group-numbers.ts';
import type { ProcessGroup } from '../caller/types.ts';
import { startRanks } from '../testing/in-process-world.ts';

/** The ranks tell each other their numbers, and each of them concludes. */
function agree(...ranks: GroupNumbers[]): { id: number | undefined; serial: number }[] {
  const all = Int32Array.from(ranks.flatMap((rank) => [...rank.encode()]));
  return ranks.map((rank) => rank.agree(all));
}

it('a new group takes the smallest number that no rank uses, and a serial that was never given', () => {
  const [a, b] = [new GroupNumbers(), new GroupNumbers()];
  expect(agree(a, b)).toEqual([
    { id: 1, serial: 1 },
    { id: 1, serial: 1 },
  ]);
  a.use(1);
  b.use(2);
  expect(agree(a, b)[0]).toEqual({ id: 3, serial: 2 });
  a.free(1);
  expect(agree(a, b)[0]).toEqual({ id: 1, serial: 3 });
  for (let id = 0; id <= groupIdMax; id++) (id % 2 === 0 ? a : b).use(id);
  expect(agree(a, b)[1]).toEqual({ id: undefined, serial: 4 });
  b.free(groupIdMax);
  expect(agree(a, b)[1]).toEqual({ id: groupIdMax, serial: 5 });
});

it.each(['host', 'network'] as const)(
  'over %s, a number is free again when all ranks have destroyed the group, not before',
  async (kind) => {
    await using world = await startRanks(2, { kind });
    const names = await world.each(async (group) => {
      const first = await group.split(0);
      // Destroyed on one rank alone: the other goes on to use it.
      if (group.rank === 0) await first?.destroy();
      const second = await group.split(0);
      await second?.allReduce(Float32Array.of(1));
      await expect(Promise.resolve(group.rank === 0 ? undefined : first?.barrier({ timeoutMs: 60_000 })))
        .resolves.toBeUndefined()
        .catch(() => undefined);
      await first?.destroy();
      await second?.destroy();
      const names: string[] = [];
      for (let round = 0; round < 20; round++) {
        const next = await group.split(0);
        await next?.allReduce(Float32Array.of(1));
        // Nobody takes this: what is left of it is not the next group's.
        if (group.rank === 0) await next?.send(Int32Array.of(round), 1);
        if (next) names.push(next.name);
        await next?.destroy();
      }
      const last = await group.split(0);
      if (group.rank === 0) await last?.send(Int32Array.of(77), 1);
      const received = new Int32Array(1);
      if (group.rank === 1) await last?.recv(received, 0);
      expect(received[0]).toBe(group.rank === 1 ? 77 : 0);
      return names;
    });
    expect(new Set(names[0]).size).toBe(20);
    expect(names[1]).toEqual(names[0]);
  },
);

it.each(['host', 'network'] as const)('over %s, groups that are made at the same time have numbers of their own', async (kind) => {
  await using world = await startRanks(3, { kind });
  const sums = await world.each(async (group) => {
    const value = 10 ** group.rank;
    const sumIn = async (each: ProcessGroup | null): Promise<number> => {
      const sum = Float32Array.of(value);
      await each?.allReduce(sum);
      return sum[0];
    };
    const pairs = [
      [0, 1],
      [1, 2],
      [0, 2],
    ];
    const results: number[][] = [];
    for (let round = 0; round < 3; round++) {
      const made = await Promise.all([
        ...pairs.map((ranks) => group.newGroup(ranks)),
        group.split(group.rank === 1 ? null : 0),
        group.newSubgroups({ groupSize: 3 }),
      ]);
      expect(new Set(made.flatMap((each) => each?.name ?? [])).size).toBe(made.filter((each) => each !== null).length);
      // Groups of different groups, at the same time.
      const both = await Promise.all(made.map((each) => each?.split(0) ?? Promise.resolve(null)));
      results.push(await Promise.all([...made, ...both].map(sumIn)));
      for (const each of [...both, ...made]) await each?.destroy();
    }
    return results;
  });
  for (const [rank, rounds] of sums.entries()) {
    const own = 10 ** rank;
    const made = [rank === 2 ? own : 11, rank === 0 ? own : 110, rank === 1 ? own : 101, rank === 1 ? own : 101, 111];
    for (const round of rounds) expect(round).toEqual([...made, ...made]);
  }
});
