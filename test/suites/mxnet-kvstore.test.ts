/** MXNet's tests of its key-value store, told from their descriptions: local stores, and stores of three workers over two servers. */
import { afterAll, beforeAll, describe, expect } from 'vitest';
import { seededRandom } from '../../src/base/random.ts';
import { setNumber } from '../../src/group/testing/conformance-values.ts';
import type { KVStore } from '../../src/kvstore/calls/types.ts';
import { create } from '../../src/kvstore/index.ts';
import type { DType } from '../../src/memory/dtype.ts';
import type { Tensor } from '../../src/memory/tensor.ts';
import { KVJob } from '../support/kv-job.ts';
import { mxnetDist, mxnetLocal } from './foreign-suites.ts';
import { numbersOf } from './support/element-values.ts';
import { ranksOf, triangle } from './support/shared-worlds.ts';
import { SuiteCases } from './support/suite-cases.ts';

const shape = [4, 4];
const count = 16;
const keys = [5, 7, 11];
const texts = ['b', 'c', 'd'];
const of = (value: number, elements = count): Float32Array => new Float32Array(elements).fill(value);
const allRows = (rows: number): Uint32Array => Uint32Array.from({ length: rows }, (_, row) => row);

function expectAll(array: Float32Array, value: number, what = 'value'): void {
  const wrong = array.findIndex((each) => each !== value);
  if (wrong >= 0) expect(array[wrong], `${what}, element ${wrong}`).toBe(value);
  expect(array.length).toBeGreaterThan(0);
}

describe(mxnetLocal.name, () => {
  const cases = new SuiteCases(mxnetLocal);
  /** A store with zeros under one key, and under three. */
  const storeOf = async (single: number | string, list: readonly (number | string)[]): Promise<KVStore> => {
    const kv = await create('local');
    await kv.init(single, of(0), { shape });
    for (const key of list) await kv.init(key, of(0), { shape });
    return kv;
  };
  const kindsOfKeys = [
    { name: 'numbers', single: 3, list: keys },
    { name: 'texts', single: 'a', list: texts },
  ];
  const stored = kindsOfKeys.flatMap((kind) => (['whole', 'by rows'] as const).map((how) => ({ ...kind, how })));
  const push = (kv: KVStore, key: number | string, value: number, how: 'whole' | 'by rows'): PromiseLike<void> =>
    how === 'whole' ? kv.push(key, of(value)) : kv.rowSparsePush(key, { indices: allRows(4), values: of(value) });

  cases.each(
    'single_kv_pair',
    stored,
    ({ name, how }) => `${name}, pushed ${how}`,
    async ({ single, list, how }) => {
      await using kv = await storeOf(single, list);
      await push(kv, single, 1, how);
      const out = of(-1);
      await kv.pull(single, out);
      expectAll(out, 1);
    },
  );
  cases.each(
    'row_sparse_pull',
    [1, 4],
    (times) => `some rows, ${times} at once`,
    async (times) => {
      await using kv = await create('local');
      await kv.init(
        'e',
        Float32Array.from({ length: count }, (_, i) => Math.floor(i / 4)),
        { shape },
      );
      const random = seededRandom(times);
      const asked = ranksOf(times).map(() => Uint32Array.from({ length: 4 }, () => random.integer(4)));
      const outs = asked.map(() => of(-1));
      await Promise.all(asked.map((rowIds, k) => kv.rowSparsePull('e', outs[k], { rowIds })));
      asked.forEach((rowIds, k) => expect([...outs[k]]).toEqual([...rowIds].flatMap((row) => Array<number>(4).fill(row))));
    },
  );
  cases.each(
    'init',
    [3, 'a'],
    (key) => `key ${key}`,
    async (key) => {
      await using kv = await create('local');
      await kv.init(key, of(4), { shape });
      const out = of(0);
      await kv.pull(key, out);
      expectAll(out, 4);
    },
  );
  cases.add('pull', 'the sum of several values, and a value that nobody has pushed', async () => {
    await using kv = await create('local');
    const out = of(-1);
    await kv.init('1', of(0), { shape });
    await kv.push('1', [of(1), of(1), of(1), of(1)]);
    await kv.pull('1', out);
    expectAll(out, 4);
    await kv.init('2', of(0), { shape });
    await kv.pull('2', out);
    expectAll(out, 0);
  });
  cases.each(
    'list_kv_pair',
    stored,
    ({ name, how }) => `${name}, pushed ${how}`,
    async ({ single, list, how }) => {
      await using kv = await storeOf(single, list);
      if (how === 'whole')
        await kv.push(
          list,
          list.map(() => of(4)),
        );
      else for (const key of list) await push(kv, key, 4, how);
      const outs = list.map(() => of(-1));
      await kv.pull(list, outs);
      for (const out of outs) expectAll(out, 4);
    },
  );
  const devices = 4;
  const onDevices = (value: number): Float32Array[] => ranksOf(devices).map(() => of(value));
  cases.each(
    'aggregator',
    kindsOfKeys,
    ({ name }) => `values of four devices, keys are ${name}`,
    async ({ single, list }) => {
      await using kv = await storeOf(single, list);
      const outs = onDevices(-1);
      await kv.push(single, onDevices(1));
      await kv.pull(single, outs);
      for (const out of outs) expectAll(out, devices);
      const lists = list.map(() => onDevices(-1));
      await kv.push(
        list,
        list.map(() => onDevices(2)),
      );
      await kv.pull(list, lists);
      for (const out of lists.flat()) expectAll(out, devices * 2);
    },
  );
  cases.each(
    'updater',
    kindsOfKeys,
    ({ name }) => `values are added, keys are ${name}`,
    async ({ single, list }) => {
      await using kv = await storeOf(single, list);
      const seen = new Set<string>();
      kv.setUpdater((key, pushed, value) => {
        seen.add(key);
        (value as Float32Array).forEach((each, i) => (value[i] = each + (pushed as Float32Array)[i]));
      });
      await kv.push(single, onDevices(1));
      const out = of(-1);
      await kv.pull(single, out);
      expectAll(out, devices);
      for (let round = 0; round < 4; round++)
        await kv.push(
          list,
          list.map(() => onDevices(1)),
        );
      const lists = list.map(() => onDevices(-1));
      await kv.pull(list, lists);
      for (const each of lists.flat()) expectAll(each, devices * 4);
      expect(seen).toEqual(new Set([single, ...list].map(String)));
    },
  );
  cases.add('get_type', 'a store knows its type', async () => {
    await using kv = await create('local');
    expect(kv.type).toBe('local');
  });
  const refusals = [
    ['rows into an output that does not fit', (kv: KVStore) => kv.rowSparsePull('a', of(0, 5), { rowIds: Uint32Array.of(1) }), 'mismatch'],
    ['a row beyond the matrix', (kv: KVStore) => kv.rowSparsePull('a', of(0, 4), { rowIds: Uint32Array.of(4) }), 'usage'],
    ['a pull of what nobody initialised', (kv: KVStore) => kv.pull('unknown', of(0)), 'usage'],
    ['a push to what nobody initialised', (kv: KVStore) => kv.push('unknown', of(0)), 'usage'],
    ['a key that exists', (kv: KVStore) => kv.init('a', of(0)), 'usage'],
    ['another dtype', (kv: KVStore) => kv.pull('a', new Float64Array(count)), 'mismatch'],
  ] as const;
  cases.each(
    'invalid_pull',
    refusals,
    ([what]) => `refused: ${what}`,
    async ([, call, code]) => {
      await using kv = await storeOf('a', texts);
      await expect((async () => call(kv))()).rejects.toMatchObject({ code });
    },
  );

  cases.each(
    'broadcast_single_kv_pair',
    [3, 'a'],
    (key) => `key ${key}, one output and three`,
    async (key) => {
      await using kv = await create('local');
      const out = of(-1);
      await kv.broadcast(key, of(1), out);
      expectAll(out, 1);
      const outs = ranksOf(3).map(() => of(-1));
      await kv.broadcast(`${key}${key}`, of(1), outs);
      for (const each of outs) expectAll(each, 1);
    },
  );
  cases.each(
    'broadcast_list_kv_pair',
    kindsOfKeys,
    ({ name }) => `keys are ${name}, one output for each and two`,
    async ({ list }) => {
      await using kv = await create('local');
      const outs = list.map(() => of(-1));
      await kv.broadcast(
        list,
        list.map(() => of(1)),
        outs,
      );
      for (const out of outs) expectAll(out, 1);
      const pairs = list.map(() => [of(-1), of(-1)]);
      await kv.broadcast(
        list.map((key) => `${key}${key}`),
        list.map(() => of(1)),
        pairs,
      );
      for (const out of pairs.flat()) expectAll(out, 1);
    },
  );
  for (const [test, inPlace] of [
    ['pushpull_single_kv_pair', [false, true]],
    ['pushpull_list_kv_pair', [false]],
  ] as const) {
    const rows = kindsOfKeys.flatMap((kind) => inPlace.map((where) => ({ ...kind, where })));
    cases.each(
      test,
      rows,
      ({ name, where }) => `keys are ${name}${where ? ', in place' : ''}`,
      async ({ single, list, where }) => {
        await using kv = await storeOf(single, list);
        const [values, outs] = [onDevices(1), onDevices(-1)];
        if (where) await kv.pushPull(single, values);
        else await kv.pushPull(single, values, outs);
        for (const each of where ? values : outs) expectAll(each, devices);
        const [lists, results] = [list.map(() => onDevices(2)), list.map(() => onDevices(-1))];
        if (where) await kv.pushPull(list, lists);
        else await kv.pushPull(list, lists, results);
        for (const each of (where ? lists : results).flat()) expectAll(each, 2 * devices);
      },
    );
  }
  cases.complete();
});

/** The optimiser of MXNet's tests adds gradients times this rate. */
const rate = 2;
const small: readonly number[] = [2, 3];
const large: readonly number[] = [1200, 1200];
const sizeOf = (dimensions: readonly number[]): number => dimensions.reduce((product, each) => product * each);

/** A tensor of the store with these small numbers; one number: all of them. */
function tensorIn(kv: KVStore, dtype: DType, dimensions: readonly number[], numbers: readonly number[] | number): Tensor {
  const tensor = kv.tensor(dtype, dimensions);
  if (typeof numbers !== 'number') numbers.forEach((number, i) => setNumber(tensor, i, number));
  else {
    setNumber(tensor, 0, numbers);
    tensor.data.fill(tensor.data[0] as never);
  }
  return tensor;
}

/** That all elements are this number, which costs little for large tensors. */
function expectFilled(tensor: Tensor, number: number, what: string): void {
  const [first] = tensor.data;
  expect(numbersOf({ dtype: tensor.dtype, data: tensor.data.subarray(0, 1) } as Tensor), what).toEqual([number]);
  const wrong = (tensor.data as Float32Array).findIndex((each) => !Object.is(each, first));
  if (wrong >= 0) expect(tensor.data[wrong], `${what}, element ${wrong}`).toBe(first);
}

describe(mxnetDist.name, () => {
  const cases = new SuiteCases(mxnetDist);
  const workers = 3;
  const env = { SHOAL_TIMEOUT_MS: '60000' };
  let job: KVJob;
  let stores: KVStore[];
  const onWorkers = async (body: (kv: KVStore) => Promise<void>): Promise<void> => void (await Promise.all(stores.map(body)));
  /** Worker 0 sets the optimiser; nobody pushes before. */
  const optimise = (spec: Parameters<KVStore['setOptimizer']>[0]): Promise<void> =>
    onWorkers(async (kv) => {
      if (kv.rank === 0) await kv.setOptimizer(spec);
      await kv.barrier();
    });
  beforeAll(async () => {
    job = await KVJob.start({ workers, servers: 2, env });
    stores = await job.stores('dist_sync');
    await optimise({ name: 'sgd', learningRate: 1, rescale: -rate });
  });
  afterAll(() => job[Symbol.asyncDispose]());

  const sum = triangle(workers + 1);
  const dtypes = ['float32', 'float16'] as const;
  const rows = dtypes.flatMap((dtype) => [small, large].map((dimensions) => ({ dtype, dimensions })));
  const rowName = ({ dtype, dimensions }: { dtype: DType; dimensions: readonly number[] }): string => `${dtype}[${dimensions.join(', ')}]`;
  cases.each('sync_push_pull.default_keys', rows, rowName, ({ dtype, dimensions }) =>
    onWorkers(async (kv) => {
      const key = `dense/${dtype}/${sizeOf(dimensions)}`;
      await kv.init(key, tensorIn(kv, dtype, dimensions, 1));
      for (let repetition = 1; repetition <= 3; repetition++) {
        await kv.push(key, tensorIn(kv, dtype, dimensions, kv.rank + 1));
        const out = tensorIn(kv, dtype, dimensions, 0);
        await kv.pull(key, out);
        expectFilled(out, 1 + rate * sum * repetition, key);
      }
    }),
  );
  cases.each(
    'sync_push_pull.row_sparse_keys',
    dtypes,
    (dtype) => `${dtype}: a row of each worker, some rows pulled`,
    (dtype) =>
      onWorkers(async (kv) => {
        const key = `rows/${dtype}`;
        await kv.init(key, tensorIn(kv, dtype, small, 1));
        const random = seededRandom(kv.rank);
        for (let repetition = 1; repetition <= 3; repetition++) {
          const row = kv.rank % small[0];
          await kv.rowSparsePush(key, { indices: Uint32Array.of(row), values: tensorIn(kv, dtype, [1, 3], kv.rank + 1) });
          const rowIds = Uint32Array.from({ length: 2 }, () => random.integer(2));
          const out = tensorIn(kv, dtype, [2, 3], 0);
          await kv.rowSparsePull(key, out, { rowIds });
          // Workers 0 and 2 have row 0, worker 1 has row 1.
          const expected = [1 + rate * repetition * 4, 1 + rate * repetition * 2];
          expect(numbersOf(out)).toEqual([...rowIds].flatMap((each) => Array<number>(3).fill(expected[each])));
        }
      }),
  );
  cases.each(
    'sync_push_pull.row_sparse_keys_with_zeros',
    rows,
    (row) => `${rowName(row)}: pushes of no rows, pulls of none`,
    ({ dtype, dimensions }) =>
      onWorkers(async (kv) => {
        const key = `no rows/${dtype}/${sizeOf(dimensions)}`;
        await kv.init(key, tensorIn(kv, dtype, dimensions, 1));
        for (let repetition = 0; repetition < 2; repetition++) {
          await kv.rowSparsePush(key, { indices: new Uint32Array(0), values: kv.tensor(dtype, [0, dimensions[1]]) });
          const out = tensorIn(kv, dtype, dimensions, 0);
          await kv.rowSparsePull(key, out, { rowIds: allRows(dimensions[0]) });
          expectFilled(out, 1, key);
          await kv.rowSparsePull(key, kv.tensor(dtype, [0, dimensions[1]]), { rowIds: new Uint32Array(0) });
        }
      }),
  );
  cases.each(
    'sync_push_pull.big_row_sparse_keys',
    dtypes,
    (dtype) => `${dtype}: rows that workers share in part`,
    (dtype) =>
      onWorkers(async (kv) => {
        const key = `many rows/${dtype}`;
        const [height, width] = [1200, 40];
        await kv.init(key, tensorIn(kv, dtype, [height, width], 1));
        const random = seededRandom(123);
        const some = ranksOf(height).filter(() => random.next() < 0.3);
        const rowsOf = ranksOf(workers).map((worker) => some.filter((_, i) => i % ((worker + 1) * 2) === 0));
        const own = rowsOf[kv.rank];
        const expected = ranksOf(height).map(() => 1);
        for (let repetition = 0; repetition < 2; repetition++) {
          rowsOf.forEach((each, worker) => each.forEach((row) => (expected[row] += rate * (worker + 1))));
          await kv.rowSparsePush(key, { indices: Uint32Array.from(own), values: tensorIn(kv, dtype, [own.length, width], kv.rank + 1) });
          const mine = seededRandom(kv.rank + 10);
          const rowIds = Uint32Array.from({ length: 300 }, () => mine.integer(height));
          const out = kv.tensor(dtype, [300, width]);
          await kv.rowSparsePull(key, out, { rowIds });
          const numbers = numbersOf(out);
          rowIds.forEach((row, k) => expect(numbers[k * width + (k % width)], `row ${row}`).toBe(expected[row]));
        }
      }),
  );
  const initRows = [small, large].map((dimensions) => ({ dimensions, keys: dimensions === small ? 100 : 4 }));
  cases.each(
    'sync_init',
    initRows,
    ({ dimensions, keys: number }) => `${number} keys of [${dimensions.join(', ')}], two dtypes`,
    ({ dimensions, keys: number }) =>
      onWorkers(async (kv) => {
        for (const k of ranksOf(number)) {
          const dtype = k < number / 2 ? 'float32' : 'float16';
          const key = `init/${sizeOf(dimensions)}/${k}`;
          await kv.init(key, tensorIn(kv, dtype, dimensions, k));
          const out = tensorIn(kv, dtype, dimensions, 1);
          await kv.pull(key, out);
          expectFilled(out, k, key);
        }
      }),
  );
  cases.add('gluon_trainer_step', 'a step of a rate of 1 takes the sum of all gradients', async () => {
    await optimise({ name: 'sgd', learningRate: 1 });
    await onWorkers(async (kv) => {
      const weights = of(1, 10);
      await kv.init('trainer', weights, { shape: [10, 1] });
      await kv.pushPull('trainer', of(kv.rank + 1, 10), weights);
      expectAll(weights, 1 - sum);
    });
  });
  cases.add('gluon_trainer_sparse_step', 'the same with rows', async () => {
    await optimise({ name: 'sgd', learningRate: 1 });
    await onWorkers(async (kv) => {
      await kv.init('sparse trainer', of(1, 20), { shape: [2, 10] });
      await kv.rowSparsePush('sparse trainer', { indices: allRows(2), values: of(kv.rank + 1, 20) });
      const out = of(0, 20);
      await kv.rowSparsePull('sparse trainer', out, { rowIds: allRows(2) });
      expectAll(out, 1 - sum);
    });
  });
  compressionCases();
  cases.complete();

  /** Gradients of two bits per element, in a job of their own. */
  function compressionCases(): void {
    const threshold = 0.5;
    const shapes = [
      [2, 3],
      [121, 121],
      [400, 400],
    ];
    let compressed: KVJob;
    let own: KVStore[];
    let made = 0;
    beforeAll(async () => {
      compressed = await KVJob.start({ workers: 2, servers: 1, env });
      own = await compressed.stores('dist_sync');
      for (const kv of own) kv.setGradientCompression({ type: '2bit', threshold });
      await own[0].setOptimizer({ name: 'sgd', learningRate: 1, rescale: -rate });
    });
    afterAll(() => compressed[Symbol.asyncDispose]());
    const each = (
      test: string,
      what: string,
      first: number,
      run: (step: (gradient: Float32Array) => Promise<Float32Array>, elements: number) => Promise<void>,
    ): void => {
      cases.each(
        `sync_2bit_compression.${test}`,
        shapes,
        (dimensions) => `${what}, [${dimensions.join(', ')}]`,
        async (dimensions) => {
          const key = `compressed/${made++}`;
          const elements = sizeOf(dimensions);
          await Promise.all(
            own.map(async (kv) => {
              await kv.init(key, of(first, elements), { shape: dimensions });
              const step = async (gradient: Float32Array): Promise<Float32Array> => {
                if (gradient.length > 0) await kv.push(key, gradient);
                const out = of(-1, elements);
                await kv.pull(key, out);
                return out;
              };
              await run(step, elements);
            }),
          );
        },
      );
    };
    const step2 = threshold * rate * 2;
    each('pull_before_push', 'first values are not compressed', 1, async (step) => expectAll(await step(new Float32Array(0)), 1));
    each('zero', 'zeros change nothing', 0, async (step, elements) => expectAll(await step(of(0, elements)), 0));
    each('residual', 'what is lost counts in the next push', 0, async (step, elements) => {
      expectAll(await step(of(0.4, elements)), 0, 'below the threshold');
      expectAll(await step(of(threshold - 0.4, elements)), step2, 'at the threshold');
      expectAll(await step(of(0.2, elements)), step2, 'below again');
      expectAll(await step(of(threshold - 0.2, elements)), 2 * step2, 'at it again');
    });
    each('ones', 'the threshold itself arrives', 0, async (step, elements) => expectAll(await step(of(threshold, elements)), step2));
    each('random', 'as a model of it computes', 0, async (step, elements) => {
      const random = seededRandom(123);
      const [residual, value] = [new Float32Array(elements), new Float32Array(elements)];
      for (let round = 0; round < 4; round++) {
        const gradient = Float32Array.from({ length: elements }, () => random.next() * 2 - 1);
        for (let i = 0; i < elements; i++) {
          const whole = Math.fround(residual[i] + gradient[i]);
          const sent = whole >= threshold ? threshold : whole <= -threshold ? -threshold : 0;
          residual[i] = whole - sent;
          value[i] += 2 * rate * sent;
        }
        const out = await step(gradient);
        const wrong = out.findIndex((number, i) => number !== value[i]);
        if (wrong >= 0) expect([round, wrong, out[wrong]]).toEqual([round, wrong, value[wrong]]);
      }
      expect(value.some((number) => number !== 0)).toBe(true);
    });
  }
});
