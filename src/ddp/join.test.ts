/** `join`: training with different numbers of inputs on the ranks. */
import { describe, expect, it } from 'vitest';
import type { ShoalError } from '../base/errors.ts';
import { startRanks } from '../group/testing/in-process-world.ts';
import { join } from './join.ts';
import { SGD } from './optimizers.ts';
import { Reducer } from './reducer.ts';
import { ZeroRedundancyOptimizer } from './sharding/zero-redundancy-optimizer.ts';

const specs = [
  { name: 'a', shape: [2], dtype: 'float32' },
  { name: 'b', shape: [1], dtype: 'float64' },
] as const;
const fresh = (): [Float32Array, Float64Array] => [Float32Array.of(8, 16), Float64Array.of(32)];

describe('join', () => {
  it.each([
    [2, 4, 1],
    [0, 0, 0],
    [0, 3, 3],
    [5, 0, 2],
  ])('%i, %i and %i inputs: steps are averages over all ranks, and replicas are equal in the end', async (...counts) => {
    await using world = await startRanks(3);
    const ends = await world.each(async (group) => {
      const data = fresh();
      const reducer = new Reducer(group, specs, { environment: {} });
      const zero = new ZeroRedundancyOptimizer(
        group,
        specs.map(({ name }, k) => ({ name, data: data[k] })),
        SGD,
        { lr: 1 },
      );
      const inputs = Array.from({ length: counts[group.rank] }, (_, k) => 3 * (k + 1));
      const result = await join(group, [reducer, zero.joinable(reducer)], inputs, async (input) => {
        const gradients = [Float32Array.of(input, 0), Float64Array.of(2 * input)];
        await reducer.average(gradients);
        await zero.step(gradients);
      });
      return { data, result };
    });
    const stepsMax = Math.max(...counts);
    let moved = 0;
    for (let k = 0; k < stepsMax; k++) moved += (counts.filter((count) => count > k).length * 3 * (k + 1)) / 3;
    for (const [rank, { data, result }] of ends.entries()) {
      expect(result).toEqual({ steps: counts[rank], stepsMax, lastJoiner: stepsMax === 0 ? 0 : counts.lastIndexOf(stepsMax) });
      expect([...data[0], ...data[1]]).toEqual([8 - moved, 16, 32 - 2 * moved]);
    }
  });

  it('with weighting by samples, what a rank does not have does not count; parameters become those of the last', async () => {
    await using world = await startRanks(2);
    const ends = await world.each(async (group) => {
      const [data] = fresh();
      const reducer = new Reducer(group, [specs[0]], { environment: {}, weighting: 'samples' });
      async function* inputs(): AsyncGenerator<number> {
        for (let k = 0; k < 1 + 2 * group.rank; k++) yield 4 + group.rank;
      }
      await join(
        group,
        [reducer],
        inputs(),
        async (samples) => {
          const gradient = Float32Array.of(samples, 1);
          reducer.begin({ samples });
          await reducer.average([gradient]);
          gradient.forEach((value, i) => (data[i] -= value));
        },
        { parameters: [data] },
      );
      return [...data];
    });
    const first = Math.fround((4 * 4 + 5 * 5) / 9);
    const expected = [Math.fround(Math.fround(Math.fround(8 - first) - 5) - 5), 13];
    expect(ends).toEqual([expected, expected]);
  });

  it('throws on every rank when asked to, naming who is out', async () => {
    await using world = await startRanks(3);
    const outcomes = await world.each(async (group) => {
      let steps = 0;
      const error = await join(group, [], Array(group.rank === 1 ? 2 : 5).fill(0), () => void steps++, {
        throwOnEarlyTermination: true,
      }).catch((thrown: unknown) => thrown as Error);
      return { steps, error };
    });
    for (const { steps, error } of outcomes) {
      expect(steps).toBe(2);
      expect(error).toMatchObject({ code: 'mismatch', message: 'join: rank 1 ran out of inputs after 2 steps, and others have more' });
    }
  });

  it.each([
    [1, 'all ranks', [0, 1]],
    [3, 'one rank', [1]],
  ])('gradients of noSync that step %i of %s leaves for the next are refused on every rank', async (last, _who, unfinished) => {
    await using world = await startRanks(2);
    const outcomes = await world.each(async (group) => {
      const reducer = new Reducer(group, [specs[0]], { environment: {} });
      let steps = 0;
      const error = await join(group, [reducer], Array(group.rank === 1 ? last : 4).fill(0), async () => {
        steps++;
        if (steps > 1 || last > 1) await reducer.average([Float32Array.of(1, 1)]);
        if (steps === last && unfinished.includes(group.rank)) reducer.noSync(() => reducer.gradientReady(0, Float32Array.of(1, 1)));
      }).catch((thrown: unknown) => thrown as ShoalError);
      return { steps, error };
    });
    for (const [rank, { steps, error }] of outcomes.entries()) {
      expect(steps).toBe(last);
      expect(error).toMatchObject({ code: 'usage', message: expect.stringMatching(/^join: a step .*as one input$/) });
      expect(error).toMatchObject({
        message: expect.stringContaining(unfinished.includes(rank) ? "noSync, as of parameter 'a'" : 'a step of rank 1 has left'),
      });
    }
  });

  it('refuses what it does not take', async () => {
    await using world = await startRanks(1);
    const [group] = world.groups;
    await expect(join(group, [{} as never], [], () => undefined)).rejects.toThrow(/a joinable has a joinHook/);
    await expect(join(group, [], 5 as never, () => undefined)).rejects.toThrow(/inputs must be iterable, not 5/);
    await expect(join(group, [], [], () => undefined, { parameters: [1] as never })).rejects.toThrow(
      /parameters are arrays, not the number 1/,
    );
  });
});
