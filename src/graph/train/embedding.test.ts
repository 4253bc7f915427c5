/** Tables in parts and hash tables: lookups, combiners, updates, admission, eviction, and saving. */
import * as tf from '@tensorflow/tfjs';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import { Session } from '../execute/session.ts';
import { tensorflowKernels } from '../kernels/tensorflow.ts';
import { localKernels } from '../local-kernels.ts';
import { identity, placeholder } from '../ops/array.ts';
import { evictEmbeddings } from '../ops/embedding.ts';
import { add, mul, square } from '../ops/math.ts';
import { sum } from '../ops/reduction.ts';
import { assign, gather } from '../ops/state.ts';
import { Saver } from '../saver.ts';
import { GraphBuilder } from '../structure/builder.ts';
import { elementsOf } from '../structure/elements.ts';
import type { Output } from '../structure/graph-node.ts';
import type { Value } from '../structure/value.ts';
import {
  embeddingLookup,
  embeddingLookupSparse,
  exportEmbeddings,
  getEmbeddingVariable,
  getPartitionedVariable,
  type EmbeddingVariableOptions,
} from './embedding.ts';
import { AdagradOptimizer, AdamOptimizer, GradientDescentOptimizer, type Optimizer } from './optimizers.ts';
import { createGlobalStep, globalVariablesInitializer, onesInitializer, randomUniformInitializer } from './variables.ts';

const devices = ['/job:worker/task:0/device:CPU:0', '/job:ps/task:0/device:CPU:0', '/job:ps/task:1/device:CPU:0'];
const sessionOf = (g: GraphBuilder): Session =>
  new Session(g.finish(), { devices, kernels: { ...localKernels(), ...tensorflowKernels(tf) } });
const numbers = (value: Value): number[] => Array.from(elementsOf(value) as ArrayLike<number>, Number);
const ints = (...data: number[]): Value => ({ dtype: 'int32', shape: [data.length], data: Int32Array.from(data) });
const longs = (...data: (number | bigint)[]): Value => ({ dtype: 'int64', shape: [data.length], data: BigInt64Array.from(data, BigInt) });
const floats = (...data: number[]): Value => ({ dtype: 'float32', shape: [data.length], data: Float32Array.from(data) });

beforeAll(() => tf.setBackend('cpu'));

describe('tables in parts', () => {
  it.each(['mod', 'div'] as const)('give all rows, by %s, and are trained like one table', async (partitionStrategy) => {
    const g = new GraphBuilder();
    const parts = getPartitionedVariable(g, 'table', [7, 2], [devices[1], devices[2], devices[1]], { initializer: onesInitializer() });
    expect(parts.map(({ shape, node }) => [node.name, shape])).toEqual([
      ['table/part_0', [3, 2]],
      ['table/part_1', [2, 2]],
      ['table/part_2', [2, 2]],
    ]);
    const [ids, targets] = [placeholder(g, 'int32', [null]), placeholder(g, 'float32', [null, 1])];
    const rows = embeddingLookup(g, parts, ids, { partitionStrategy });
    const train = new GradientDescentOptimizer(1).minimize(g, sum(g, mul(g, rows, targets)));
    const square2 = embeddingLookup(g, parts, placeholder(g, 'int32', [2, 2], { name: 'square' }), { partitionStrategy });
    const init = globalVariablesInitializer(g);
    const session = sessionOf(g);
    await session.run([], [init]);
    const all = [5, 0, 6, 1, 2, 3, 4];
    const feeds = [
      [ids, ints(...all, 5)],
      [targets, { ...floats(...all.map((id) => -id), -100), shape: [8, 1] }],
    ] as const;
    await session.run(feeds, [train]);
    const [value] = await session.run([[ids, ints(0, 1, 2, 3, 4, 5, 6)]], [rows]);
    const wanted = [1, 2, 3, 4, 5, 106, 7];
    expect(numbers(value)).toEqual(wanted.flatMap((each) => [each, each]));
    const [again] = await session.run([['square:0', { ...ints(6, 5, 0, 0), shape: [2, 2] }]], [square2]);
    expect([again.shape, numbers(again)]).toEqual([
      [2, 2, 2],
      [7, 7, 106, 106, 1, 1, 1, 1],
    ]);
    await expect(session.run([[ids, ints(7)]], [rows])).rejects.toThrow('id 7 at 0 is outside a table of 7 rows');
  });

  it.each([
    ['sum', undefined, [5, 7, 0, 0, 6, 8]],
    ['mean', undefined, [2.5, 3.5, 0, 0, 6, 8]],
    ['sqrtn', undefined, [5 / Math.SQRT2, 7 / Math.SQRT2, 0, 0, 6, 8]],
    ['mean', [1, 3, 2], [3.75, 4.75, 0, 0, 6, 8]],
  ] as const)('combine by %s, with weights %o', async (combiner, weights, wanted) => {
    const g = new GraphBuilder();
    const [ids, segments] = [placeholder(g, 'int32', [null]), placeholder(g, 'int32', [null])];
    const table = placeholder(g, 'float32', [3, 2]);
    const given = weights === undefined ? undefined : placeholder(g, 'float32', [null]);
    const combined = embeddingLookupSparse(g, table, { ids, segments, rows: 3, ...(given && { weights: given }) }, { combiner });
    const session = sessionOf(g);
    const rows = { ...floats(0, 1, 5, 6, 6, 8), shape: [3, 2] } as Value;
    const feeds = [
      [table, rows],
      [ids, ints(0, 1, 2)],
      [segments, ints(0, 0, 2)],
    ] as [Output, Value][];
    if (given !== undefined) feeds.push([given, floats(...(weights ?? []))]);
    const [value] = await session.run(feeds, [combined]);
    expect(value.shape).toEqual([3, 2]);
    numbers(value).forEach((each, k) => expect(each, String(k)).toBeCloseTo(wanted[k], 5));
  });

  it('give the gradient of a combination to the rows', async () => {
    const g = new GraphBuilder();
    const parts = getPartitionedVariable(g, 'table', [4, 1], [devices[1], devices[2]], { initializer: onesInitializer() });
    const [ids, segments, rows] = [placeholder(g, 'int32', [null]), placeholder(g, 'int32', [null]), placeholder(g, 'int32', [])];
    const combined = embeddingLookupSparse(g, parts, { ids, segments, rows });
    const train = new GradientDescentOptimizer(1).minimize(g, sum(g, combined));
    const init = globalVariablesInitializer(g);
    const session = sessionOf(g);
    await session.run([], [init]);
    const scalar = { dtype: 'int32', shape: [], data: Int32Array.of(2) };
    const feeds = [
      [ids, ints(3, 1, 3, 0)],
      [segments, ints(0, 0, 0, 1)],
      [rows, scalar],
    ] as [Output, Value][];
    await session.run(feeds, [train]);
    const [even, odd] = await session.run([], parts);
    expect(numbers(even)).toEqual([0, 1]);
    expect(numbers(odd).map((each) => each.toFixed(4))).toEqual(['0.6667', '0.3333']);
  });
});

interface Trained {
  readonly session: Session;
  readonly saver: Saver;
  readonly step: (...keys: (number | bigint)[]) => Promise<void>;
  readonly read: (...keys: (number | bigint)[]) => Promise<number[]>;
  readonly keys: () => Promise<number[]>;
  readonly init: () => Promise<unknown>;
  readonly evict: (step: number) => Promise<unknown>;
}

/** A hash table whose rows of 2 are trained by ½ Σ x². */
function trained(options: EmbeddingVariableOptions, optimizer: Optimizer, parts = 1): Trained {
  const g = new GraphBuilder();
  const initializer = randomUniformInitializer({ seed: 5, minval: 1, maxval: 2 });
  const tables = Array.from({ length: parts }, (_, k) =>
    getEmbeddingVariable(g, `table_${k}`, 2, { initializer, defaultValueDim: 16, device: devices[1 + k], ...options }),
  );
  const ids = placeholder(g, 'int64', [null]);
  const step = createGlobalStep(g);
  const rows = embeddingLookup(g, tables, ids);
  const train = optimizer.minimize(g, sum(g, square(g, rows)), { globalStep: step });
  const evictions = tables.map((table) => evictEmbeddings(g, table, step));
  const exported = tables.map((table) => exportEmbeddings(g, table).keys);
  const init = globalVariablesInitializer(g);
  const saver = new Saver(g);
  const session = sessionOf(g);
  return {
    session,
    saver,
    init: () => session.run([], [init]),
    step: async (...keys) => void (await session.run([[ids, longs(...keys)]], [train])),
    read: async (...keys) => numbers((await session.run([[ids, longs(...keys)]], [rows]))[0]),
    keys: async () => (await session.run([], exported)).flatMap((each) => numbers(each)).sort((a, b) => a - b),
    evict: (at) => session.run([[step, { dtype: 'int64', shape: [], data: BigInt64Array.of(BigInt(at)) }]], evictions),
  };
}

describe('hash tables', () => {
  it('grow by the keys that updates name, of all 64 bits, on several devices', async () => {
    const { init, step, read, keys, session } = trained({}, new GradientDescentOptimizer(0.25), 2);
    await expect(read(1)).rejects.toThrow('has no value yet');
    await init();
    const huge = 2n ** 62n + 3n;
    const first = await read(1, huge, 17, -4n);
    expect(first.every((each) => each >= 1 && each < 2)).toBe(true);
    expect(first.slice(0, 2)).toEqual(first.slice(4, 6));
    expect(await keys()).toEqual([]);
    await step(1, huge, 1);
    await step(...Array.from({ length: 40 }, (_, k) => 100 + k));
    expect((await keys()).length).toBe(42);
    const after = await read(1, huge, 17, -4n);
    // ½ of itself is taken off for each time that the key occurs.
    expect(after).toEqual([0, 0, first[2] / 2, first[3] / 2, ...first.slice(4)]);
    await session.run([], ['table_0/initializer/InitializeKvVariable']);
    expect(await keys()).toHaveLength(42 - 20);
  });

  it('get rows after as many updates as filterFreq says', async () => {
    const { init, step, read, keys } = trained({ filterFreq: 3 }, new GradientDescentOptimizer(0.25));
    await init();
    await step(5);
    expect(await read(5)).toEqual([0, 0]);
    await step(5, 6);
    expect(await keys()).toEqual([]);
    await step(5);
    expect(await keys()).toEqual([5]);
    expect((await read(5)).every((each) => each >= 1)).toBe(true);
  });

  it('lose rows that are old', async () => {
    const { init, step, keys, read, evict } = trained({ stepsToLive: 10 }, new AdagradOptimizer(0.1));
    await init();
    await step(1, 2, 3);
    await evict(1);
    await step(2);
    await evict(8);
    expect(await keys()).toEqual([1, 2, 3]);
    const kept = await read(2);
    await evict(12);
    expect(await keys()).toEqual([2]);
    expect(await read(2)).toEqual(kept);
    await step(9);
    await evict(19);
    expect(await keys()).toEqual([9]);
  });

  it.each<[string, () => Optimizer]>([
    ['Adagrad', () => new AdagradOptimizer(0.1)],
    ['Adam', () => new AdamOptimizer(0.1)],
  ])('are saved and restored with the states of %s, and go on with the same bits', async (_, make) => {
    const folder = mkdtempSync(join(tmpdir(), 'embedding-'));
    try {
      const path = join(folder, 'saved');
      const [one, other] = [trained({ filterFreq: 2 }, make(), 2), trained({ filterFreq: 2 }, make(), 2)];
      await one.init();
      const huge = 2n ** 60n;
      for (const keys of [
        [1, 2, 1, 2],
        [1, 7],
        [huge, huge, 3],
      ])
        await one.step(...keys);
      await one.saver.save(one.session, path);
      await other.saver.restore(other.session, path);
      expect(await other.keys()).toEqual(await one.keys());
      const reads: number[][] = [];
      for (const { step, read } of [one, other]) {
        await step(1, 7, 2, 3);
        await step(huge, 7, 4, 4);
        reads.push(await read(1, 2, 3, 4, 7, huge, 100));
      }
      expect(reads[1]).toEqual(reads[0]);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });

  it('are trained by several lookups together, and refused by other operations', async () => {
    const g = new GraphBuilder();
    const table = getEmbeddingVariable(g, 'table', 2, { initializer: onesInitializer() });
    const ids = placeholder(g, 'int64', [null]);
    const pair = placeholder(g, 'int64', [1, 2]);
    const loss = add(g, sum(g, embeddingLookup(g, table, ids)), sum(g, embeddingLookup(g, table, pair)));
    const train = new GradientDescentOptimizer(1).minimize(g, loss);
    expect(() => identity(g, table)).toThrow('input input is a hash table, of which embeddingLookup gives rows');
    expect(() => gather(g, table, ids)).toThrow('hash table');
    expect(() => assign(g, table, table)).toThrow('hash table');
    expect(() => exportEmbeddings(g, ids)).toThrow('must be a variable');
    const rows = embeddingLookup(g, table, ids);
    const init = globalVariablesInitializer(g);
    const session = sessionOf(g);
    await session.run([], [init]);
    const huge = 2n ** 60n;
    await session.run(
      [
        [ids, longs(huge, 2)],
        [pair, { ...longs(huge, 3), shape: [1, 2] }],
      ],
      [train],
    );
    const [value] = await session.run([[ids, longs(huge, 2, 3, 4)]], [rows]);
    expect(numbers(value)).toEqual([-1, -1, 0, 0, 0, 0, 1, 1]);
  });
});
