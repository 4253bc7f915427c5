import { describe, expect, it } from 'vitest';
import { seededRandom } from '../base/random.ts';
import type { ProcessGroup, TensorLike } from '../group/caller/types.ts';
import { InProcessSite } from '../group/testing/in-process-world.ts';
import { elastic, type ElasticState, type ElasticSteps } from './elastic.ts';

const steps = 60;
const elements = 300_000;

/** The course of a training, as a rank has seen it. */
interface Trained {
  readonly last: ProcessGroup;
  readonly values: Float32Array;
  /** Number of ranks in each step whose averages this rank computed. */
  readonly sizes: readonly number[];
  /** Steps that it followed. */
  readonly followed: number;
}

/** Adds the step's number to all elements in each step. @param averagesOf what the averages travel in. */
async function train(
  group: ProcessGroup,
  averagesOf: (group: ProcessGroup, data: Float32Array) => TensorLike,
  during: (step: number) => Promise<void> = async () => {},
): Promise<Trained> {
  const values = new Float32Array(elements);
  const state: ElasticState = { step: 0, tensors: [values, group.tensor('int16', [3])] };
  const sizes: number[] = [];
  let updates = 0;
  const parts: ElasticSteps = {
    averages: async (current) => {
      if (state.step === steps) return undefined;
      await during(state.step);
      sizes.push(current.size);
      const data = new Float32Array(1).fill(state.step);
      await current.allReduce(data, { op: 'avg' });
      return [averagesOf(current, data)];
    },
    update: (_, [average]) => {
      updates++;
      const [step] = 'data' in average ? (average.data as Float32Array) : (average as Float32Array);
      for (let index = 0; index < elements; index++) values[index] += step;
    },
  };
  const last = await elastic.run(group, state, parts);
  return { last, values, sizes, followed: updates - sizes.length };
}

describe.each([
  { kind: 'host', fastPath: true },
  { kind: 'network', fastPath: false },
] as const)('over $kind', (path) => {
  it.each<[string, Parameters<typeof train>[1]]>([
    ['an array', (_, data) => data],
    ['a tensor', tensorOf],
  ])('newcomers follow while the others go on, and enter with the same bits; averages in %s', async (_name, averagesOf) => {
    const site = new InProcessSite(3, path);
    const groups = await Promise.all([0, 1, 2].map((rank) => site.start(rank)));
    const late: Promise<Trained>[] = [];
    const meet =
      (rank: number) =>
      async (step: number): Promise<void> => {
        if (step !== 10) return;
        if (rank === 0) for (const newcomer of [3, 4]) late.push(site.start(newcomer).then((group) => train(group, averagesOf)));
        await expect.poll(() => groups.map(({ waiting }) => waiting)).toEqual([2, 2, 2]);
      };
    const ends = await Promise.all(groups.map((group, rank) => train(group, averagesOf, meet(rank))));
    const entered = await Promise.all(late);
    for (const { last, values } of [...ends, ...entered]) {
      expect(last.globalRanks).toEqual([0, 1, 2, 3, 4]);
      expect(values.every((each) => each === (steps * (steps - 1)) / 2)).toBe(true);
    }
    for (const { sizes, followed } of ends) expect([followed, sizes.length]).toEqual([0, steps]);
    for (const { sizes, followed } of entered) {
      expect(sizes.at(-1)).toBe(5);
      expect(followed).toBeGreaterThan(0);
      // The others made these steps alone, after the newcomers had been taken in.
      expect(followed + sizes.length).toBeLessThan(steps - 10);
    }
    for (const { last } of [...ends, ...entered]) await last.destroy({ timeoutMs: 100 });
  });

  it.each([1, 2, 3, 4, 5, 6, 7, 8])('whoever is lost while a newcomer follows, each step counts once: seed %i', async (seed) => {
    const random = seededRandom(seed);
    const site = new InProcessSite(3, path);
    const groups = await Promise.all([0, 1, 2].map((rank) => site.start(rank)));
    const victim = random.integer(4);
    let isLost = false;
    const live = (rank: number) => async (): Promise<void> => {
      if (isLost && rank === victim) await new Promise(() => undefined);
      await turns(1);
    };
    const results = groups.map((group, rank) => train(group, (_, data) => data, live(rank)));
    const late = site.start(3).then((group) => train(group, (_, data) => data, live(3)));
    for (const result of [...results, late]) result.catch(() => undefined);
    await turns(random.integer(200));
    isLost = true;
    site.crash(victim);
    const left = [...results, late].filter((_, rank) => rank !== victim);
    const ends = await Promise.all(left.slice(0, victim === 3 ? 3 : 2));
    if (victim !== 3 && ends[0].last.globalRanks.includes(3)) ends.push(await late);
    for (const { last, values } of ends) {
      expect(last.globalRanks).toEqual(ends[0].last.globalRanks);
      expect(values.every((each) => each === (steps * (steps - 1)) / 2)).toBe(true);
    }
    await Promise.all(ends.map(({ last }) => last.destroy({ timeoutMs: 100 })));
  });
});

async function turns(count: number): Promise<void> {
  for (let turn = 0; turn < count; turn++) await new Promise(setImmediate);
}

function tensorOf(group: ProcessGroup, data: Float32Array): TensorLike {
  const tensor = group.tensor('float32', [1]);
  tensor.data.set(data);
  return tensor;
}
