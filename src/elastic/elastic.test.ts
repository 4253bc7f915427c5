import { describe, expect, it } from 'vitest';
import { ShoalError } from '../base/errors.ts';
import { seededRandom } from '../base/random.ts';
import type { ProcessGroup } from '../group/caller/types.ts';
import { InProcessSite } from '../group/testing/in-process-world.ts';
import { startRanks } from '../group/testing/in-process-world.ts';
import { elastic, type ElasticState, type ElasticSteps } from './elastic.ts';

async function turns(count: number): Promise<void> {
  for (let turn = 0; turn < count; turn++) await new Promise(setImmediate);
}

describe.each([
  { kind: 'host', fastPath: true, form: 'a function' },
  { kind: 'network', fastPath: false, form: 'a function' },
  { kind: 'host', fastPath: true, form: 'steps' },
  { kind: 'network', fastPath: false, form: 'steps' },
] as const)('over $kind, by $form', ({ form, ...path }) => {
  /** Trains for so many steps, and adds a number per step on each rank. @param during what a rank does as its step begins. */
  async function train(group: ProcessGroup, steps: number, during: (rank: number, step: number) => Promise<void> | void = () => {}) {
    const rank = group.globalRanks[group.rank];
    const sum = group.tensor('float64', [1]);
    const state: ElasticState = { step: 0, tensors: [sum, new Float32Array(1000)], extra: 'none' };
    const parts: ElasticSteps = {
      averages: async (current) => {
        if (state.step === steps) return undefined;
        await during(rank, state.step);
        const data = new Float32Array(1000).fill(state.step + 1);
        await current.allReduce(data, { op: 'avg' });
        return [data, Float64Array.of(data[0])];
      },
      update: (_, [data, first]) => {
        sum.data[0] += (first as Float64Array)[0];
        (state.tensors[1] as Float32Array).forEach((each, index, all) => (all[index] = each + (data as Float32Array)[index]));
        state.extra = `after ${state.step}`;
      },
    };
    const byFunction = async (current: ProcessGroup, _: unknown, boundary: () => Promise<void>): Promise<void> => {
      for (;;) {
        const averages = await parts.averages(current, state);
        if (averages === undefined) return;
        parts.update(state, averages);
        state.step++;
        await boundary();
      }
    };
    const last = await elastic.run(group, state, form === 'steps' ? parts : byFunction);
    const [, array] = state.tensors as [unknown, Float32Array];
    return { last, ranks: last.globalRanks, sum: sum.data[0], same: array.every((each) => each === sum.data[0]), extra: state.extra };
  }

  const steps = 40;
  const total = (steps * (steps + 1)) / 2;

  it('a rank that joins goes on with the state of the others, at the same step', async () => {
    const site = new InProcessSite(2, path);
    const groups = await Promise.all([site.start(0), site.start(1)]);
    let late: ReturnType<typeof train> | undefined;
    const waits = async (rank: number, step: number): Promise<void> => {
      if (step !== 10) return;
      if (rank === 0) late = site.start(2).then((group) => train(group, steps));
      await expect.poll(() => groups.map(({ waiting }) => waiting)).toEqual([1, 1]);
    };
    const ends = await Promise.all(groups.map((group) => train(group, steps, waits)));
    for (const end of [...ends, await late!]) {
      expect(end).toMatchObject({ ranks: [0, 1, 2], sum: total, same: true, extra: `after ${steps - 1}` });
      await end.last.destroy({ timeoutMs: 100 });
    }
  });

  it.each([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])('whoever is lost as a rank joins, each step counts once: seed %i', async (seed) => {
    const random = seededRandom(seed);
    const site = new InProcessSite(3, path);
    const lost = new Set<number>();
    const groups = await Promise.all([0, 1, 2].map((rank) => site.start(rank)));
    const during = async (rank: number, step: number): Promise<void> => {
      if (lost.has(rank)) await new Promise(() => undefined);
      if (step < steps / 2) await turns(1);
    };
    const results = groups.map((group) => train(group, steps, during));
    const late = site.start(3).then((group) => train(group, steps, during));
    for (const result of [...results, late]) result.catch(() => undefined);
    await turns(random.integer(120));
    const victim = 1 + random.integer(3);
    lost.add(victim);
    site.crash(victim);
    const left = [0, 1, 2].filter((rank) => !lost.has(rank));
    const ends = await Promise.all(left.map((rank) => results[rank]));
    for (const { ranks, ...end } of ends) {
      expect(end).toMatchObject({ sum: total, same: true });
      expect(ranks).toEqual(ends[0].ranks);
    }
    if (ends[0].ranks.includes(3)) expect(await late).toMatchObject({ sum: total, same: true, ranks: ends[0].ranks });
    await Promise.all(ends.map(({ last }) => last.destroy({ timeoutMs: 100 })));
  });
});

it('other errors end it, and so does bad input', async () => {
  await using world = await startRanks(1);
  const [group] = world.groups;
  const state = { step: 0, tensors: [] };
  const own = new Error('mine');
  await expect(elastic.run(group, state, () => Promise.reject(own))).rejects.toBe(own);
  const usage = new ShoalError('usage', 'no');
  await expect(elastic.run(group, state, () => Promise.reject(usage))).rejects.toBe(usage);
  await expect(elastic.run(group, { step: -1, tensors: [] }, async () => {})).rejects.toMatchObject({ code: 'usage' });
  const parts = { averages: () => Promise.resolve(undefined), update: () => undefined };
  for (const train of [
    undefined,
    'train',
    {},
    { ...parts, update: 1 },
    { ...parts, average: parts.averages },
    { ...parts, averages: () => 1 },
  ])
    await expect(elastic.run(group, state, train as never)).rejects.toMatchObject({ code: 'usage' });
  expect(await elastic.run(group, state, parts)).toBe(group);
  const none = async (): Promise<void> => {};
  await expect(elastic.run(group, {} as never, none)).rejects.toThrow(
    'elastic.run: state.step must be a whole number from 0, not undefined',
  );
  await expect(elastic.run(group, { step: 0 } as never, none)).rejects.toThrow('elastic.run: state.tensors must be a list, not undefined');
  await expect(elastic.run({} as never, state, none)).rejects.toThrow(
    /elastic.run: the first argument is the process group, not an object/,
  );
});
