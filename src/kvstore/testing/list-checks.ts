/** Checks of lists: of values that are summed, of outputs that all receive the value, and of lists that are used again. */
import assert from 'node:assert/strict';
import type { TypedArray } from '../../memory/dtype.ts';
import type { Tensor } from '../../memory/tensor.ts';
import { refuses, syncTypes as sync, type KVCheck } from './kv-check.ts';
import { expectAll, filled, own, sumAt, valueAt } from './known-values.ts';

export const listChecks: readonly KVCheck[] = [
  {
    name: 'a list of values is the sum of devices',
    types: sync,
    fresh: false,
    async run(kv) {
      const device = (d: number) => filled('float32', 100, (i) => valueAt(kv.rank, i + d));
      const expected = (i: number): number => sumAt(kv, i) + sumAt(kv, i + 1) + sumAt(kv, i + 2);
      await kv.init(['devices/a', 'devices/b'], [new Float32Array(100), new Float32Array(100)]);
      await kv.push('devices/a', [device(0), device(1), device(2)]);
      await kv.push('devices/b', [[device(2), device(0), device(1)]]);
      const out = new Float32Array(100);
      for (const key of ['devices/a', 'devices/b']) {
        await kv.pull(key, out.fill(0));
        expectAll(out, 'float32', expected, key);
      }
      const outs = [new Float32Array(100), new Float32Array(100)];
      await kv.pushPull(['devices/a', 'devices/b'], [[device(0), device(1), device(2)], [device(0)]], outs);
      expectAll(outs[0], 'float32', expected, 'pushPull of three devices');
      expectAll(outs[1], 'float32', (i) => sumAt(kv, i), 'pushPull of one device');
      const inPlace = [device(0), kv.tensor('float32', [100]), device(2)];
      (inPlace[1] as Tensor<'float32'>).data.set(device(1) as Float32Array);
      await kv.pushPull('devices/a', inPlace);
      inPlace.forEach((value, d) => expectAll(value, 'float32', expected, `in place, device ${d}`));
    },
  },
  {
    name: 'a list of outputs: all of them receive the value',
    types: sync,
    fresh: false,
    async run(kv) {
      const [keys, count] = [['outputs/a', 'outputs/b'], 500];
      const array = (): Float32Array => new Float32Array(count).fill(-1);
      const tensor = (): Tensor<'float32'> => kv.tensor('float32', [count]);
      const lists = [
        [array(), tensor()],
        [tensor(), array(), tensor()],
      ];
      const check = (at: (k: number, i: number) => number, what: string): void =>
        lists.forEach((list, k) =>
          list.forEach((out, d) => expectAll(out, 'float32', (i) => at(k, i), `${what}: ${keys[k]} on device ${d}`)),
        );
      await kv.broadcast(
        keys,
        keys.map((_, k) => own(kv, count, k)),
        lists,
      );
      check((k, i) => valueAt(0, i + k), 'broadcast');
      for (const step of [1, 2]) {
        await kv.push(
          keys,
          keys.map((_, k) => own(kv, count, k + step)),
        );
        await kv.pull(keys, lists);
        check((k, i) => sumAt(kv, i + k + step), `pull ${step}`);
        await kv.pushPull(
          keys,
          keys.map((_, k) => own(kv, count, k + step + 2)),
          lists,
        );
        check((k, i) => sumAt(kv, i + k + step + 2), `pushPull ${step}`);
      }
      // One key: the list is that of its devices. With tensors alone, the second call is one that is known.
      const [pushed, outs] = [[tensor()], [tensor(), tensor(), tensor()]];
      for (const step of [0, 1, 2]) {
        pushed[0].data.set(own(kv, count, step));
        await kv.pushPull([keys[0]], pushed, outs);
        outs.forEach((out, d) => expectAll(out, 'float32', (i) => sumAt(kv, i + step), `step ${step} on device ${d}`));
      }
      await kv.pull(keys[1], outs);
      outs.forEach((out, d) => expectAll(out, 'float32', (i) => sumAt(kv, i + 5), `pulled on device ${d}`));
      await refuses('mismatch', /'outputs\/a' is float32/, () => kv.pull(keys, [[outs[0], new Float32Array(3)], [outs[1]]]));
      await refuses('usage', /outputs of 'outputs\/b' is empty/, () => kv.pull(keys, [[outs[0]], []]));
    },
  },
  {
    name: 'a list that is passed again with other tensors in it',
    types: sync,
    fresh: false,
    async run(kv) {
      const keys = ['lists/a', 'lists/b'];
      const tensors = Array.from({ length: 8 }, () => kv.tensor('float32', [100]));
      const set = (tensor: Tensor<'float32'>, step: number): Tensor<'float32'> => {
        for (let i = 0; i < 100; i++) tensor.data[i] = valueAt(kv.rank, i + step);
        return tensor;
      };
      await kv.init(keys, tensors.slice(0, 2));
      const [outer, outs] = [tensors.slice(0, 2), tensors.slice(2, 4)];
      const inner = outer.map((tensor) => [tensor]);
      for (const [step, at] of [0, 0, 4, 6, 4].entries()) {
        for (const k of [0, 1]) {
          inner[k][0] = outer[k] = set(tensors[at + k], step + k);
          outs[k] = tensors[(at + 2 + k) % 8];
          outs[k].data.fill(-1);
        }
        await kv.pushPull(keys, inner, outs);
        outs.forEach((out, k) => expectAll(out, 'float32', (i) => sumAt(kv, i + step + k), `lists in a list, step ${step}`));
        outer.forEach((tensor, k) => expectAll(tensor, 'float32', (i) => valueAt(kv.rank, i + step + k), `not changed, step ${step}`));
        await kv.pushPull(keys, inner);
        outer.forEach((tensor, k) => expectAll(tensor, 'float32', (i) => sumAt(kv, i + step + k), `in place, step ${step}`));
        outer.forEach((tensor, k) => set(tensor, step + k + 1));
        await kv.pushPull(keys, outer, outs);
        outs.forEach((out, k) => expectAll(out, 'float32', (i) => sumAt(kv, i + step + k + 1), `a list, step ${step}`));
        await kv.push(keys, inner);
        await kv.pull(keys, outs);
        outs.forEach((out, k) => expectAll(out, 'float32', (i) => sumAt(kv, i + step + k + 1), `pushed, step ${step}`));
      }
      // A caller may change its objects after a call: the store does not see it.
      const shape = [20, 5];
      const init = kv.init('lists/shape', new Float32Array(100), { shape });
      shape[0] = 3;
      await init;
      shape[1] = 7;
      assert.deepEqual((await kv.info('lists/shape')).shape, [20, 5]);
    },
  },
  {
    name: 'one call, keys of several dtypes and odd sizes',
    types: sync,
    fresh: false,
    async run(kv) {
      const kinds = (['uint8', 'float32', 'float64', 'int16', 'int64', 'float32', 'float64'] as const).map((dtype, k) => {
        return { key: `mixed/${k}`, dtype, count: 2 * k + 1 };
      });
      const keys = kinds.map(({ key }) => key);
      const values = (step: number): TypedArray[] =>
        kinds.map(({ dtype, count }, k) => filled(dtype, count, (i) => valueAt(kv.rank, i + k + step)));
      await kv.init(keys, values(0));
      for (const step of [1, 2]) {
        const outs = values(step);
        await kv.pushPull(keys, outs);
        kinds.forEach(({ key, dtype }, k) => expectAll(outs[k], dtype, (i) => sumAt(kv, i + k + step), `${key}, step ${step}`));
      }
    },
  },
];
