/** Checks of what every store must do, whatever is behind it. Each check is a program that all workers run at once, each with its own
 *  store; it throws when something is wrong. The same checks run in one process and in real processes.
 *
 *  A check that is `fresh` needs stores with which nothing was done, and may leave them unusable; the others may share stores,
 *  in this order. With `dist_async` worker 0 must have called `setOptimizer(asyncOptimizer)` before those. */
import assert from 'node:assert/strict';
import { dtypes } from '../memory/dtype.ts';
import { createParameterKernels } from '../memory/parameter-kernels/create-parameter-kernels.ts';
import { createCodec } from '../ps/compression/registry.ts';
import type { CompressionSpec } from '../ps/compression/codec.ts';
import type { OptimizerSpec } from '../ps/optimizers/optimizer.ts';
import { allTypes as all, refuses, syncTypes as sync, type KVCheck } from './testing/kv-check.ts';
import { expectAll, filled, own, period, Reference, sumAt, sums, valueAt } from './testing/known-values.ts';
import { emptyChecks } from './testing/empty-checks.ts';
import { listChecks } from './testing/list-checks.ts';
import { modelChecks } from './testing/model-checks.ts';
import { stateChecks } from './testing/state-checks.ts';
import type { KVStore, KVStoreType } from './calls/types.ts';

export const asyncOptimizer: OptimizerSpec = { name: 'sgd', learningRate: 1 };

const withoutServers: readonly KVStoreType[] = ['local', 'collective'];

const js = createParameterKernels();

/** The text of a refused gradient. Servers name the workers of a process together; a store of one worker has nobody to name. */
function refusalOf(kv: KVStore, worker: number, key: string): RegExp {
  return kv.type === 'collective' ? new RegExp(`gradient of worker ${worker} for '${key}'.*refused`) : new RegExp(`'${key}'.*refused`, 's');
}

async function leaderSets(kv: KVStore, spec: OptimizerSpec): Promise<void> {
  if (kv.rank === 0) await kv.setOptimizer(spec);
  await kv.barrier();
}

const shared: readonly KVCheck[] = [
  {
    name: 'says who it is',
    types: all,
    fresh: false,
    async run(kv) {
      assert.equal(kv.role, 'worker');
      assert.ok(kv.rank >= 0 && kv.rank < kv.numWorkers);
      assert.ok(kv.workersPerGroup >= 1 && kv.workersPerGroup <= kv.numWorkers);
      await refuses('usage', /worker/, () => kv.served());
    },
  },
  {
    name: 'init: worker 0’s values count, of every dtype and shape',
    types: all,
    fresh: false,
    async run(kv) {
      for (const { name: dtype } of dtypes) {
        const key = `init/${dtype}`;
        const tensor = kv.tensor(dtype, [3, 7]);
        const own = filled(dtype, 21, (i) => valueAt(kv.rank, i));
        for (let i = 0; i < 21; i++) tensor.data[i] = own[i] as never;
        await kv.init(key, tensor);
        const out = kv.tensor(dtype, [3, 7]);
        await kv.pull(key, out);
        expectAll(out, dtype, (i) => valueAt(0, i), dtype);
        const { dtype: known, shape, version } = await kv.info(key);
        assert.deepEqual({ known, shape, version }, { known: dtype, shape: [3, 7], version: 0 });
      }
    },
  },
  {
    name: 'init: several keys at once, numbers, shapes for arrays',
    types: all,
    fresh: false,
    async run(kv) {
      const keys = [71, 'init/b', 'init/ü €'];
      const at = (k: number) => (i: number) => valueAt(kv.rank + k, i);
      await kv.init(keys, [filled('float32', 5, at(0)), filled('float64', 6, at(1)), filled('int32', 7, at(2))]);
      const outs = [new Float32Array(5), new Float64Array(6), new Int32Array(7)];
      await kv.pull(['71', keys[1], keys[2]], outs);
      expectAll(outs[0], 'float32', (i) => valueAt(0, i), 'key 71');
      expectAll(outs[1], 'float64', (i) => valueAt(1, i), 'key b');
      expectAll(outs[2], 'int32', (i) => valueAt(2, i), 'key with signs');
      await kv.init('init/matrix', new Float32Array(12), { shape: [4, 3] });
      assert.deepEqual((await kv.info('init/matrix')).shape, [4, 3]);
    },
  },
  {
    name: 'push: the value becomes the sum over workers, of every dtype',
    types: sync,
    fresh: false,
    async run(kv) {
      for (const { name: dtype } of dtypes) {
        const key = `push/${dtype}`;
        const [pushed, out] = [kv.tensor(dtype, [21]), kv.tensor(dtype, [21])];
        await kv.init(key, pushed);
        if (dtype !== 'float16' && dtype !== 'bfloat16' && dtype !== 'bool') {
          for (const round of [0, 1, 2]) {
            await kv.push(
              key,
              filled(dtype, 21, (i) => valueAt(kv.rank, i + round)),
            );
            await kv.pull(key, out);
            expectAll(out, dtype, (i) => sumAt(kv, i + round), `${dtype} round ${round}`);
          }
          assert.equal((await kv.info(key)).version, 3);
        }
        const own = filled(dtype, 21, (i) => valueAt(kv.rank, i));
        for (let i = 0; i < 21; i++) pushed.data[i] = own[i] as never;
        await kv.push(key, pushed);
        await kv.pull(key, out);
        expectAll(out, dtype, (i) => sumAt(kv, i), `${dtype} tensor`);
      }
    },
  },
  {
    name: 'pushPull: of every size, in place and apart, arrays and tensors',
    types: sync,
    fresh: false,
    async run(kv) {
      for (const count of [1, 3, 16, 17, 1000, 65_537, 300_001, 2_500_000]) {
        const key = `pushPull/${count}`;
        await kv.init(key, new Float32Array(count));
        const tensor = kv.tensor('float32', [count]);
        tensor.data.set(own(kv, count, 0));
        await kv.pushPull(key, tensor);
        expectAll(tensor, 'float32', (i) => sumAt(kv, i), `tensor of ${count} in place`, period);
        const array = own(kv, count, 1);
        await kv.pushPull(key, array);
        expectAll(array, 'float32', (i) => sumAt(kv, i + 1), `array of ${count} in place`, period);
        array.set(own(kv, count, 2));
        await kv.pushPull(key, array, tensor);
        expectAll(tensor, 'float32', (i) => sumAt(kv, i + 2), `${count} into another`, period);
        expectAll(array, 'float32', (i) => valueAt(kv.rank, i + 2), `${count}, what was pushed`, period);
        tensor.data.fill(-1);
        await kv.pull(key, tensor);
        expectAll(tensor, 'float32', (i) => sumAt(kv, i + 2), `${count} pulled afterwards`, period);
      }
    },
  },
  {
    name: 'many keys in one call and in many, with priorities',
    types: sync,
    fresh: false,
    async run(kv) {
      const keys = Array.from({ length: 300 }, (_, k) => `many/${k}`);
      const counts = keys.map((_, k) => 1 + ((k * 37) % 97) + (k % 100 === 99 ? 200_000 : 0));
      await kv.init(
        keys,
        counts.map((count) => new Float32Array(count)),
      );
      const values = (step: number): Float32Array[] => counts.map((count, k) => own(kv, count, k + step));
      const check = (outs: readonly Float32Array[], step: number): void =>
        outs.forEach((out, k) => expectAll(out, 'float32', (i) => sumAt(kv, i + k + step), `key ${k} step ${step}`, period));
      const tensors = counts.map((count) => kv.tensor('float32', [count]));
      for (const step of [0, 1, 2]) {
        const outs = values(step);
        await kv.pushPull(keys, outs);
        check(outs, step);
        // The same call with the same tensors, as every step of a training makes it.
        const given = values(step + 10);
        tensors.forEach((tensor, k) => tensor.data.set(given[k]));
        await kv.pushPull(keys, tensors);
        check(
          tensors.map(({ data }) => data),
          step + 10,
        );
      }
      const outs = values(3);
      await Promise.all(keys.map((key, k) => kv.pushPull(key, outs[k], undefined, { priority: -k })));
      check(outs, 3);
      const pulled = counts.map((count) => new Float32Array(count));
      values(4).forEach((value, k) => void kv.push(keys[k], value, { priority: k % 7 }));
      await Promise.all(keys.map((key, k) => kv.pull(key, pulled[k], { priority: k % 3 })));
      check(pulled, 4);
    },
  },
  {
    name: 'operations in flight keep their order; a pushed value may be changed at once',
    types: sync,
    fresh: false,
    async run(kv) {
      const rounds = 40;
      const value = new Float32Array(2000);
      await kv.init('order', value);
      const outs = Array.from({ length: rounds }, () => new Float32Array(2000));
      const works = outs.map((out, round) => {
        kv.push('order', value.fill(valueAt(kv.rank, round)));
        value.fill(NaN);
        return kv.pull('order', out);
      });
      await Promise.all(works);
      // A pull may answer with a later version than it must, never with an earlier one.
      const sums = Array.from({ length: rounds }, (_, round) => sumAt(kv, round));
      outs.forEach((out, round) => {
        assert.ok(
          out.every((element) => element === out[0]),
          `round ${round} is one version`,
        );
        assert.ok(sums.slice(round).includes(out[0]), `round ${round} gave ${out[0]}`);
      });
      await kv.pull('order', value);
      expectAll(value, 'float32', () => sums[rounds - 1], 'the last');
      const { version, ahead } = await kv.info('order');
      assert.deepEqual({ version, ahead }, { version: rounds, ahead: 0 });
      for (const work of works) assert.deepEqual({ done: work.done, error: work.error }, { done: true, error: undefined });
    },
  },
  {
    name: 'rows: pushed, summed, pulled; the others stay',
    types: sync,
    fresh: false,
    async run(kv) {
      const [rows, width] = [50, 3];
      const first = filled('float32', rows * width, (i) => -i);
      await kv.init('rows', first, { shape: [rows, width] });
      // Worker w has rows w, w + 1, …, w + 4 and row 40: neighbours overlap.
      const own = [...Array.from({ length: 5 }, (_, k) => kv.rank + k), 40];
      const values = Float32Array.from({ length: own.length * width }, (_, i) => valueAt(kv.rank, i) + own[Math.floor(i / width)]);
      await kv.rowSparsePush('rows', { indices: Uint32Array.from(own), values });
      const expected = first.slice() as Float32Array;
      const touched = new Set<number>();
      for (let worker = 0; worker < kv.numWorkers; worker++) {
        const theirs = [...Array.from({ length: 5 }, (_, k) => worker + k), 40];
        theirs.forEach((row, k) => {
          if (!touched.has(row)) expected.fill(0, row * width, (row + 1) * width);
          touched.add(row);
          for (let j = 0; j < width; j++) expected[row * width + j] += valueAt(worker, k * width + j) + row;
        });
      }
      const whole = kv.tensor('float32', [rows, width]);
      await kv.pull('rows', whole);
      expectAll(whole, 'float32', (i) => expected[i], 'all rows');
      const rowIds = Int32Array.of(49, 0, 40, 0, 3);
      const out = new Float32Array(rowIds.length * width);
      await kv.rowSparsePull('rows', out, { rowIds });
      expectAll(out, 'float32', (i) => expected[rowIds[Math.floor(i / width)] * width + (i % width)], 'rows pulled');
      assert.equal((await kv.info('rows')).version, 1);
    },
  },
  {
    name: 'broadcast is init and pull',
    types: all,
    fresh: false,
    async run(kv) {
      const outs = [new Float32Array(10), new Int32Array(4)];
      const values = [filled('float32', 10, (i) => valueAt(kv.rank, i)), filled('int32', 4, (i) => valueAt(kv.rank, i + 1))];
      await kv.broadcast(['broadcast/a', 'broadcast/b'], values, outs);
      expectAll(outs[0], 'float32', (i) => valueAt(0, i), 'a');
      expectAll(outs[1], 'int32', (i) => valueAt(0, i + 1), 'b');
    },
  },
  {
    name: 'barrier, again and again',
    types: all,
    fresh: false,
    async run(kv) {
      for (let k = 0; k < 5; k++) await kv.barrier();
    },
  },
  {
    name: 'blobs go around, by name and in order',
    types: all,
    fresh: false,
    async run(kv) {
      const next = (kv.rank + 1) % kv.numWorkers;
      const previous = (kv.rank + kv.numWorkers - 1) % kv.numWorkers;
      const received = [
        kv.receiveBlob(previous, 'gradient/of layer 1'),
        kv.receiveBlob(previous, 'feature'),
        kv.receiveBlob(previous, 'feature'),
      ];
      const values = Float32Array.of(kv.rank, 1);
      await kv.sendBlob(next, { kind: 'feature', name: 'feature', values });
      values[1] = 2;
      await kv.sendBlob(next, { kind: 'feature', name: 'feature', values });
      const large = Float64Array.from({ length: 100_000 }, (_, i) => i + kv.rank);
      await kv.sendBlob(next, { kind: 'gradient', name: 'gradient/of layer 1', values: large });
      const [gradient, first, second] = await Promise.all(received);
      assert.deepEqual([...first], [previous, 1]);
      assert.deepEqual([...second], [previous, 2]);
      expectAll(gradient, 'float64', (i) => i + previous, 'gradient');
      await refuses('usage', /no worker/, () => kv.sendBlob(kv.numWorkers, { kind: 'feature', name: 'x', values }));
      await refuses('usage', /no worker/, () => kv.receiveBlob(-1, 'x'));
    },
  },
  {
    name: 'calls that cannot be are refused and change nothing',
    types: all,
    fresh: false,
    async run(kv) {
      const [four, five] = [new Float32Array(4), new Float32Array(5)];
      await refuses('usage', /'errors'.*init/, () => kv.push('errors', four));
      await refuses('usage', /'errors'.*init/, () => kv.pull('errors', four));
      await refuses('usage', /'errors'.*init/, () => kv.pushPull('errors', four));
      await kv.init(
        'errors',
        filled('float32', 4, () => 7),
      );
      await refuses('usage', /'errors' exists/, () => kv.init('errors', four));
      for (const call of [() => kv.push('errors', five), () => kv.pull('errors', five), () => kv.pushPull('errors', five)]) {
        await refuses('mismatch', /'errors' is float32\[4\]/, call);
      }
      await refuses('mismatch', /float32\[4\].*float64/, () => kv.push('errors', new Float64Array(4)));
      await refuses('mismatch', /float32\[4\].*int32/, () => kv.pull('errors', new Int32Array(4)));
      await refuses('usage', /one per key/, () => kv.push(['errors', 'x'], [four]));
      await refuses('usage', /one per key/, () => kv.pull(['errors', 'x'], [four]));
      await refuses('usage', /twice/, () => kv.push(['errors', 'errors'], [four, four]));
      await refuses('usage', /empty/, () => kv.push([], []));
      await refuses('usage', /key/, () => kv.push('', four));
      await refuses('usage', /key/, () => kv.push(NaN, four));
      await refuses('usage', /tensor or a typed array/, () => kv.push('errors', 'text' as unknown as Float32Array));
      for (const shape of [[5], [-2, -2], [0.5, 8]]) await refuses('usage', /shape/, () => kv.init('errors/shape', four, { shape }));
      for (const values of [[four, four], [[four, four]]]) {
        await refuses('usage', /'errors\/devices' is given 2 first values.*push/, () => kv.init('errors/devices', values));
        await refuses('usage', /'errors\/devices' is given 2 first values.*push/, () => kv.broadcast('errors/devices', values, five));
      }
      await refuses('usage', /'errors\/b' is given 2 first values/, () => kv.init(['errors/a', 'errors/b'], [[four], [four, four]]));
      await refuses('usage', /'errors\/a'.*init/, () => kv.push('errors/a', four));
      await kv.init('errors/rows', new Float32Array(12), { shape: [4, 3] });
      const rows = (...indices: number[]) => ({ indices: Int32Array.from(indices), values: new Float32Array(indices.length * 3) });
      await refuses('usage', /no row 4/, () => kv.rowSparsePush('errors/rows', rows(0, 4)));
      await refuses('usage', /no row -1/, () => kv.rowSparsePush('errors/rows', rows(-1)));
      await refuses('usage', /ascending/, () => kv.rowSparsePush('errors/rows', rows(2, 1)));
      await refuses('usage', /ascending/, () => kv.rowSparsePush('errors/rows', rows(2, 2)));
      await refuses('mismatch', /2 rows/, () => kv.rowSparsePush('errors/rows', { ...rows(0, 1), values: new Float32Array(5) }));
      await refuses('usage', /matrix/, () => kv.rowSparsePush('errors', rows(0)));
      await refuses('usage', /no row 9/, () => kv.rowSparsePull('errors/rows', new Float32Array(3), { rowIds: Uint32Array.of(9) }));
      await refuses('usage', /no optimizer 'rmsprop'/, async () => {
        if (kv.rank === 0) await kv.setOptimizer({ name: 'rmsprop' as 'sgd', learningRate: 1 });
        else throw Object.assign(new Error("there is no optimizer 'rmsprop'"), { code: 'usage' });
      });
      await refuses('usage', /compression '1bit'/, () => kv.setGradientCompression({ type: '1bit' as 'fp16' }));
      await kv.pull('errors', four);
      expectAll(four, 'float32', () => 7, 'after all of it');
      assert.equal((await kv.info('errors')).version, 0);
    },
  },
];

/** Optimisers whose steps are compared with those of one process. */
const optimizerSpecs: readonly OptimizerSpec[] = [
  { name: 'sgd', learningRate: 0.125, rescale: 0.5, weightDecay: 0.25 },
  { name: 'momentum', learningRate: 0.25, momentum: 0.5, variant: 'nesterov' },
  { name: 'adam', learningRate: 0.01, clip: 3 },
  { name: 'adagrad', learningRate: 0.1 },
  { name: 'ftrl', learningRate: 0.1 },
];

const optimizing: readonly KVCheck[] = optimizerSpecs.map((spec) => ({
  name: `setOptimizer: ${spec.name}`,
  types: sync,
  fresh: true,
  async run(kv) {
    const counts = [5, 1000, 70_000];
    const keys = counts.map((count) => `optimized/${count}`);
    const firsts = counts.map((count) => filled('float32', count, (i) => (i % 3) - 1) as Float32Array);
    await kv.init(keys, firsts);
    await leaderSets(kv, spec);
    const references = firsts.map((first) => new Reference(spec, first));
    for (const step of [0, 1, 2]) {
      const outs = counts.map((count) => own(kv, count, step));
      if (step === 1) {
        await kv.push(keys, outs);
        await kv.pull(keys, outs);
      } else await kv.pushPull(keys, outs);
      references.forEach((reference, k) => {
        reference.update(sums(kv, counts[k], step));
        expectAll(outs[k], 'float32', (i) => reference.value[i], `${keys[k]} step ${step}`);
      });
    }
  },
}));

/** Steps of an optimiser are below the precision of half of these, and add up to more than it. */
const halfFirsts = Float32Array.of(4, 64, 0.5, 8, 1024);

const halving: readonly KVCheck[] = optimizerSpecs.map((spec) => ({
  name: `setOptimizer: ${spec.name} updates 16-bit parameters in float32, also after loadState`,
  types: sync,
  fresh: true,
  async run(kv, folder) {
    const all = (['float16', 'bfloat16'] as const).flatMap((dtype) =>
      [5, 70_000].map((count) => ({ dtype, key: `half/${dtype}/${count}`, tensor: kv.tensor(dtype, [count]) })),
    );
    const [keys, tensors] = [all.map(({ key }) => key), all.map(({ tensor }) => tensor)];
    const set = (at: (i: number) => number): void => {
      for (const { dtype, tensor } of all) {
        const { data, count } = tensor;
        const few = filled(dtype, period, at) as Uint16Array;
        for (let i = 0; i < count; i += period) data.set(few, i);
      }
    };
    set((i) => halfFirsts[i]);
    await kv.init(keys, tensors);
    await leaderSets(kv, spec);
    const reference = new Reference(spec, halfFirsts);
    const steps = async (from: number, to: number, effect: 'counts' | 'is dropped'): Promise<void> => {
      for (let step = from; step < to; step++) {
        set((i) => valueAt(kv.rank, i + step));
        await kv.pushPull(keys, tensors);
        if (effect === 'is dropped') continue;
        reference.update(sums(kv, period, step));
        for (const { dtype, key, tensor } of all) {
          const expected = reference.rounded(dtype);
          expectAll(tensor, 'uint16', (i) => expected[i], `${key} step ${step}`, period);
        }
      }
    };
    const lead = async (action: () => Promise<void>): Promise<void> => {
      await kv.barrier();
      if (kv.rank === 0) await action();
      await kv.barrier();
    };
    await steps(0, 4, 'counts');
    await lead(() => kv.saveState(folder));
    await steps(4, 6, 'is dropped');
    await lead(() => kv.loadState(folder));
    await steps(4, 8, 'counts');
  },
}));

const compressing: readonly KVCheck[] = ([{ type: '2bit', threshold: 2 }, { type: 'fp16' }] as const).map((spec: CompressionSpec) => ({
  name: `setGradientCompression: ${spec.type}`,
  types: sync,
  fresh: true,
  async run(kv) {
    const count = 1003;
    await kv.init(['compressed', 'exact'], [new Float32Array(count), new Float64Array(count)]);
    kv.setGradientCompression(spec);
    const codec = createCodec(spec, js);
    const residuals = Array.from({ length: kv.numWorkers }, () => new Float32Array(count));
    const encoded = new Uint8Array(codec.encodedBytes(count));
    for (let step = 0; step < 5; step++) {
      const gradient = (worker: number): Float32Array =>
        Float32Array.from({ length: count }, (_, i) => valueAt(worker, i + step) - 2 + 2 ** -13);
      const expected = new Float32Array(count);
      residuals.forEach((residual, worker) => {
        codec.encode(encoded, gradient(worker), residual);
        const decoded = new Float32Array(count);
        codec.decode(decoded, encoded);
        decoded.forEach((value, i) => (expected[i] += value));
      });
      const out = gradient(kv.rank);
      await kv.pushPull('compressed', out);
      expectAll(out, 'float32', (i) => expected[i], `step ${step}`);
    }
    const out = new Float64Array(count).fill(2 ** -40);
    await kv.pushPull('exact', out);
    expectAll(out, 'float64', () => kv.numWorkers * 2 ** -40, 'float64 is not compressed');
  },
}));

const fresh: readonly KVCheck[] = [
  {
    name: 'rows with an optimiser: only they, and their state, change',
    types: sync,
    fresh: true,
    async run(kv) {
      const spec: OptimizerSpec = { name: 'adagrad', learningRate: 0.5 };
      const [rows, width] = [20, 4];
      await kv.init('embedding', new Float32Array(rows * width), { shape: [rows, width] });
      await leaderSets(kv, spec);
      const references = Array.from({ length: rows }, () => new Reference(spec, new Float32Array(width)));
      for (const touched of [
        [1, 5],
        [5, 19],
        [0, 1, 2, 3],
      ]) {
        const values = Float32Array.from({ length: touched.length * width }, (_, i) => valueAt(kv.rank, i));
        await kv.rowSparsePush('embedding', { indices: Uint32Array.from(touched), values });
        touched.forEach((row, k) => references[row].update(Float32Array.from({ length: width }, (_, j) => sumAt(kv, k * width + j))));
      }
      const out = new Float32Array(rows * width);
      await kv.pull('embedding', out);
      expectAll(out, 'float32', (i) => references[Math.floor(i / width)].value[i % width], 'the matrix');
    },
  },
  {
    name: 'pushes that are applied at once',
    types: ['dist_async'],
    fresh: true,
    async run(kv) {
      const [count, steps] = [5000, 12];
      await kv.init(
        'async',
        filled('float32', count, () => 1000),
      );
      await leaderSets(kv, asyncOptimizer);
      const out = new Float32Array(count);
      let sum = 0;
      for (let step = 0; step < steps; step++) {
        await kv.pushPull('async', new Float32Array(count).fill(valueAt(kv.rank, step)), out);
        sum += valueAt(kv.rank, step);
        // Others push at any time; its own are in it.
        assert.ok(out[0] <= 1000 - sum, `step ${step}: ${out[0]} does not contain this worker's ${sum}`);
      }
      await kv.barrier();
      await kv.pull('async', out);
      const total = Array.from({ length: steps }, (_, step) => sumAt(kv, step)).reduce((a, b) => a + b);
      expectAll(out, 'float32', () => 1000 - total, 'after everyone');
      assert.equal((await kv.info('async')).version, steps * kv.numWorkers);
    },
  },
  {
    name: 'setUpdater: the function changes what is stored',
    types: withoutServers,
    fresh: true,
    async run(kv) {
      await kv.init(
        'updated',
        filled('float32', 100, (i) => i),
      );
      const keys: string[] = [];
      kv.setUpdater((key, pushed, stored) => {
        keys.push(key);
        for (let i = 0; i < stored.length; i++) (stored as Float32Array)[i] -= 2 * (pushed as Float32Array)[i];
      });
      const out = own(kv, 100, 0);
      await kv.pushPull('updated', out);
      expectAll(out, 'float32', (i) => i - 2 * sumAt(kv, i), 'updated');
      assert.deepEqual(keys, ['updated']);
      kv.setUpdater(() => {
        throw new Error('no such layer');
      });
      await refuses('usage', /updater threw at parameter 'updated'.*no such layer/, () => kv.push('updated', new Float32Array(100)));
      assert.equal((await kv.info('updated')).version, 1);
    },
  },
  {
    name: 'setUpdater is refused where servers update',
    types: ['dist_sync', 'dist_async'],
    fresh: false,
    async run(kv) {
      await refuses('unsupported', /setOptimizer/, () => kv.setUpdater(() => undefined));
    },
  },
  {
    name: 'setOptimizer is for worker 0',
    types: all,
    fresh: true,
    async run(kv) {
      if (kv.rank === 0) await kv.setOptimizer(asyncOptimizer);
      else await refuses('usage', /worker 0/, () => kv.setOptimizer(asyncOptimizer));
      await kv.barrier();
    },
  },
  {
    name: 'a gradient that is not finite is refused on all workers, when asked for',
    types: sync,
    fresh: true,
    async run(kv) {
      await kv.init(['sound', 'other'], [filled('float32', 500, () => 3), filled('float32', 500, () => 3)]);
      await leaderSets(kv, { ...asyncOptimizer, nonFinite: 'refuse' });
      const gradient = new Float32Array(500).fill(1);
      if (kv.rank === kv.numWorkers - 1) gradient[123] = NaN;
      await refuses('usage', refusalOf(kv, kv.numWorkers - 1, 'sound'), () => kv.push('sound', gradient));
      const out = new Float32Array(500);
      await kv.pull('sound', out);
      expectAll(out, 'float32', () => 3, 'unchanged');
      assert.equal((await kv.info('sound')).version, 0);
      // No part of a value that lies on several servers may be applied.
      const large = new Float32Array(3_000_000).fill(1);
      await kv.init('large', large);
      if (kv.rank === 0) large[2_999_999] = -Infinity;
      await refuses('usage', refusalOf(kv, 0, 'large'), () => kv.push('large', large));
      await kv.pull('large', large);
      expectAll(large, 'float32', () => 1, 'all of it unchanged', 1);
      await kv.pushPull('sound', out.fill(1));
      expectAll(out, 'float32', () => 3 - kv.numWorkers, 'the next one');
      await kv.pushPull('other', out.fill(1));
      expectAll(out, 'float32', () => 3 - kv.numWorkers, 'another parameter');
    },
  },
  {
    name: 'an optimiser does not change integers',
    types: sync,
    fresh: true,
    async run(kv) {
      await kv.init('whole', new Int32Array(4));
      await leaderSets(kv, asyncOptimizer);
      await refuses('unsupported', /'whole'.*int32/, () => kv.push('whole', new Int32Array(4)));
    },
  },
  {
    name: 'saveState and loadState: values, versions and the optimiser’s state',
    types: sync,
    fresh: true,
    async run(kv, folder) {
      const spec: OptimizerSpec = { name: 'adam', learningRate: 0.1 };
      const counts = [7, 3000];
      const keys = ['saved/small', 'saved/ü'];
      await kv.init(
        keys,
        counts.map((count) => new Float32Array(count)),
      );
      await leaderSets(kv, spec);
      const references = counts.map((count) => new Reference(spec, new Float32Array(count)));
      const step = async (number: number): Promise<Float32Array[]> => {
        const outs = counts.map((count) => own(kv, count, number));
        await kv.pushPull(keys, outs);
        return outs;
      };
      for (const number of [0, 1]) {
        await step(number);
        references.forEach((reference, k) => reference.update(sums(kv, counts[k], number)));
      }
      await kv.barrier();
      if (kv.rank === 0) await kv.saveState(folder);
      await kv.barrier();
      for (const number of [5, 6, 7]) await step(number);
      await kv.barrier();
      if (kv.rank === 0) await kv.loadState(folder);
      await kv.barrier();
      const outs = counts.map((count) => new Float32Array(count));
      await kv.pull(keys, outs);
      references.forEach((reference, k) => expectAll(outs[k], 'float32', (i) => reference.value[i], `${keys[k]} loaded`));
      assert.equal((await kv.info(keys[0])).version, 2);
      const after = await step(2);
      references.forEach((reference, k) => {
        reference.update(sums(kv, counts[k], 2));
        expectAll(after[k], 'float32', (i) => reference.value[i], `${keys[k]} goes on`);
      });
    },
  },
  {
    name: 'init: workers that disagree all fail',
    types: ['collective', 'dist_sync', 'dist_async'],
    fresh: true,
    async run(kv) {
      if (kv.numWorkers === 1) return;
      const shape = kv.rank === kv.numWorkers - 1 ? [3, 4] : [4, 3];
      const init = kv.init('disagreed', new Float32Array(12), { shape });
      if (kv.type === 'collective' || kv.rank === kv.numWorkers - 1) await refuses('mismatch', /disagreed/, () => init);
      else await init;
    },
  },
  {
    name: 'nothing works after close, and closing twice does',
    types: all,
    fresh: true,
    async run(kv) {
      await kv.init('closed', new Float32Array(4));
      await kv.barrier();
      await kv.close();
      await kv.close();
      await refuses('closed', /closed/, () => kv.push('closed', new Float32Array(4)));
      await refuses('closed', /closed/, () => kv.pull('closed', new Float32Array(4)));
      await refuses('closed', /closed/, () => kv.barrier());
    },
  },
];

export const kvstoreChecks: readonly KVCheck[] = [
  ...shared,
  ...listChecks,
  ...emptyChecks,
  ...stateChecks,
  ...modelChecks,
  ...optimizing,
  ...halving,
  ...compressing,
  ...fresh,
];
