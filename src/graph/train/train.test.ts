/** Optimisers against their formulas, learning rates against TensorFlow's, clipping, first values and random numbers. */
import * as tf from '@tensorflow/tfjs';
import { beforeAll, describe, expect, it } from 'vitest';
import { Session } from '../execute/session.ts';
import type { IndexedSlices } from '../gradients/gradients.ts';
import type { Floats } from '../gradients/rules.ts';
import { tensorflowKernels } from '../kernels/tensorflow.ts';
import { localKernels } from '../local-kernels.ts';
import { constant, placeholder } from '../ops/array.ts';
import { mul, square } from '../ops/math.ts';
import { dropout, randomNormal, randomUniform, truncatedNormal } from '../ops/random.ts';
import { sum } from '../ops/reduction.ts';
import { gather, variable } from '../ops/state.ts';
import { GraphBuilder } from '../structure/builder.ts';
import { elementsOf } from '../structure/elements.ts';
import type { Output } from '../structure/graph-node.ts';
import { clipByGlobalNorm, clipByNorm, globalNorm } from './clipping.ts';
import { cosineDecay, exponentialDecay, inverseTimeDecay, naturalExpDecay, piecewiseConstant, polynomialDecay } from './learning-rates.ts';
import {
  AdagradOptimizer,
  AdamOptimizer,
  FtrlOptimizer,
  GradientDescentOptimizer,
  MomentumOptimizer,
  type Optimizer,
} from './optimizers.ts';
import * as first from './variables.ts';

type F = Output<'float32'>;
const devices = ['/job:worker/task:0/device:CPU:0', '/job:ps/task:0/device:CPU:0'];

beforeAll(() => tf.setBackend('cpu'));

const sessionOf = (g: GraphBuilder): Session =>
  new Session(g.finish(), { devices, kernels: { ...localKernels(), ...tensorflowKernels(tf) } });
const floats = (g: GraphBuilder, shape: readonly number[], ...data: number[]): F => constant(g, { dtype: 'float32', shape, data });

async function numbers(session: Session, outputs: readonly Output[]): Promise<number[][]> {
  const values = await session.run([], outputs);
  return values.map((value) => Array.from(elementsOf(value) as ArrayLike<number>, Number));
}

/** Trains ½ Σ (x · factors)² of two elements. The gradient is x · factors². @returns the variable after each step. */
async function train(make: (g: GraphBuilder, step: Output<'int64'>) => Optimizer, isSparse: boolean): Promise<number[][]> {
  const g = new GraphBuilder();
  const step = first.createGlobalStep(g);
  const x = first.getVariable(g, 'x', [3, 2], { initializer: first.constantInitializer(0.5), device: devices[1] });
  const ids = constant(g, { dtype: 'int32', shape: [3], data: [0, 1, 2] });
  const rows = isSparse ? gather(g, x, ids, { colocateWith: x }) : x;
  const loss = mul(g, sum(g, square(g, mul(g, rows, floats(g, [2], 1, 2)))), floats(g, [], 0.5));
  const optimizer = make(g, step);
  const trained = optimizer.minimize(g, loss, { globalStep: step });
  expect(optimizer.getSlotNames().map((name) => optimizer.getSlot(x, name)?.node.name)).toEqual(
    optimizer.getSlotNames().map((name) => `x/${trained.name}/${name}`),
  );
  const init = first.globalVariablesInitializer(g);
  const session = sessionOf(g);
  await session.run([], [init]);
  const seen: number[][] = [];
  for (let k = 1; k <= 4; k++) {
    await session.run([], [trained]);
    const [value, count] = await numbers(session, [x, step]);
    expect(count).toEqual([k]);
    expect(value.slice(2)).toEqual([...value.slice(0, 2), ...value.slice(0, 2)]);
    seen.push(value.slice(0, 2));
  }
  session.close();
  return seen;
}

/** The same by numbers. @param update gives the new value; `state` is kept from step to step. */
function expected(update: (x: number, gradient: number, state: number[], step: number) => number): number[][] {
  const [x, states] = [[0.5, 0.5], [[], []] as number[][]];
  return Array.from({ length: 4 }, (_, step) => x.map((each, k) => (x[k] = update(each, each * [1, 4][k], states[k], step))));
}

const rules: readonly [string, (g: GraphBuilder, step: Output<'int64'>) => Optimizer, Parameters<typeof expected>[0]][] = [
  ['gradient descent', () => new GradientDescentOptimizer(0.1), (x, d) => x - 0.1 * d],
  [
    'gradient descent at a rate that falls',
    (g, step) => new GradientDescentOptimizer(exponentialDecay(g, 0.1, step, 1, 0.5)),
    (x, d, _, step) => x - 0.1 * 0.5 ** step * d,
  ],
  ['momentum', () => new MomentumOptimizer(0.1, 0.9), (x, d, s) => x - 0.1 * (s[0] = 0.9 * (s[0] ?? 0) + d)],
  [
    'momentum at a rate that falls',
    (g, step) => new MomentumOptimizer(inverseTimeDecay(g, 0.1, step, 1, 1), 0.9, { useNesterov: true }),
    (x, d, s, step) => x - (0.1 / (1 + step)) * (d + 0.9 * (s[0] = 0.9 * (s[0] ?? 0) + d)),
  ],
  [
    'Adagrad',
    () => new AdagradOptimizer(0.1, { initialAccumulatorValue: 0.2 }),
    (x, d, s) => x - (0.1 * d) / Math.sqrt((s[0] = (s[0] ?? 0.2) + d * d)),
  ],
  [
    'Adam',
    () => new AdamOptimizer(0.1, { beta1: 0.8, beta2: 0.9 }),
    (x, d, s, step) => {
      s[0] = 0.8 * (s[0] ?? 0) + 0.2 * d;
      s[1] = 0.9 * (s[1] ?? 0) + 0.1 * d * d;
      return x - ((0.1 * Math.sqrt(1 - 0.9 ** (step + 1))) / (1 - 0.8 ** (step + 1))) * (s[0] / (Math.sqrt(s[1]) + 1e-8));
    },
  ],
  [
    'FTRL',
    () => new FtrlOptimizer(0.1, { l1RegularizationStrength: 0.01, l2RegularizationStrength: 0.02 }),
    (x, d, s) => {
      const before = s[1] ?? 0.1;
      s[1] = before + d * d;
      s[0] = (s[0] ?? 0) + d - ((Math.sqrt(s[1]) - Math.sqrt(before)) / 0.1) * x;
      return Math.abs(s[0]) <= 0.01 ? 0 : (Math.sign(s[0]) * 0.01 - s[0]) / (Math.sqrt(s[1]) / 0.1 + 2 * 0.02);
    },
  ],
];

describe('optimisers', () => {
  it.each(rules.flatMap(([name, make, update]) => [false, true].map((isSparse) => ({ name, make, update, isSparse }))))(
    '$name, by rows: $isSparse',
    async ({ make, update, isSparse }) => {
      const wanted = expected(update);
      (await train(make, isSparse)).forEach((value, k) =>
        value.forEach((each, column) => expect(each, `step ${k}`).toBeCloseTo(wanted[k][column], 5)),
      );
    },
  );

  it('change gradients between the two halves, and leave alone what is not trainable', async () => {
    const g = new GraphBuilder();
    const [x, y] = ['x', 'y'].map((name) =>
      first.getVariable(g, name, [2], { initializer: first.onesInitializer(), trainable: name === 'x' }),
    );
    const optimizer = new GradientDescentOptimizer(1);
    const computed = optimizer.computeGradients(g, sum(g, mul(g, mul(g, x, y), floats(g, [2], 3, 4))));
    expect(computed.map(([, variable]) => variable)).toEqual([x]);
    const [[clipped], norm] = clipByGlobalNorm(g, [computed[0][0]], 1);
    const trained = optimizer.applyGradients(g, [[clipped, x]], { name: 'once' });
    const init = first.globalVariablesInitializer(g);
    const session = sessionOf(g);
    await session.run([], [init]);
    expect((await numbers(session, [norm]))[0][0]).toBeCloseTo(5, 5);
    await session.run([], ['once']);
    expect(trained.name).toBe('once');
    const [own, other] = await numbers(session, [x, y]);
    expect(own.map((each) => each.toFixed(4))).toEqual(['0.4000', '0.2000']);
    expect(other).toEqual([1, 1]);
  });

  it('refuse a loss that depends on no variable', () => {
    const g = new GraphBuilder();
    first.getVariable(g, 'x', [2]);
    const loss = sum(g, placeholder(g, 'float32', [2]));
    expect(() => new AdamOptimizer().minimize(g, loss)).toThrow('Adam: no variable has a gradient');
    expect(() => new GradientDescentOptimizer(-1)).toThrow('learningRate');
  });
});

describe('clipping', () => {
  it('cuts to a norm, and keeps what is shorter', async () => {
    const g = new GraphBuilder();
    const [a, b] = [floats(g, [2], 3, 0), floats(g, [1], 4)];
    const table = variable(g, 'float32', [9, 1]);
    const rows = {
      values: floats(g, [2, 1], 6, 8) as Floats,
      indices: constant(g, { dtype: 'int32', shape: [2], data: [1, 1] }),
      of: table,
    };
    const { IndexedSlices: Slices } = await import('../gradients/gradients.ts');
    const slices: IndexedSlices = new Slices(rows.values, rows.indices, rows.of);
    const [both] = clipByGlobalNorm(g, [a, undefined, b], 2.5);
    expect(both[1]).toBeUndefined();
    const outputs = [globalNorm(g, [a, undefined, b]), both[0]!, both[2]!, clipByNorm(g, a, 5), clipByNorm(g, slices, 5).values];
    const session = sessionOf(g);
    expect(await numbers(session, outputs)).toEqual([[5], [1.5, 0], [2], [3, 0], [3, 4]]);
  });
});

describe('learning rates', () => {
  const steps = [0, 1, 3, 4, 7, 10, 25];
  it.each<[string, (g: GraphBuilder, step: Output) => Output, (step: number) => number]>([
    ['exponential', (g, step) => exponentialDecay(g, 0.5, step, 4, 0.3), (step) => 0.5 * 0.3 ** (step / 4)],
    [
      'exponential in steps',
      (g, step) => exponentialDecay(g, floats(g, [], 0.5), step, 4, 0.3, { staircase: true }),
      (step) => 0.5 * 0.3 ** Math.floor(step / 4),
    ],
    ['natural', (g, step) => naturalExpDecay(g, 0.5, step, 4, 0.3), (step) => 0.5 * Math.exp((-0.3 * step) / 4)],
    ['inverse time', (g, step) => inverseTimeDecay(g, 0.5, step, 4, 0.3), (step) => 0.5 / (1 + (0.3 * step) / 4)],
    [
      'polynomial',
      (g, step) => polynomialDecay(g, 0.5, step, 10, { endLearningRate: 0.1, power: 2 }),
      (step) => 0.4 * (1 - Math.min(step, 10) / 10) ** 2 + 0.1,
    ],
    [
      'polynomial in cycles',
      (g, step) => polynomialDecay(g, 0.5, step, 4, { endLearningRate: 0.1, cycle: true }),
      (step) => 0.4 * (1 - step / (4 * Math.max(1, Math.ceil(step / 4)))) + 0.1,
    ],
    [
      'cosine',
      (g, step) => cosineDecay(g, 0.5, step, 10, { alpha: 0.2 }),
      (step) => 0.5 * (0.8 * 0.5 * (1 + Math.cos((Math.PI * Math.min(step, 10)) / 10)) + 0.2),
    ],
    [
      'piecewise',
      (g, step) => piecewiseConstant(g, step, [3, 7], [1, 0.5, 0.25]),
      (step) => [1, 0.5, 0.25][Number(step > 3) + Number(step > 7)],
    ],
  ])('%s', async (_, build, wanted) => {
    const g = new GraphBuilder();
    const rates = steps.map((step) => build(g, constant(g, { dtype: 'int64', shape: [], data: [BigInt(step)] })));
    (await numbers(sessionOf(g), rates)).forEach(([rate], k) => expect(rate, `step ${steps[k]}`).toBeCloseTo(wanted(steps[k]), 5));
  });

  it('refuses boundaries that do not rise', () => {
    const g = new GraphBuilder();
    const step = first.createGlobalStep(g);
    expect(() => piecewiseConstant(g, step, [3, 3], [1, 2, 3])).toThrow('3 values for the boundaries 3, 3');
    expect(() => piecewiseConstant(g, step, [3], [1])).toThrow('1 values');
  });
});

describe('random numbers', () => {
  it('are the same for a seed on every device and in every session, and go on from run to run', async () => {
    const runs = async (device: string): Promise<number[][]> => {
      const g = new GraphBuilder();
      const drawn = g.withDevice(device, () => [
        randomUniform(g, [5], { seed: 7 }),
        randomNormal(g, [5], { seed: 7, scale: 2, offset: 1 }),
        truncatedNormal(g, [5], { seed: 8, dtype: 'float64' }),
      ]);
      const session = sessionOf(g);
      return [...(await numbers(session, drawn)), ...(await numbers(session, drawn))];
    };
    const [one, other] = [await runs(devices[0]), await runs(devices[1])];
    expect(one).toEqual(other);
    expect(new Set(one.flat()).size).toBe(30);
  });

  it('have their distributions', async () => {
    const g = new GraphBuilder();
    const count = 20_000;
    const drawn = [
      randomUniform(g, [count], { seed: 1, offset: -1, scale: 4 }),
      randomNormal(g, [count], { seed: 2, offset: 1, scale: 2 }),
      truncatedNormal(g, [count], { seed: 3 }),
    ];
    const [uniform, normal, truncated] = await numbers(sessionOf(g), drawn);
    const mean = (all: number[]): number => all.reduce((total, each) => total + each, 0) / all.length;
    const deviation = (all: number[]): number => {
      const middle = mean(all);
      return Math.sqrt(mean(all.map((each) => (each - middle) ** 2)));
    };
    expect([mean(uniform), deviation(uniform)].map((each) => Number(each.toFixed(1)))).toEqual([1, 1.2]);
    expect(Math.min(...uniform)).toBeGreaterThanOrEqual(-1);
    expect(Math.max(...uniform)).toBeLessThan(3);
    expect(mean(normal)).toBeCloseTo(1, 1);
    expect(deviation(normal)).toBeCloseTo(2, 1);
    expect(deviation(truncated)).toBeCloseTo(0.88, 1);
    expect(Math.max(...truncated.map(Math.abs))).toBeLessThanOrEqual(2);
  });

  it('drop out a share of the elements, and the gradient goes where they stay', async () => {
    const g = new GraphBuilder();
    const x = first.getVariable(g, 'x', [1000], { initializer: first.onesInitializer() });
    const kept = dropout(g, x, 0.25, { seed: 3 });
    const [[gradient]] = new GradientDescentOptimizer(1).computeGradients(g, sum(g, kept));
    const init = first.globalVariablesInitializer(g);
    const session = sessionOf(g);
    await session.run([], [init]);
    const [once, slope] = await numbers(session, [kept, gradient as F]);
    expect(slope).toEqual(once);
    expect([...new Set(once)].sort((a, b) => a - b)).toEqual([0, Math.fround(4 / 3)]);
    expect(once.filter((each) => each === 0).length / 1000).toBeCloseTo(0.25, 1);
    expect((await numbers(session, [kept, gradient as F]))[0]).not.toEqual(once);
    expect(() => dropout(g, x, 1)).toThrow('rate');
  });

  it('make first values', async () => {
    const g = new GraphBuilder();
    const of = (initializer: first.Initializer): F => first.getVariable(g, 'v', [3, 3, 4, 8], { initializer });
    const made = [
      of(first.randomUniformInitializer({ seed: 1 })),
      of(first.randomNormalInitializer({ seed: 1, mean: 3 })),
      of(first.truncatedNormalInitializer({ seed: 1, stddev: 0.5 })),
      of(first.glorotUniformInitializer({ seed: 1 })),
      of(first.varianceScalingInitializer({ seed: 1, scale: 2 })),
    ];
    const init = first.globalVariablesInitializer(g);
    const session = sessionOf(g);
    await session.run([], [init]);
    const largest = (await numbers(session, made)).map((all) => Math.max(...all.map(Math.abs)));
    const limits = [0.05, 3.25, 1, Math.sqrt(6 / (36 + 72)), (2 * Math.sqrt(2 / 36)) / 0.8796];
    largest.forEach((each, k) => {
      expect(each).toBeLessThanOrEqual(limits[k]);
      expect(each).toBeGreaterThan(limits[k] * 0.8);
    });
  });
});
