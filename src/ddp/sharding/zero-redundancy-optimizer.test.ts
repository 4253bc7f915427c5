/** The sharded optimiser against the unsharded one: equal bits, on any number of ranks, also after loading a checkpoint of other ranks. */
import { describe, expect, it } from 'vitest';
import { temporaryFolder } from '../../base/testing/temporary-folder.ts';
import { seededRandom } from '../../base/random.ts';
import type { ProcessGroup } from '../../group/caller/types.ts';
import { startRanks } from '../../group/testing/in-process-world.ts';
import { Checkpoints } from '../checkpoints/checkpoints.ts';
import { Adam, SGD, type Optimizer, type OptimizerClass, type OptimizerParameter } from '../optimizers.ts';
import { Reducer } from '../reducer.ts';
import { ZeroRedundancyOptimizer } from './zero-redundancy-optimizer.ts';

const sizes = [1, 70, 300, 0, 33, 33, 8];

/** Parameters whose values round; some are float64. */
function parametersOf(): OptimizerParameter[] {
  const random = seededRandom(1);
  return sizes.map((size, k) => {
    const values = Array.from({ length: size }, () => random.next() - 0.5);
    return { name: `p${k}`, data: k % 3 === 2 ? Float64Array.from(values) : Float32Array.from(values) };
  });
}

function gradientsOf(step: number, rank: number): (Float32Array | Float64Array)[] {
  const random = seededRandom(step * 100 + rank);
  return parametersOf().map(({ data }) => data.map(() => random.next() * 2 - 1) as typeof data);
}

const kinds = [
  { name: 'Adam', make: Adam, options: { lr: 0.01, weightDecay: 0.1 } },
  { name: 'AdamW', make: Adam, options: { lr: 0.01, weightDecay: 0.1, decoupled: true } },
  { name: 'SGD', make: SGD, options: { lr: 0.1 } },
  { name: 'SGD with momentum', make: SGD, options: { lr: 0.1, momentum: 0.9, nesterov: true, weightDecay: 0.01 } },
] as const;

type Step = (gradients: (Float32Array | Float64Array)[]) => Promise<void> | void;

/** Gradients are averaged as in a training; then the optimiser steps. */
async function train(group: ProcessGroup, steps: readonly number[], step: Step): Promise<void> {
  const specs = parametersOf().map(
    ({ name, data }) => ({ name, shape: [data.length], dtype: data instanceof Float32Array ? 'float32' : 'float64' }) as const,
  );
  const reducer = new Reducer(group, specs, { environment: {} });
  for (const k of steps) {
    const gradients = gradientsOf(k, group.rank);
    await reducer.average(gradients);
    await step(gradients);
  }
  reducer.close();
}

describe.each(kinds)('ZeroRedundancyOptimizer over $name', ({ make, options }) => {
  it.each([1, 2, 3, 9])('has the bits of the optimiser itself, on %i ranks', async (n) => {
    await using world = await startRanks(n);
    await world.each(async (group) => {
      const [whole, sharded] = [parametersOf(), parametersOf()];
      const reference: Optimizer = new make(whole, options);
      await train(group, [1, 2, 3, 4], (gradients) => reference.step(gradients));
      const zero = new ZeroRedundancyOptimizer(group, sharded, make, options);
      await train(group, [1, 2, 3, 4], (gradients) => zero.step(gradients));
      expect(sharded).toEqual(whole);
      // Each state is on one rank only, and together the ranks have the state of the whole.
      const ranksOf = zero.partition.flatMap((indices, rank) => indices.map((index) => [index, rank]));
      expect(ranksOf.map(([index]) => index).sort((a, b) => a - b)).toEqual([...sizes.keys()]);
      expect(Object.keys(zero.state).every((name) => zero.partition[group.rank].includes(Number(name[1])))).toBe(true);
      const all = await zero.consolidateStateDict({ to: n - 1 });
      expect(all).toEqual(group.rank === n - 1 ? reference.state : null);
      zero.close();
      await expect(zero.step(gradientsOf(1, 0))).rejects.toMatchObject({ code: 'closed' });
    });
  });
});

it('goes on from a checkpoint of another number of ranks, to the same bits', async () => {
  const folder = temporaryFolder('zero');
  const named = (parameters: readonly OptimizerParameter[]): Record<string, Float32Array | Float64Array> =>
    Object.fromEntries(parameters.map(({ name, data }) => [name, data]));
  // Averages over ranks differ with the number of ranks, so each rank gets the same gradients.
  const run = async (n: number, steps: readonly number[]): Promise<OptimizerParameter[]> => {
    await using world = await startRanks(n);
    const ends = await world.each(async (group) => {
      const parameters = parametersOf();
      const zero = new ZeroRedundancyOptimizer(group, parameters, Adam, { lr: 0.02 });
      const checkpoints = new Checkpoints(group, folder);
      const found = await checkpoints.latest();
      await found?.load({ ...named(parameters), ...zero.state });
      for (const k of steps) await zero.step(gradientsOf(k, 0));
      await checkpoints.save({ tensors: named(parameters), owned: zero.state, state: {} });
      return parameters;
    });
    for (const end of ends) expect(end).toEqual(ends[0]);
    return ends[0];
  };
  await run(3, [1, 2]);
  const resumed = await run(2, [3, 4]);
  const straight = parametersOf();
  const adam = new Adam(straight, { lr: 0.02 });
  for (const k of [1, 2, 3, 4]) adam.step(gradientsOf(k, 0));
  expect(resumed).toEqual(straight);
});

it('Adam has the values of the paper', () => {
  const data = Float64Array.of(1, -2);
  const adam = new Adam([{ name: 'x', data }], { lr: 0.1 });
  // After the first step the moments are unbiased: each element moves by lr, whatever the gradient's size.
  adam.step([Float64Array.of(5, -0.001)]);
  expect(data[0]).toBeCloseTo(0.9, 8);
  expect(data[1]).toBeCloseTo(-1.9, 5);
  expect(adam.state['x.step']).toEqual(Float64Array.of(1));
});

describe('what is wrong', () => {
  it('is refused by name, before anything moves', async () => {
    await using world = await startRanks(1);
    const [group] = world.groups;
    const parameters = parametersOf();
    expect(() => new ZeroRedundancyOptimizer(group, [parameters[0], parameters[0]], SGD)).toThrow(/two parameters are called 'p0'/);
    expect(() => new ZeroRedundancyOptimizer(group, [{ name: 'x', data: new Int32Array(1) as never }], SGD)).toThrow(
      /the data of 'x' must be a Float32Array/,
    );
    expect(() => new ZeroRedundancyOptimizer(group, parameters, SGD, { lr: -1 })).toThrow(
      /SGD: option 'lr' must be a number from 0, not -1/,
    );
    expect(() => new ZeroRedundancyOptimizer(group, parameters, SGD, { learningRate: 1 } as never)).toThrow(/no option 'learningRate'/);
    const whole = new Float32Array(8);
    const tied = [whole.subarray(4), whole.subarray(0, 4), whole.subarray(3, 4)].map((data, k) => ({ name: `t${k}`, data }));
    expect(() => new ZeroRedundancyOptimizer(group, tied, SGD)).toThrow(/parameters 't1' and 't2' share memory/);
    new ZeroRedundancyOptimizer(group, tied.slice(0, 2), SGD).close();
    const zero = new ZeroRedundancyOptimizer(group, parameters, Adam);
    await expect(zero.step(gradientsOf(1, 0).slice(1))).rejects.toThrow(/6 gradients for 7 parameters/);
    await expect(zero.step(gradientsOf(1, 0).reverse())).rejects.toThrow(/the gradient of 'p0' must be an array of 1 floats/);
    expect(parameters).toEqual(parametersOf());
  });

  it('parameters that differ between ranks are a mismatch', async () => {
    await using world = await startRanks(2);
    const errors = await world.each((group) => {
      const parameters = parametersOf().slice(group.rank);
      const gradients = gradientsOf(1, 0).slice(group.rank);
      return new ZeroRedundancyOptimizer(group, parameters, SGD).step(gradients).catch((thrown: unknown) => thrown);
    });
    for (const error of errors) expect(error).toMatchObject({ code: 'mismatch', message: expect.stringContaining('"p1"') as string });
  });

  it.each<[string, (rank: number) => [OptimizerClass<object>, object?], string]>([
    [
      'rates',
      (rank) => [Adam, { lr: 0.1 + rank }],
      'settings are optimizer=Adam options={lr: 1.1} on rank 1 but optimizer=Adam options={lr: 0.1} on rank 0',
    ],
    ['lists', (rank) => [Adam, { betas: [0.5, rank / 2] }], 'options={betas: [0.5, 0.5]} on rank 1'],
    ['optimisers', (rank) => [rank === 0 ? Adam : SGD], 'settings are optimizer=SGD options={} on rank 1'],
  ])('%s that differ between ranks are a mismatch', async (_, of, text) => {
    await using world = await startRanks(2);
    const errors = await world.each((group) => {
      const [make, options] = of(group.rank);
      return new ZeroRedundancyOptimizer(group, parametersOf(), make, options).step(gradientsOf(1, 0)).catch((thrown: unknown) => thrown);
    });
    for (const error of errors) expect(error).toMatchObject({ code: 'mismatch', message: expect.stringContaining(text) as string });
  });

  it('the order in which options are named is none of their difference', async () => {
    await using world = await startRanks(2);
    await world.each((group) => {
      const options = group.rank === 0 ? { lr: 1, momentum: 0.5 } : { momentum: 0.5, nesterov: undefined, lr: 1 };
      return new ZeroRedundancyOptimizer(group, parametersOf(), SGD, options).step(gradientsOf(1, 0));
    });
  });
});
