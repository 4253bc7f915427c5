/** Communication hooks on real groups, scheduled and not: a small network trains with each, and its loss is compared. */
import { describe, expect, it } from 'vitest';
import { seededRandom } from '../../base/random.ts';
import type { ProcessGroup } from '../../group/caller/types.ts';
import { startRanks } from '../../group/testing/in-process-world.ts';
import type { ParameterSpec } from '../buckets.ts';
import { Reducer } from '../reducer.ts';
import {
  allReduceHook,
  bf16CompressHook,
  fp16CompressHook,
  HalfPrecisionState,
  powerSGDHook,
  PowerSGDState,
  type PowerSGDOptions,
} from './built-in.ts';
import type { CommHook, GradBucket } from './comm-hook.ts';

const [inputs, hidden, outputs, samples] = [12, 24, 6, 24];
const specs: readonly ParameterSpec[] = [
  { name: 'w1', shape: [inputs, hidden], dtype: 'float32' },
  { name: 'b1', shape: [hidden], dtype: 'float32' },
  { name: 'w2', shape: [hidden, outputs], dtype: 'float32' },
];

/** The network tanh(x·w1 + b1)·w2, and the gradients of its mean squared distance from a teacher's answers. */
class Network {
  readonly parameters: Float32Array[];
  readonly #x: Float32Array;
  readonly #y: Float32Array;

  constructor(rank: number) {
    const random = seededRandom(11);
    const draw = (count: number, scale: number): Float32Array => Float32Array.from({ length: count }, () => scale * (random.next() - 0.5));
    this.parameters = [draw(inputs * hidden, 1), new Float32Array(hidden), draw(hidden * outputs, 1)];
    const teacher = [draw(inputs * hidden, 2), draw(hidden, 1), draw(hidden * outputs, 2)];
    const own = seededRandom(100 + rank);
    this.#x = Float32Array.from({ length: samples * inputs }, () => own.next() - 0.5);
    this.#y = this.#forward(teacher).out;
  }

  #forward([w1, b1, w2]: readonly Float32Array[]): { activations: Float32Array; out: Float32Array } {
    const activations = new Float32Array(samples * hidden);
    const out = new Float32Array(samples * outputs);
    for (let s = 0; s < samples; s++) {
      for (let h = 0; h < hidden; h++) {
        let sum = b1[h];
        for (let i = 0; i < inputs; i++) sum += this.#x[s * inputs + i] * w1[i * hidden + h];
        activations[s * hidden + h] = Math.tanh(sum);
        for (let o = 0; o < outputs; o++) out[s * outputs + o] += activations[s * hidden + h] * w2[h * outputs + o];
      }
    }
    return { activations, out };
  }

  step(): { loss: number; gradients: Float32Array[] } {
    const [w1, b1, w2] = this.parameters;
    const { activations, out } = this.#forward(this.parameters);
    const gradients = [new Float32Array(w1.length), new Float32Array(b1.length), new Float32Array(w2.length)];
    let loss = 0;
    for (let s = 0; s < samples; s++) {
      const errors = Array.from({ length: outputs }, (_, o) => out[s * outputs + o] - this.#y[s * outputs + o]);
      loss += errors.reduce((sum, error) => sum + error * error, 0) / samples;
      for (let h = 0; h < hidden; h++) {
        const a = activations[s * hidden + h];
        let back = 0;
        for (let o = 0; o < outputs; o++) {
          const delta = (2 * errors[o]) / samples;
          gradients[2][h * outputs + o] += delta * a;
          back += delta * w2[h * outputs + o];
        }
        back *= 1 - a * a;
        gradients[1][h] += back;
        for (let i = 0; i < inputs; i++) gradients[0][i * hidden + h] += back * this.#x[s * inputs + i];
      }
    }
    return { loss, gradients };
  }
}

interface Trained {
  readonly first: number;
  readonly last: number;
  readonly parameters: readonly Float32Array[];
  /** Bytes given to all-reduces. */
  readonly bytes: number;
}

/** Trains a network on every rank. `register` gives a rank's reducer its hook. */
async function train(groups: readonly ProcessGroup[], register: (reducer: Reducer) => void, steps = 120): Promise<Trained> {
  const results = await Promise.all(
    groups.map(async (group) => {
      const network = new Network(group.rank);
      const reducer = new Reducer(group, specs, { firstBucketBytes: 600, bucketBytes: 1400 });
      register(reducer);
      const losses: number[] = [];
      for (let step = 0; step < steps; step++) {
        const { loss, gradients } = network.step();
        await reducer.average(gradients);
        for (const [index, parameter] of network.parameters.entries()) {
          for (let i = 0; i < parameter.length; i++) parameter[i] -= 0.1 * gradients[index][i];
        }
        const sum = new Float64Array([loss]);
        await group.allReduce(sum, { op: 'avg', name: 'loss' });
        losses.push(sum[0]);
      }
      await reducer.verifyReplicas(network.parameters);
      reducer.close();
      return { first: losses[0], last: losses[steps - 1], parameters: network.parameters, bytes: reducer.stats.bytes };
    }),
  );
  for (const result of results) expect(result.parameters).toEqual(results[0].parameters);
  return results[0];
}

const registering =
  <S>(state: S, hook: CommHook<S>) =>
  (reducer: Reducer): void =>
    reducer.registerCommHook(state, hook);

const power = (options: PowerSGDOptions) => (reducer: Reducer) =>
  reducer.registerCommHook(
    new PowerSGDState({ startIteration: 5, matrixApproximationRank: 2, minCompressionRate: 1, ...options }),
    powerSGDHook,
  );

describe.each(['plain', 'scheduled'] as const)('on a %s group', (kind) => {
  it('a model trains with every hook: replicas stay identical, and the loss is what the documentation says', async () => {
    await using world = await startRanks(3, { kind: 'network' });
    const groups =
      kind === 'plain' ? world.groups : await world.each((group) => group.scheduled({ creditBytes: 1000, partitionBytes: 400 }));
    const without = await train(groups, () => undefined);
    expect(without.last).toBeLessThan(without.first / 20);
    const mine: CommHook<{ calls: number }> = function* (state, bucket) {
      state.calls++;
      expect(bucket.parts().map(({ name }) => name)).toEqual(bucket.isLast() ? ['b1', 'w1'] : ['w2']);
      const buffer = bucket.buffer();
      yield bucket.allReduce(buffer, { op: 'sum' });
      for (let i = 0; i < buffer.length; i++) buffer[i] /= bucket.size;
    };
    const state = { calls: 0 };
    const plain = await train(groups, (reducer) => reducer.registerCommHook(undefined, allReduceHook));
    const user = await train(groups, (reducer) => reducer.registerCommHook(state, mine));
    const bf16 = await train(groups, (reducer) => reducer.registerCommHook(new HalfPrecisionState(), bf16CompressHook));
    const fp16 = await train(groups, (reducer) => reducer.registerCommHook(new HalfPrecisionState(), fp16CompressHook));
    const powerSGD = await train(groups, power({}));
    const forgetful = await train(groups, power({ useErrorFeedback: false }));
    // Plain averaging as a hook gives exactly the bits of no hook.
    expect(plain).toEqual(without);
    expect(user.last / without.last).toBeCloseTo(1, 3);
    expect(state.calls).toBeGreaterThan(3 * 120);
    expect([bf16.bytes, fp16.bytes]).toEqual([without.bytes / 2, without.bytes / 2]);
    expect(fp16.last / without.last).toBeCloseTo(1, 1);
    expect(bf16.last / without.last).toBeGreaterThan(0.8);
    expect(bf16.last / without.last).toBeLessThan(1.2);
    // Rank 2 approximates matrices of 12 × 24 and 24 × 6.
    expect(powerSGD.bytes).toBeLessThan(0.45 * without.bytes);
    expect(powerSGD.last).toBeLessThan(1.5 * without.last);
    // Error feedback adds the parts that were left out to later steps.
    expect(powerSGD.last).toBeLessThan(forgetful.last);
    if (process.env.SHOW_LOSSES) console.log({ without, plain, user, bf16, fp16, powerSGD, forgetful });
  });
});

describe('a hook', () => {
  it('of a rank as large as the matrix approximates nothing', async () => {
    await using world = await startRanks(2, { kind: 'network' });
    const without = await train(world.groups, () => undefined, 30);
    const exact = (reducer: Reducer): void =>
      reducer.registerCommHook(new PowerSGDState({ startIteration: 0, matrixApproximationRank: 6, minCompressionRate: 1 }), powerSGDHook);
    // Factors of rank 6 of the 24 × 6 matrix would be larger than it is, so it travels whole; the 12 × 24 matrix is approximated.
    const all = await train(world.groups, exact, 30);
    expect(all.last / without.last).toBeCloseTo(1, 1);
  });

  it.each([1, 2])('of rank %i goes on after steps without gradients, and takes in the smallest', async (matrixApproximationRank) => {
    await using world = await startRanks(2, { kind: 'network' });
    const averages = await world.each(async (group) => {
      const reducer = new Reducer(group, [{ name: 'w', shape: [8, 6], dtype: 'float32' }]);
      const options = { startIteration: 0, matrixApproximationRank, minCompressionRate: 1, useErrorFeedback: false };
      reducer.registerCommHook(new PowerSGDState(options), powerSGDHook);
      await reducer.average([new Float32Array(48)]);
      const seen: number[][] = [];
      // A gradient of rank 1 is approximated exactly.
      for (const scale of [1, 1e-9]) {
        for (let step = 0; step < 3; step++) {
          const gradient = Float32Array.from({ length: 48 }, (_, i) => scale * (group.rank + 1) * (1 + Math.floor(i / 6)) * (2 + (i % 6)));
          await reducer.average([gradient]);
          seen.push([gradient[0] / scale, gradient[47] / scale]);
        }
      }
      reducer.close();
      return seen;
    });
    for (const seen of averages)
      for (const [first, last] of seen) {
        expect(first).toBeCloseTo(1.5 * 2, 3);
        expect(last).toBeCloseTo(1.5 * 8 * 7, 3);
      }
  });

  it.each<[string, () => (reducer: Reducer) => void]>([
    ['PowerSGD', () => registering(new PowerSGDState({ startIteration: 0, minCompressionRate: 1 }), powerSGDHook)],
    ['16 bits', () => registering(new HalfPrecisionState(), bf16CompressHook)],
  ])('keeps apart the reducers that its state is given to, at once and one after the other: %s', async (_, make) => {
    await using world = await startRanks(2, { kind: 'network' });
    await world.each(async (group) => {
      const register = make();
      const start = (): Reducer => {
        const reducer = new Reducer(group, [{ name: 'w', shape: [8, 8], dtype: 'float32' }]);
        register(reducer);
        return reducer;
      };
      const step = async (reducer: Reducer, scale: number): Promise<void> => {
        const gradient = new Float32Array(64).fill(scale * (1 + 2 * group.rank));
        await reducer.average([gradient]);
        for (const value of gradient) expect(value).toBeCloseTo(2 * scale, 4);
      };
      const [first, second] = [start(), start()];
      for (const scale of [1, 2]) {
        await step(first, scale);
        await step(second, 8 * scale);
      }
      first.close();
      const third = start();
      await step(third, 4);
      for (const each of [second, third]) each.close();
    });
  });

  it('that fails fails the step where it is waited for, and the reducer for good', async () => {
    await using world = await startRanks(2, { kind: 'network' });
    const broken: CommHook<undefined> = function* (_, bucket) {
      yield bucket.allReduce(bucket.buffer());
      throw new Error('the decoder is broken');
    };
    const [reducer] = world.groups.map((group) => {
      const each = new Reducer(group, [{ name: 'w', shape: [2], dtype: 'float32' }]);
      each.registerCommHook(undefined, broken);
      each.gradientReady(0, new Float32Array([1, 2]));
      return each;
    });
    await expect(reducer.finish()).rejects.toMatchObject({ message: expect.stringContaining('the decoder is broken') as string });
    expect(() => reducer.gradientReady(0, new Float32Array(2))).toThrow('the decoder is broken');
  });

  it.each<[string, string, (reducer: Reducer) => void]>([
    ['no function', 'usage', (reducer) => reducer.registerCommHook(undefined, 5 as never)],
    ['a second one', 'usage', (reducer) => [0, 1].forEach(() => reducer.registerCommHook(undefined, allReduceHook))],
    [
      'a function that is no generator',
      'usage',
      (reducer) => {
        reducer.registerCommHook(undefined, ((_: unknown, bucket: GradBucket) => bucket.allReduce(bucket.buffer())) as never);
        reducer.gradientReady(0, new Float32Array(2));
      },
    ],
    [
      'one after the first gradient',
      'usage',
      (reducer) => {
        reducer.gradientReady(0, new Float32Array(2));
        reducer.registerCommHook(undefined, allReduceHook);
      },
    ],
    ['a rank of zero', 'usage', () => void new PowerSGDState({ matrixApproximationRank: 0 })],
    ['a misspelt option', 'usage', () => void new PowerSGDState({ rank: 1 } as never)],
  ])('that is %s is refused', async (_, code, run) => {
    await using world = await startRanks(1);
    const reducer = new Reducer(world.groups[0], [{ name: 'w', shape: [2], dtype: 'float32' }]);
    expect(() => run(reducer)).toThrow(expect.objectContaining({ code }));
  });

  it('of other dtypes, or of gradients times samples, is refused', async () => {
    await using world = await startRanks(1);
    const wide = new Reducer(world.groups[0], [{ name: 'w', shape: [2], dtype: 'float64' }]);
    const weighted = new Reducer(world.groups[0], [{ name: 'w', shape: [2], dtype: 'float32' }], { weighting: 'samples' });
    for (const reducer of [wide, weighted])
      expect(() => reducer.registerCommHook(undefined, allReduceHook)).toThrow(expect.objectContaining({ code: 'unsupported' }));
  });
});
