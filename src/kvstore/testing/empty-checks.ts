/** Checks of what is empty: pushes and pulls of no rows, by some workers and by all, and parameters without elements. */
import assert from 'node:assert/strict';
import { dtypes } from '../../memory/dtype.ts';
import { allTypes as all, syncTypes as sync, type KVCheck } from './kv-check.ts';
import { expectAll, valueAt } from './known-values.ts';

const none = Uint32Array.of();

export const emptyChecks: readonly KVCheck[] = [
  {
    name: 'no rows: pushed by some, by all, pulled',
    types: sync,
    fresh: false,
    async run(kv) {
      const [rows, width] = [20, 3];
      const expected = new Float32Array(rows * width).fill(7);
      await kv.init('empty/rows', expected.slice(), { shape: [rows, width] });
      const whole = kv.tensor('float32', [rows, width]);
      // In each round one worker has two rows, in the last nobody has any.
      for (let round = 0; round <= kv.numWorkers; round++) {
        const own = round === kv.rank ? Uint32Array.of(round, 19) : none;
        await kv.rowSparsePush('empty/rows', { indices: own, values: new Float32Array(own.length * width).fill(valueAt(round, 0)) });
        if (round < kv.numWorkers) for (const row of [round, 19]) expected.fill(valueAt(round, 0), row * width, (row + 1) * width);
        await kv.rowSparsePull('empty/rows', new Float32Array(), { rowIds: none });
        await kv.rowSparsePull('empty/rows', kv.tensor('float32', [0, width]), { rowIds: none });
        await kv.pull('empty/rows', whole);
        expectAll(whole, 'float32', (i) => expected[i], `round ${round}`);
        await kv.barrier();
      }
      assert.equal((await kv.info('empty/rows')).version, kv.numWorkers + 1);
    },
  },
  {
    name: 'parameters without elements, alone and among others',
    types: all,
    fresh: false,
    async run(kv) {
      for (const [k, { name: dtype }] of dtypes.entries()) {
        const shape = [[0], [0, 3], [3, 0], [2, 0, 5]][k % 4];
        const [key, tensor] = [`nothing/${dtype}`, kv.tensor(dtype, shape)];
        await kv.init(key, tensor);
        await kv.pull(key, tensor);
        const { dtype: known, shape: its, version } = await kv.info(key);
        assert.deepEqual({ known, its, version }, { known: dtype, its: shape, version: 0 });
      }
      const keys = ['nothing/a', 'nothing/one', 'nothing/b'];
      const values = (): Float32Array[] => [new Float32Array(), Float32Array.of(valueAt(kv.rank, 0)), new Float32Array()];
      const outs = values();
      await kv.broadcast(keys, values(), outs);
      assert.equal(outs[1][0], valueAt(0, 0));
    },
  },
  {
    name: 'parameters without elements are pushed like others',
    types: sync,
    fresh: false,
    async run(kv) {
      const keys = ['pushed/a', 'pushed/one', 'pushed/b'];
      const values = (): Float32Array[] => [new Float32Array(), Float32Array.of(1), new Float32Array()];
      await kv.init(keys, values());
      const tensors = values().map(({ length }) => kv.tensor('float32', [length]));
      for (const step of [1, 2, 3]) {
        const outs = values();
        await kv.pushPull(keys, outs);
        assert.equal(outs[1][0], kv.numWorkers, `arrays, step ${step}`);
        tensors[1].data[0] = step;
        await kv.pushPull(keys, tensors);
        assert.equal(tensors[1].data[0], step * kv.numWorkers, `tensors, step ${step}`);
      }
      await kv.push('pushed/a', new Float32Array());
      await kv.pull('pushed/a', tensors[0]);
      assert.deepEqual(
        [(await kv.info('pushed/a')).version, (await kv.info('pushed/b')).version, (await kv.info('pushed/one')).version],
        [7, 6, 6],
      );
      for (const [shape, indices] of [
        [[0, 3], []],
        [
          [3, 0],
          [0, 2],
        ],
      ]) {
        const key = `pushed/[${shape.join()}]`;
        await kv.init(key, new Float32Array(), { shape });
        await kv.rowSparsePush(key, { indices: Uint32Array.from(indices), values: new Float32Array() });
        await kv.rowSparsePull(key, new Float32Array(), { rowIds: Uint32Array.from(indices) });
        assert.equal((await kv.info(key)).version, 1);
      }
    },
  },
  ...([{ type: '2bit' }, { type: 'fp16' }] as const).map((spec): KVCheck => ({
    name: `empty parameters, compressed: ${spec.type}`,
    types: sync,
    fresh: true,
    async run(kv) {
      const keys = ['none', 'one', 'nothing'];
      const outs = [new Float32Array(), Float32Array.of(0.5), new Float32Array()];
      await kv.init(keys, outs);
      kv.setGradientCompression(spec);
      await kv.pushPull(keys, outs);
      assert.equal(outs[1][0], 0.5 * kv.numWorkers);
      await kv.pushPull('none', outs[0]);
      assert.equal((await kv.info('none')).version, 2);
    },
  })),
  {
    name: 'empty parameters, with an optimiser, saved and loaded',
    types: sync,
    fresh: true,
    async run(kv, folder) {
      const keys = ['none', 'one', 'table'];
      const outs = [new Float32Array(), Float32Array.of(8), new Float32Array()];
      await kv.init(keys.slice(0, 2), outs.slice(0, 2));
      await kv.init('table', outs[2], { shape: [3, 0] });
      if (kv.rank === 0) await kv.setOptimizer({ name: 'adagrad', learningRate: 1, nonFinite: 'refuse' });
      await kv.barrier();
      const step = async (): Promise<number> => {
        await kv.rowSparsePush('table', { indices: Uint32Array.of(1), values: new Float32Array() });
        await kv.pushPull(keys.slice(0, 2), [new Float32Array(), Float32Array.of(1)], outs.slice(0, 2));
        return outs[1][0];
      };
      await step();
      await kv.barrier();
      if (kv.rank === 0) await kv.saveState(folder);
      await kv.barrier();
      const second = await step();
      await kv.barrier();
      if (kv.rank === 0) await kv.loadState(folder);
      await kv.barrier();
      assert.equal((await kv.info('none')).version, 1);
      assert.equal(await step(), second);
      assert.equal((await kv.info('table')).version, 2);
    },
  },
];
