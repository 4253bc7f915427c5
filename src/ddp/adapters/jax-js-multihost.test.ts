import { defaultDevice, DType, init, numpy as np, tree } from '@jax-js/jax';
import { beforeAll, expect, test } from 'vitest';
import { startRanks } from '../../group/testing/in-process-world.ts';
import { broadcastOneToAll, pmax, pmean, pmin, processAllgather, processCount, processIndex, psum, syncGlobalDevices } from './jax-js.ts';

beforeAll(async () => {
  await init('cpu');
  defaultDevice('cpu');
});

type Metrics = { loss: np.Array; counts: np.Array[] };

const metricsOf = (rank: number): Metrics => ({
  loss: np.array(Float32Array.of(rank + 0.5), { shape: [] }),
  counts: [np.array(Int32Array.of(rank, 10 * rank, 1, 2, 3, 4), { shape: [2, 3], dtype: DType.Int32 })],
});
const js = (value: Metrics): unknown => tree.map((leaf: np.Array) => leaf.js() as number[], value);

test('reductions over all processes keep tree, shapes and dtypes, and consume what they are given', async () => {
  await using world = await startRanks(3);
  await world.each(async (group) => {
    const given = metricsOf(group.rank);
    const sum = await psum(group, tree.ref(given));
    expect([sum.loss.shape, sum.counts[0].shape, sum.counts[0].dtype]).toEqual([[], [2, 3], DType.Int32]);
    expect(js(sum)).toEqual({
      loss: 4.5,
      counts: [
        [
          [3, 30, 3],
          [6, 9, 12],
        ],
      ],
    });
    expect(js(await pmax(group, tree.ref(given)))).toEqual({
      loss: 2.5,
      counts: [
        [
          [2, 20, 1],
          [2, 3, 4],
        ],
      ],
    });
    expect(js(await pmin(group, tree.ref(given)))).toEqual({
      loss: 0.5,
      counts: [
        [
          [0, 0, 1],
          [2, 3, 4],
        ],
      ],
    });
    expect((await pmean(group, [given.loss.ref]))[0].js()).toBe(1.5);
    await expect(pmean(group, [given.counts[0].ref])).rejects.toMatchObject({ code: 'unsupported' });
    tree.dispose(given);
    expect(given.loss.refCount).toBe(0);
    expect([processIndex(group), processCount(group)]).toEqual([group.rank, 3]);
  });
});

test('trees of one process for all, and of all for each', async () => {
  await using world = await startRanks(2);
  await world.each(async (group) => {
    expect(js(await broadcastOneToAll(group, metricsOf(group.rank + 1)))).toEqual(js(metricsOf(1)));
    const stacked = await processAllgather(group, metricsOf(group.rank));
    expect(js(stacked)).toEqual({
      loss: [0.5, 1.5],
      counts: [
        [
          [
            [0, 0, 1],
            [2, 3, 4],
          ],
          [
            [1, 10, 1],
            [2, 3, 4],
          ],
        ],
      ],
    });
    const tiled = await processAllgather(group, metricsOf(group.rank), { tiled: true });
    expect([tiled.loss.shape, tiled.counts[0].shape]).toEqual([[2], [4, 3]]);
    await syncGlobalDevices(group, 'written');
  });
});

test('trees that differ in shapes alone give mismatch, and so do names', async () => {
  for (const call of [
    (group: Parameters<typeof psum>[0]) => psum(group, np.zeros(group.rank === 0 ? [2, 6] : [3, 4])).then(() => undefined),
    (group: Parameters<typeof psum>[0]) => syncGlobalDevices(group, `after step ${group.rank}`),
  ]) {
    await using world = await startRanks(2);
    const failures = await Promise.all(world.groups.map((group) => call(group).catch((error: unknown) => error)));
    for (const failure of failures) expect(failure).toMatchObject({ code: 'mismatch' });
  }
  await using alone = await startRanks(1);
  await alone.each(async (group) => {
    await expect(processAllgather(group, np.zeros([1]), { tile: true } as never)).rejects.toThrow(/tile/);
    await expect(psum(null as never, np.zeros([1]))).rejects.toThrow(/psum: the first argument is the process group/);
  });
});
