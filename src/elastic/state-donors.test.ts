import { describe, expect, it } from 'vitest';
import { InProcessSite, startRanks, type InProcessOptions } from '../group/testing/in-process-world.ts';
import { elastic, type ElasticState } from './elastic.ts';
import { handOn } from './state-donors.ts';

const paths: InProcessOptions[] = [
  { kind: 'host', fastPath: true },
  { kind: 'network', fastPath: false },
  { kind: 'tcp', fastPath: false },
];

describe.each(paths)('over $kind', (path) => {
  it.each<[number[], number[]]>([
    [[0, 1, 3], [2]],
    [
      [1, 3],
      [0, 2],
    ],
    [[0, 1, 2, 3], []],
    [[2], [0, 1, 3]],
  ])('donors %j send disjoint parts, equally large, to %j', async (donors, receivers) => {
    await using world = await startRanks(4, path);
    await world.each(async (group) => {
      const shared = group.tensor('float32', [3, 30_000]);
      const state = [new Int32Array(77), shared, new Float64Array(0), new Uint8Array(100_001), new Float64Array(1), new Int16Array(40_000)];
      const arrays = [state[0], shared.data, ...state.slice(2)] as Uint8Array[];
      for (const array of arrays) array.fill(donors.includes(group.rank) ? group.rank + 10 : 1);
      await handOn(group, state, donors);
      // Each says who has sent it.
      const bytes = new Map<number, number>();
      for (const array of arrays) for (const value of array) bytes.set(value, (bytes.get(value) ?? 0) + array.BYTES_PER_ELEMENT);
      if (donors.includes(group.rank)) return expect([...bytes.keys()]).toEqual([group.rank + 10]);
      const senders = receivers.length > donors.length ? donors.slice(0, 1) : donors;
      expect([...bytes.keys()].sort((a, b) => a - b)).toEqual(senders.map((rank) => rank + 10));
      const [least, most] = [Math.min(...bytes.values()), Math.max(...bytes.values())];
      expect(most - least).toBeLessThanOrEqual(16);
    });
  });
});

it.each([0, 1, 2, 3, 4, 6, 8, 12, 16, 24])(
  'nobody trains with half of the state: all that had it are lost %i turns after a rank has joined',
  async (turns) => {
    const steps = 20;
    const site = new InProcessSite(2, { kind: 'network', fastPath: false });
    const lost = new Set<number>();
    const crash = async (): Promise<void> => {
      for (let turn = 0; turn < turns; turn++) await new Promise(setImmediate);
      for (const rank of [0, 1]) lost.add(rank);
      for (const rank of [0, 1]) site.crash(rank);
    };
    const run = async (rank: number): Promise<{ readonly values: readonly number[]; readonly step: number }> => {
      const group = await site.start(rank);
      if (rank === 2) void crash();
      const state: ElasticState = { step: 0, tensors: [new Float64Array(30_000), new Float64Array(1)] };
      const [large, small] = state.tensors as [Float64Array, Float64Array];
      const last = await elastic.run(group, state, async (current, _, boundary) => {
        while (state.step < steps || (current.size === 2 && rank < 2)) {
          if (lost.has(rank)) return new Promise(() => undefined);
          await current.barrier();
          for (const array of [large, small]) array.forEach((each, index) => (array[index] = each + 1));
          state.step++;
          await boundary();
        }
      });
      await last.destroy({ timeoutMs: 100 });
      return { values: [...large, ...small], step: state.step };
    };
    const members = [run(0), run(1)];
    for (const member of members) member.catch(() => undefined);
    const [end] = await Promise.allSettled([run(2)]);
    if (end.status === 'rejected') expect(end.reason).toMatchObject({ code: 'aborted' });
    else expect(new Set(end.value.values)).toEqual(new Set([end.value.step]));
  },
);
