/** Operations that follow each other leave turns of the event loop to whoever else has sockets there. */
import { describe, expect, it } from 'vitest';
import { startRanks } from './testing/in-process-world.ts';

describe.each(['host', 'tcp'] as const)('of a world over %s', (kind) => {
  it.each([
    { asked: 'always', every: 1 },
    { asked: 'now and then', every: 3 },
  ])('asked $asked, a group goes on in the next turn', async ({ every }) => {
    let asked = 0;
    let turns = 0;
    const giveWay = (resume: () => void): boolean => {
      if (++asked % every > 0) return false;
      setImmediate(() => {
        turns++;
        resume();
      });
      return true;
    };
    await using world = await startRanks(3, { kind, giveWay, settings: { inFlightMax: 4 } });
    const calls = 40;
    const tensors = world.groups.map((group) => Array.from({ length: calls }, (_, k) => group.tensor('int32', [k + 1])));
    const turnsBefore = turns;
    await world.each(async (group) => {
      for (const { data } of tensors[group.rank]) data.fill(group.rank + 1);
      await Promise.all(tensors[group.rank].map((tensor) => group.allReduce(tensor)));
    });
    for (const { data } of tensors.flat()) expect(new Set(data)).toEqual(new Set([6]));
    // Each operation has moved on every rank, and whoever moves is asked.
    expect(turns - turnsBefore).toBeGreaterThan(calls / every);
  });
});

it('a group is destroyed while it waits for its turn', async () => {
  await using world = await startRanks(2, { giveWay: (resume) => (setImmediate(resume), true) });
  await world.each(async (group) => {
    const tensors = Array.from({ length: 10 }, () => group.tensor('int32', [4]));
    for (const { data } of tensors) data.fill(1);
    const works = tensors.map((tensor) => group.allReduce(tensor));
    await Promise.all([...works, group.destroy()]);
    for (const { data } of tensors) expect([...data]).toEqual([2, 2, 2, 2]);
  });
});
