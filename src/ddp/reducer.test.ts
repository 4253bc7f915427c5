import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { VirtualClock } from '../base/clock.ts';
import { seededRandom } from '../base/random.ts';
import type { TypedArray } from '../memory/dtype.ts';
import type { ParameterSpec } from './buckets.ts';
import { Reducer } from './reducer.ts';
import type { ReducerOptions } from './reducer-options.ts';
import { LocalWorld, onEveryRank } from './testing/local-world.ts';

const floats = (...values: number[]): Float32Array => Float32Array.from(values);
const spec = (name: string, count: number): ParameterSpec => ({ name, shape: [count], dtype: 'float32' });
const failure = (code: string, message: RegExp): Error =>
  expect.objectContaining({ code, message: expect.stringMatching(message) as string }) as Error;

/** A world with one reducer per rank. Buckets hold one parameter each unless `options` say otherwise. */
function setUp(
  size: number,
  parameters: readonly ParameterSpec[],
  options: ReducerOptions = {},
): { world: LocalWorld; reducers: Reducer[] } {
  const world = new LocalWorld(size);
  const reducers = world.groups.map((group) => new Reducer(group, parameters, { firstBucketBytes: 4, bucketBytes: 4, ...options }));
  return { world, reducers };
}

describe('averaging', () => {
  test('every rank ends with the mean', async () => {
    const { reducers } = setUp(2, [spec('a', 2), spec('b', 1)]);
    const gradients = [
      [floats(1, 2), floats(3)],
      [floats(5, 8), floats(-3)],
    ];
    const results = await Promise.all(reducers.map((reducer, rank) => reducer.average(gradients[rank])));
    expect(gradients[0]).toEqual([floats(3, 5), floats(0)]);
    expect(gradients[1]).toEqual(gradients[0]);
    expect(results).toEqual([{ weight: 2 }, { weight: 2 }]);
  });

  test('any parameters, bucket sizes, arrival orders and steps: the mean, and the same order of collectives', async () => {
    const arbitrary = fc.record({
      counts: fc.array(fc.nat(20), { maxLength: 8 }),
      size: fc.integer({ min: 1, max: 4 }),
      firstBucketBytes: fc.integer({ min: 1, max: 200 }),
      bucketBytes: fc.integer({ min: 1, max: 400 }),
      seed: fc.nat(0xffff),
    });
    await fc.assert(
      fc.asyncProperty(arbitrary, async ({ counts, size, firstBucketBytes, bucketBytes, seed }) => {
        const parameters = counts.map((count, i) => spec(`p${i}`, count));
        const { world, reducers } = setUp(size, parameters, { firstBucketBytes, bucketBytes });
        const random = seededRandom(seed);
        for (let step = 0; step < 2; step++) {
          // Integers: sums are exact, so is the mean for the powers of two and correctly rounded for three.
          const gradients = reducers.map(() => counts.map((count) => Float32Array.from({ length: count }, () => random.integer(64))));
          for (const [rank, reducer] of reducers.entries()) {
            const order = counts.map((_, i) => i);
            order.sort(() => random.next() - 0.5);
            for (const index of order) reducer.gradientReady(index, gradients[rank][index]);
          }
          await Promise.all(reducers.map((reducer) => reducer.finish()));
          for (const [index, count] of counts.entries()) {
            const mean = Float32Array.from({ length: count }, (_, i) => gradients.reduce((sum, own) => sum + own[index][i], 0) / size);
            for (const reducer of reducers) expect(reducer.gradient(index)).toEqual(mean);
          }
        }
        const buckets = reducers[0].buckets.length;
        const names = world.log.map((contract) => contract.split(' ')[1]);
        expect(names).toEqual([0, 1].flatMap(() => Array.from({ length: buckets }, (_, i) => `ddp/bucket-${i}`)));
      }),
    );
  });

  test('a full bucket starts before the backward pass ends, but never before those ahead of it', () => {
    const { world, reducers } = setUp(2, [spec('a', 1), spec('b', 1), spec('c', 1)]);
    const ready = (index: number): void => reducers.forEach((reducer) => reducer.gradientReady(index, floats(1)));
    ready(1);
    expect(world.log).toEqual([]);
    ready(2);
    expect(world.log).toEqual(['all-reduce ddp/bucket-0 avg float32[1]', 'all-reduce ddp/bucket-1 avg float32[1]']);
    ready(0);
    expect(world.log).toHaveLength(3);
  });

  test('finish waits for what is in flight; finishSync too', async () => {
    const { world, reducers } = setUp(2, [spec('a', 1)]);
    world.hold();
    for (const [rank, reducer] of reducers.entries()) reducer.gradientReady(0, floats(rank));
    let finished = false;
    const all = Promise.all(reducers.map((reducer) => reducer.finish())).then(() => (finished = true));
    await new Promise((resolve) => setImmediate(resolve));
    expect(finished).toBe(false);
    world.resume();
    await all;
    for (const reducer of reducers) reducer.gradientReady(0, floats(4));
    expect(reducers.map((reducer) => reducer.finishSync())).toEqual([{ weight: 2 }, { weight: 2 }]);
    expect(reducers[0].gradient(0)).toEqual(floats(4));
  });

  test('bucket sizes come from the options, else from the settings', () => {
    const [group] = new LocalWorld(1).groups;
    const parameters = [spec('a', 16), spec('b', 16), spec('c', 16)];
    const sizes = (options: ReducerOptions): number[] => new Reducer(group, parameters, options).buckets.map(({ bytes }) => bytes);
    const environment = { SHOAL_FIRST_BUCKET_BYTES: '64', SHOAL_BUCKET_BYTES: '128' };
    expect(sizes({ environment })).toEqual([64, 128]);
    expect(sizes({ environment, bucketBytes: 64 })).toEqual([64, 64, 64]);
    expect(sizes({ environment: {} })).toEqual([192]);
  });

  test('float64 keeps its precision', async () => {
    const { reducers } = setUp(2, [{ name: 'a', shape: [], dtype: 'float64' }]);
    const gradients = [[Float64Array.of(1 / 3)], [Float64Array.of(2 / 3)]];
    await Promise.all(reducers.map((reducer, rank) => reducer.average(gradients[rank])));
    expect(gradients[0][0][0]).toBe((1 / 3 + 2 / 3) / 2);
  });
});

describe('accumulation', () => {
  test('micro-batches in noSync add up and do not communicate', async () => {
    const { world, reducers } = setUp(2, [spec('a', 1), spec('b', 1)]);
    for (const [rank, reducer] of reducers.entries()) {
      const returned = reducer.noSync(() => {
        for (const value of [1, 10]) {
          reducer.gradientReady(1, floats(value * (rank + 1)));
          reducer.gradientReady(0, floats(-value));
        }
        return 'result';
      });
      expect(returned).toBe('result');
    }
    expect(world.log).toEqual([]);
    for (const reducer of reducers) {
      reducer.gradientReady(1, floats(100));
      reducer.gradientReady(0, floats(-100));
    }
    await Promise.all(reducers.map((reducer) => reducer.finish()));
    expect(reducers.map((reducer) => [reducer.gradient(0)[0], reducer.gradient(1)[0]])).toEqual([
      [-111, 116.5],
      [-111, 116.5],
    ]);
    // Nothing is left for the next step.
    await Promise.all(reducers.map((reducer) => reducer.average([floats(1), floats(2)])));
    expect([reducers[0].gradient(0)[0], reducers[0].gradient(1)[0]]).toEqual([1, 2]);
  });

  test('noSync lasts until an asynchronous body ends, also when it fails', async () => {
    const { world, reducers } = setUp(1, [spec('a', 1)]);
    const [reducer] = reducers;
    const body = reducer.noSync(async () => {
      await Promise.resolve();
      reducer.gradientReady(0, floats(1));
      throw new Error('batch failed');
    });
    await expect(body).rejects.toThrow('batch failed');
    expect(world.log).toEqual([]);
    expect(() => reducer.noSync(() => reducer.noSync(() => 0))).toThrow(failure('usage', /inside noSync/));
    expect(() => reducer.noSync(() => reducer.finishSync())).toThrow(failure('usage', /inside noSync/));
    await reducer.average([floats(2)]);
    expect(reducer.gradient(0)).toEqual(floats(3));
  });

  test('16-bit floats do not add up', () => {
    const { reducers } = setUp(1, [{ name: 'half', shape: [1], dtype: 'float16' }]);
    const micro = (): void => {
      reducers[0].gradientReady(0, Uint16Array.of(0x3c00));
      reducers[0].gradientReady(0, Uint16Array.of(0x3c00));
    };
    expect(() => reducers[0].noSync(micro)).toThrow(failure('unsupported', /'half' is float16/));
  });
});

describe('missing gradients', () => {
  test('are named, and can still be given', async () => {
    const { reducers } = setUp(1, [spec('a', 1), spec('b', 1), spec('c', 1)]);
    reducers[0].gradientReady(1, floats(1));
    await expect(reducers[0].finish()).rejects.toEqual(failure('usage', /no gradient for 'a', 'c'; .*findUnused/));
    reducers[0].gradientReady(0, floats(1));
    reducers[0].gradientReady(2, floats(1));
    await reducers[0].finish();
  });

  test('findUnused: count as zeros on this rank', async () => {
    const { reducers } = setUp(2, [spec('a', 1), spec('b', 1)], { findUnused: true });
    for (let step = 0; step < 2; step++) {
      reducers[0].gradientReady(0, floats(8));
      reducers[1].gradientReady(1, floats(6));
      await Promise.all(reducers.map((reducer) => reducer.finish()));
      expect([reducers[0].gradient(0)[0], reducers[0].gradient(1)[0]]).toEqual([4, 3]);
    }
  });
});

describe("weighting 'samples'", () => {
  const weighted: ReducerOptions = { weighting: 'samples' };

  test('the mean over all samples, whatever the ranks hold', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.array(fc.integer({ min: -9, max: 9 }), { maxLength: 6 }), { minLength: 1, maxLength: 5 }),
        async (samples) => {
          const { reducers } = setUp(samples.length, [spec('a', 1)], weighted);
          for (const [rank, reducer] of reducers.entries()) {
            const own = samples[rank];
            reducer.begin({ samples: own.length });
            if (own.length > 0) reducer.gradientReady(0, floats(own.reduce((a, b) => a + b, 0) / own.length));
          }
          const results = await Promise.all(reducers.map((reducer) => reducer.finish()));
          const all = samples.flat();
          const mean = all.length === 0 ? 0 : all.reduce((a, b) => a + b, 0) / all.length;
          for (const reducer of reducers) expect(reducer.gradient(0)[0]).toBeCloseTo(mean, 5);
          expect(new Set(reducers.map((reducer) => reducer.gradient(0)[0])).size).toBe(1);
          expect(results).toEqual(samples.map(() => ({ weight: all.length })));
        },
      ),
    );
  });

  test('micro-batches count by their samples too', async () => {
    const { reducers } = setUp(2, [spec('a', 1)], weighted);
    for (const [rank, reducer] of reducers.entries()) {
      reducer.noSync(() => {
        reducer.begin({ samples: 1 });
        reducer.gradientReady(0, floats(rank));
      });
      reducer.begin({ samples: 3 });
      reducer.gradientReady(0, floats(4));
    }
    await Promise.all(reducers.map((reducer) => reducer.finish()));
    expect(reducers[0].gradient(0)[0]).toBe((0 + 1 + 6 * 4) / 8);
  });

  test('a rank that has run out goes on with zero samples; weight 0 says that all have', async () => {
    const { world, reducers } = setUp(2, [spec('a', 1)], weighted);
    const batches = [1, 3];
    const steps = await onEveryRank(world, async ({ rank }) => {
      const reducer = reducers[rank];
      const seen: number[] = [];
      for (let step = 0; ; step++) {
        const samples = step < batches[rank] ? 2 : 0;
        reducer.begin({ samples });
        if (samples > 0) reducer.gradientReady(0, floats(step + 1));
        const { weight } = await reducer.finish();
        if (weight === 0) return seen;
        seen.push(Number(reducer.gradient(0)[0]));
      }
    });
    expect(steps).toEqual([
      [1, 2, 3],
      [1, 2, 3],
    ]);
  });

  test('misuse is refused', async () => {
    const { reducers } = setUp(1, [spec('a', 1)], weighted);
    const [reducer] = reducers;
    expect(() => reducer.gradientReady(0, floats(1))).toThrow(failure('usage', /before begin/));
    await expect(reducer.finish()).rejects.toEqual(failure('usage', /without begin/));
    expect(() => reducer.begin({ samples: 1.5 })).toThrow(failure('usage', /samples is 1\.5/));
    reducer.begin({ samples: 0 });
    expect(() => reducer.gradientReady(0, floats(1))).toThrow(failure('usage', /after begin\(\{ samples: 0 \}\)/));
    expect(() => reducer.begin({ samples: 2 })).toThrow(failure('usage', /twice/));
    expect(() => setUp(1, [spec('a', 1)]).reducers[0].begin({ samples: 1 })).toThrow(failure('usage', /needs weighting/));
    expect(() => setUp(1, [{ name: 'h', shape: [1], dtype: 'bfloat16' }], weighted)).toThrow(failure('unsupported', /'h' is bfloat16/));
  });

  test('a model without parameters still counts samples', async () => {
    const { reducers } = setUp(2, [], weighted);
    for (const reducer of reducers) reducer.begin({ samples: 5 });
    expect(await Promise.all(reducers.map((reducer) => reducer.finish()))).toEqual([{ weight: 10 }, { weight: 10 }]);
  });
});

describe('replicas', () => {
  test("start as rank 0's", async () => {
    const { world, reducers } = setUp(3, [spec('a', 2), spec('b', 3)], { bucketBytes: 1000, firstBucketBytes: 1000 });
    const values = world.groups.map(({ rank }) => [floats(rank, 1), floats(2, 3, rank)]);
    await onEveryRank(world, ({ rank }) => reducers[rank].broadcastParameters(values[rank]));
    for (const own of values) expect(own).toEqual([floats(0, 1), floats(2, 3, 0)]);
    await onEveryRank(world, ({ rank }) => reducers[rank].average(values[rank]));
    expect(values[2]).toEqual(values[0]);
  });

  test.each<[string, (rank: number) => ParameterSpec[], (rank: number) => ReducerOptions, RegExp]>([
    [
      'name',
      (rank) => [spec('a', 1), spec(rank === 2 ? 'c' : 'b', 1)],
      () => ({}),
      /parameter 1 is "c" float32\[1\] on rank 2 but "b" float32\[1\] on rank 0; give all ranks the same$/,
    ],
    [
      'shape',
      (rank) => [spec('a', rank === 1 ? 2 : 1)],
      () => ({}),
      /parameter 0 is "a" float32\[2\] on rank 1 but "a" float32\[1\] on rank 0; give all ranks the same$/,
    ],
    [
      'dtype',
      (rank) => [{ name: 'a', shape: [1], dtype: rank === 0 ? 'float64' : 'float32' }],
      () => ({}),
      /"a" float32\[1\] on rank 1 .*; .* on rank 2/,
    ],
    ['count', (rank) => (rank === 1 ? [] : [spec('a', 1)]), () => ({}), /parameter 0 is missing on rank 1/],
    ['settings', () => [spec('a', 1)], (rank) => ({ bucketBytes: 8 + rank }), /settings are bucketBytes=9 .* on rank 1 but bucketBytes=8/],
  ])('that register a different %s are told on every rank', async (_what, parameters, options, message) => {
    const world = new LocalWorld(3);
    const outcomes = await Promise.allSettled(
      world.groups.map((group) => {
        const own = parameters(group.rank);
        const arrays: TypedArray[] = own.map(({ dtype, shape }) => new (dtype === 'float64' ? Float64Array : Float32Array)(shape[0]));
        return new Reducer(group, own, options(group.rank)).broadcastParameters(arrays);
      }),
    );
    expect(outcomes).toEqual(outcomes.map(() => ({ status: 'rejected', reason: failure('mismatch', message) })));
  });

  test('that differ are found, with the ranks and the parameter', async () => {
    const { world, reducers } = setUp(3, [spec('a', 2), spec('b', 1)]);
    const values = world.groups.map(() => [floats(1, 2), floats(3)]);
    const sums = await onEveryRank(world, ({ rank }) => reducers[rank].verifyReplicas(values[rank]));
    expect(new Set(sums).size).toBe(1);
    // One bit: −0 equals 0, but its bits do not.
    values[0][1][0] = 0;
    values[1][1][0] = -0;
    values[2][1][0] = 0;
    const outcomes = await Promise.allSettled(world.groups.map(({ rank }) => reducers[rank].verifyReplicas(values[rank])));
    const message = /replicas differ, first in 'b': rank 1 has [0-9a-f]{16}; ranks 0, 2 have [0-9a-f]{16};/;
    expect(outcomes).toEqual(outcomes.map(() => ({ status: 'rejected', reason: failure('mismatch', message) })));
  });
});

describe('failures', () => {
  test('a lost rank fails the step and every later one with the same error', async () => {
    const { world, reducers } = setUp(2, [spec('a', 1), spec('b', 1)]);
    reducers[0].gradientReady(1, floats(1));
    world.lose(1);
    reducers[0].gradientReady(0, floats(1));
    await expect(reducers[0].finish()).rejects.toEqual(failure('peer-lost', /rank 1 died/));
    expect(() => reducers[0].gradientReady(0, floats(1))).toThrow(failure('peer-lost', /rank 1 died/));
    expect(() => reducers[0].finishSync()).toThrow(failure('peer-lost', /rank 1 died/));
  });

  test('misuse is refused and leaves the step usable', async () => {
    const { reducers } = setUp(1, [{ name: 'w', shape: [2, 3], dtype: 'float32' }]);
    const [reducer] = reducers;
    expect(() => reducer.gradientReady(0, floats(1))).toThrow(
      failure('usage', /'w' is float32\[2, 3\], a Float32Array of 6 elements; got a Float32Array of 1/),
    );
    expect(() => reducer.gradientReady(0, new Float64Array(6))).toThrow(failure('usage', /got a Float64Array of 6/));
    expect(() => reducer.gradientReady(0, new Int32Array(6))).toThrow(failure('usage', /got a Int32Array of 6/));
    expect(() => reducer.gradientReady(1, floats(1))).toThrow(failure('usage', /no parameter 1; 1 are/));
    await expect(reducer.average([])).rejects.toEqual(failure('usage', /0 arrays for 1 parameters/));
    reducer.gradientReady(0, new Float32Array(6));
    expect(() => reducer.gradientReady(0, new Float32Array(6))).toThrow(failure('usage', /'w' got a second gradient/));
    expect(() => reducer.noSync(() => 0)).toThrow(failure('usage', /middle of a step/));
    await reducer.finish();
  });

  test('close gives the buckets back and is final', () => {
    const { world, reducers } = setUp(1, [spec('a', 1), spec('b', 1)]);
    expect(world.groups[0].tensors).toBe(2);
    reducers[0].close();
    reducers[0].close();
    expect(world.groups[0].tensors).toBe(0);
    expect(() => reducers[0].gradientReady(0, floats(1))).toThrow(failure('closed', /closed/));
  });
});

test('stats: bytes, buckets, and the time that communication adds', async () => {
  const clock = new VirtualClock();
  const { world, reducers } = setUp(2, [spec('a', 4), spec('b', 2)], { clock });
  world.hold();
  for (const reducer of reducers) reducer.gradientReady(1, floats(1, 2));
  clock.advance(30);
  for (const reducer of reducers) reducer.gradientReady(0, floats(1, 2, 3, 4));
  const all = Promise.all(reducers.map((reducer) => reducer.finish()));
  clock.advance(5);
  world.resume();
  await all;
  expect(reducers[0].stats).toEqual({ steps: 1, buckets: 2, bytes: 24, exposedMs: 5, spanMs: 35 });
});
