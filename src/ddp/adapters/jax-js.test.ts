import { defaultDevice, DType, init, jit, numpy as np, tree, valueAndGrad } from '@jax-js/jax';
import { beforeAll, describe, expect, test } from 'vitest';
import type { ReducerOptions } from '../reducer-options.ts';
import { LocalWorld, onEveryRank } from '../testing/local-world.ts';
import { distribute, type DistributedModel } from './jax-js.ts';

type Params = { weights: np.Array; layers: { bias: np.Array }[] };

beforeAll(async () => {
  await init('wasm');
  defaultDevice('wasm');
});

const paramsOf = (value: number): Params => ({
  weights: np.array(Float32Array.of(value, value + 1, value + 2, value + 3), { shape: [2, 2] }),
  layers: [{ bias: np.array(Float32Array.of(value)) }, { bias: np.array(Float32Array.of(-value, 0)) }],
});
const js = (params: Params): unknown => tree.map((leaf: np.Array) => leaf.js() as number[], params);

async function setUp(size: number, options: ReducerOptions = {}): Promise<{ world: LocalWorld; models: DistributedModel<Params>[] }> {
  const world = new LocalWorld(size);
  const models = await onEveryRank(world, (group) => distribute(group, paramsOf(group.rank), options));
  return { world, models };
}

describe('distribute', () => {
  test("every rank starts from rank 0's parameters; the given tree is consumed", async () => {
    const world = new LocalWorld(2);
    const given = world.groups.map(({ rank }) => paramsOf(rank));
    const models = await onEveryRank(world, (group) => distribute(group, given[group.rank]));
    expect(given.map(({ weights }) => weights.refCount)).toEqual([0, 0]);
    expect(js(models[1].params)).toEqual(js(paramsOf(0)));
  });

  test('average consumes gradients and returns their mean in the same tree', async () => {
    const { world, models } = await setUp(2);
    const gradients = world.groups.map(({ rank }) => paramsOf(rank === 0 ? 1 : 4));
    const averages = await onEveryRank(world, ({ rank }) => models[rank].average(gradients[rank]));
    expect(gradients.map(({ layers }) => layers[0].bias.refCount)).toEqual([0, 0]);
    expect(averages.map(js)).toEqual([js(paramsOf(2.5)), js(paramsOf(2.5))]);
  });

  test('averageSync on a world of one', async () => {
    const { models } = await setUp(1);
    expect(js(models[0].averageSync(paramsOf(3)))).toEqual(js(paramsOf(3)));
    expect(models[0].stats).toMatchObject({ steps: 1, buckets: 1 });
  });

  test('accumulate adds up without communicating', async () => {
    const { world, models } = await setUp(2);
    const before = world.log.length;
    for (const model of models) model.accumulate(paramsOf(1));
    expect(world.log).toHaveLength(before);
    const averages = await onEveryRank(world, ({ rank }) => models[rank].average(paramsOf(2)));
    expect(averages[0].layers[0].bias.js()).toEqual([3]);
  });

  test("weighting 'samples': exact for uneven batches, and over when all have run out", async () => {
    const { world, models } = await setUp(2, { weighting: 'samples' });
    const averages = await onEveryRank(world, ({ rank }) =>
      models[rank].average(paramsOf(rank === 0 ? 1 : 5), { samples: rank === 0 ? 3 : 1 }),
    );
    expect(js(averages[1])).toEqual(js(paramsOf(2)));
    const some = await onEveryRank(world, ({ rank }) =>
      rank === 0 ? models[0].average(paramsOf(7), { samples: 2 }) : models[1].averageWithout(),
    );
    expect(js(some[1] as Params)).toEqual(js(paramsOf(7)));
    expect(await onEveryRank(world, ({ rank }) => models[rank].averageWithout())).toEqual([undefined, undefined]);
  });

  test('replicas: the checksum of all, or the ranks that differ; nothing is consumed', async () => {
    const { world, models } = await setUp(2);
    const params = models.map((model) => model.params);
    const sums = await onEveryRank(world, ({ rank }) => models[rank].verifyReplicas(params[rank]));
    expect(sums).toEqual([models[0].checksum(params[0]), models[0].checksum(params[0])]);
    expect(params[0].weights.refCount).toBe(1);
    params[1].layers[1].bias.dispose();
    params[1].layers[1].bias = np.array(Float32Array.of(1, 2));
    await expect(onEveryRank(world, ({ rank }) => models[rank].verifyReplicas(params[rank]))).rejects.toThrow(/first in 'layers\.1\.bias'/);
  });

  test('mean of a number per rank', async () => {
    const { world, models } = await setUp(3);
    expect(await onEveryRank(world, ({ rank }) => models[rank].mean(rank * 2))).toEqual([2, 2, 2]);
  });

  test('trees that differ between ranks are refused by name', async () => {
    const world = new LocalWorld(2);
    const call = onEveryRank(world, (group) => distribute(group, { [group.rank === 0 ? 'a' : 'b']: np.zeros([1]) }));
    await expect(call).rejects.toThrow(/parameter 0 is "b" float32\[1\] on rank 1 but "a" float32\[1\] on rank 0/);
    expect(world.groups.map(({ tensors }) => tensors)).toEqual([0, 0]);
  });

  test('refuses leaves it cannot average and gradients of another tree', async () => {
    const { groups } = new LocalWorld(1);
    await expect(distribute(groups[0], { step: np.zeros([1], { dtype: DType.Int32 }) })).rejects.toThrow(/'step' is int32/);
    await expect(distribute(groups[0], { rate: 0.5 } as never)).rejects.toThrow(/'rate' is 0\.5/);
    const { models } = await setUp(1);
    await expect(models[0].average({ weights: np.zeros([2, 2]) } as never)).rejects.toThrow(/differs from that of the parameters/);
  });
});

test('two ranks with half a batch each take the step of one rank with all of it', async () => {
  type Linear = { w: np.Array; b: np.Array };
  const step = jit(
    valueAndGrad((p: Linear, x: np.Array, y: np.Array) => np.square(np.matmul(x, p.w).add(p.b).sub(y)).mean()),
  ) as unknown as (p: Linear, x: np.Array, y: np.Array) => [np.Array, Linear];
  const update = jit((p: np.Array, g: np.Array) => p.sub(g.mul(0.1)));
  const rows = Array.from({ length: 8 }, (_, i) => [Math.sin(i), Math.cos(3 * i)]);
  const train = async (size: number): Promise<number[][]> => {
    const world = new LocalWorld(size);
    return onEveryRank(world, async (group) => {
      const model = await distribute(group, { w: np.zeros([2, 1]), b: np.zeros([1]) });
      let { params } = model;
      const losses: number[] = [];
      const own = rows.filter((_, i) => i % size === group.rank);
      for (let i = 0; i < 20; i++) {
        const [loss, gradients] = step(tree.ref(params), np.array(own), np.array(own.map(([a, b]) => [2 * a - b + 1])));
        const average = await model.average(gradients);
        losses.push(await model.mean(loss.item()));
        params = { w: update(params.w, average.w), b: update(params.b, average.b) };
      }
      return losses;
    });
  };
  const [one] = await train(1);
  const two = await train(2);
  expect(two[1]).toEqual(two[0]);
  expect(one[19]).toBeLessThan(one[0] / 2);
  for (const [i, loss] of one.entries()) expect(Math.abs(two[0][i] - loss)).toBeLessThan(1e-5 * loss);
});
