/** Gradients of branches and loops, against TensorFlow.js's of the same computation written out. */
import * as tf from '@tensorflow/tfjs';
import { beforeAll, describe, expect, it } from 'vitest';
import { Session } from '../execute/session.ts';
import { tensorflowKernels } from '../kernels/tensorflow.ts';
import { localKernels } from '../local-kernels.ts';
import { constant, placeholder } from '../ops/array.ts';
import { cond, whileLoop } from '../ops/control-flow.ts';
import { add, less, mul, square } from '../ops/math.ts';
import { tanh } from '../ops/nn.ts';
import { dropout } from '../ops/random.ts';
import { sum } from '../ops/reduction.ts';
import { gather } from '../ops/state.ts';
import { getVariable, globalVariablesInitializer, onesInitializer } from '../train/variables.ts';
import { GraphBuilder } from '../structure/builder.ts';
import { elementsOf } from '../structure/elements.ts';
import type { Output } from '../structure/graph-node.ts';
import { gradients, whole, type Gradient } from './gradients.ts';

type F = Output<'float32'>;
type T = tf.Tensor;
const devices = ['/job:worker/task:0/device:CPU:0', '/job:ps/task:0/device:CPU:0'];
const [xs, ws] = [
  [0.5, -1, 2],
  [0.3, 1.5, -0.7],
];

beforeAll(() => tf.setBackend('cpu'));

/** `n` is fed: how often, or which way. */
type Build = (g: GraphBuilder, x: F, w: F, n: F) => Output;

const scalar = (g: GraphBuilder, value: number): F => constant(g, { dtype: 'float32', shape: [], data: [value] });

/** Σ build, and its gradients. */
async function differentiate(build: Build, n: number): Promise<number[][]> {
  const g = new GraphBuilder();
  const [x, w] = [placeholder(g, 'float32', [3]), placeholder(g, 'float32', [3])];
  const count = placeholder(g, 'float32', []);
  const loss = sum(g, build(g, x, w, count) as F);
  const made = gradients(g, loss, [x, w]) as F[];
  const session = new Session(g.finish(), { devices, kernels: { ...localKernels(), ...tensorflowKernels(tf) } });
  const value = (shape: number[], data: number[]) => ({ dtype: 'float32', shape, data: Float32Array.from(data) });
  const before = tf.memory().numTensors;
  const fetched = await session.run(
    [
      [x, value([3], xs)],
      [w, value([3], ws)],
      [count, value([], [n])],
    ],
    [loss, ...made],
  );
  expect(tf.memory().numTensors).toBe(before);
  return fetched.map((each) => Array.from(elementsOf(each) as Float32Array));
}

function reference(compute: (x: T, w: T) => T): number[][] {
  const inputs = [tf.tensor1d(xs), tf.tensor1d(ws)];
  const total = (...given: T[]): tf.Scalar => tf.sum(tf.add(compute(given[0], given[1]), tf.mul(tf.add(given[0], given[1]), 0)));
  return [total(...inputs), ...tf.grads(total)(inputs)].map((each) => Array.from(each.dataSync()));
}

/** y = tanh(y · w), n times. @param far device of the product. */
const chain = (g: GraphBuilder, x: F, w: F, n: F, far?: string): F =>
  whileLoop(
    g,
    [scalar(g, 0), x],
    {
      cond: ([i], [limit]) => less(g, i as F, limit as F),
      body: ([i, y], [, factor]) => [add(g, i as F, scalar(g, 1)), tanh(g, mul(g, y as F, factor as F, { device: far }))],
    },
    { invariants: [n, w] },
  )[1] as F;
const chained = (x: T, w: T, n: number): T => Array.from({ length: n }).reduce<T>((y) => tf.tanh(tf.mul(y, w)), x);

const cases: readonly [string, Build, (x: T, w: T, n: number) => T][] = [
  [
    'a branch that uses what is outside',
    (g, x, w, n) => cond(g, less(g, n, scalar(g, 2)), [x], { then: ([y]) => [mul(g, y as F, w)], else: ([y]) => [square(g, y as F)] })[0],
    (x, w, n) => (n < 2 ? tf.mul(x, w) : tf.square(x)),
  ],
  [
    'a branch of a branch, both from outside alone',
    (g, x, w, n) =>
      cond(g, less(g, n, scalar(g, 2)), [], {
        then: () => cond(g, less(g, n, scalar(g, 1)), [w], { then: ([v]) => [mul(g, v as F, x)], else: () => [add(g, x, square(g, w))] }),
        else: () => [square(g, x)],
      })[0],
    (x, w, n) => (n < 2 ? (n < 1 ? tf.mul(w, x) : tf.add(x, tf.square(w))) : tf.square(x)),
  ],
  ['a loop', chain, chained],
  ['a loop on another device', (g, ...given) => g.withDevice(devices[1], () => chain(g, ...given)), chained],
  ['a loop on two devices', (g, ...given) => chain(g, ...given, devices[1]), chained],
  [
    'a value from before and after a loop',
    (g, x, w, n) => mul(g, chain(g, mul(g, x, w), w, n), x),
    (x, w, n) => tf.mul(chained(tf.mul(x, w), w, n), x),
  ],
  [
    'a loop in a branch',
    (g, x, w, n) =>
      cond(g, less(g, n, scalar(g, 2)), [x, w, n], { then: ([y]) => [y], else: (all) => [chain(g, ...(all as [F, F, F]))] })[0],
    (x, w, n) => (n < 2 ? x : chained(x, w, n)),
  ],
  [
    'a branch in a loop',
    (g, x, w, n) =>
      whileLoop(
        g,
        [scalar(g, 0), x],
        {
          cond: ([i], [limit]) => less(g, i as F, limit as F),
          body: ([i, y], [, v]) => [
            add(g, i as F, scalar(g, 1)),
            cond(g, less(g, i as F, scalar(g, 1)), [y], { then: ([z]) => [mul(g, z as F, v as F)], else: ([z]) => [tanh(g, z as F)] })[0],
          ],
        },
        { invariants: [n, w] },
      )[1],
    (x, w, n) => Array.from({ length: n }).reduce<T>((y, _, i) => (i < 1 ? tf.mul(y, w) : tf.tanh(y)), x),
  ],
  [
    'a loop in a loop',
    (g, x, w, n) =>
      whileLoop(
        g,
        [scalar(g, 0), x],
        {
          cond: ([i], [limit]) => less(g, i as F, limit as F),
          body: ([i, y], [, v]) => [add(g, i as F, scalar(g, 1)), chain(g, add(g, y as F, v as F), v as F, i as F)],
        },
        { invariants: [n, w] },
      )[1],
    (x, w, n) => Array.from({ length: n }).reduce<T>((y, _, i) => chained(tf.add(y, w), w, i), x),
  ],
  [
    'a loop on one device in a loop on another',
    (g, x, w, n) =>
      whileLoop(
        g,
        [scalar(g, 0), x],
        {
          cond: ([i], [limit]) => less(g, i as F, limit as F),
          body: ([i, y], [, v]) => [
            add(g, i as F, scalar(g, 1)),
            g.withDevice(devices[1], () => chain(g, add(g, y as F, v as F), v as F, i as F, devices[0])),
          ],
        },
        { invariants: [n, w] },
      )[1],
    (x, w, n) => Array.from({ length: n }).reduce<T>((y, _, i) => chained(tf.add(y, w), w, i), x),
  ],
];

describe('gradients of branches and loops', () => {
  it.each(cases.flatMap(([name, build, compute]) => [0, 1, 2, 5].map((n) => ({ name, build, compute, n }))))(
    '$name, $n',
    async ({ build, compute, n }) => {
      const wanted = reference((x, w) => compute(x, w, n));
      (await differentiate(build, n)).forEach((all, k) =>
        all.forEach((each, element) => expect(each, `${['loss', 'dx', 'dw'][k]}[${element}]`).toBeCloseTo(wanted[k][element], 4)),
      );
    },
  );

  it('have rows of tables and random numbers in a branch', async () => {
    const g = new GraphBuilder();
    const [n, table] = [placeholder(g, 'float32', []), getVariable(g, 'table', [4, 2], { initializer: onesInitializer() })];
    const ids = constant(g, { dtype: 'int32', shape: [3], data: [1, 1, 3] });
    const then = (): Output[] => [dropout(g, gather(g, table, ids), 0.5, { seed: 2 })];
    const [y] = cond(g, less(g, n, scalar(g, 2)), [], { then, else: () => [gather(g, table, ids)] }) as F[];
    const [made] = gradients(g, sum(g, y), [table]) as Exclude<Gradient, undefined>[];
    const slope = 'of' in made ? whole(g, made) : made;
    const init = globalVariablesInitializer(g);
    const session = new Session(g.finish(), { devices, kernels: { ...localKernels(), ...tensorflowKernels(tf) } });
    await session.run([], [init]);
    for (const count of [0, 5]) {
      const fed = { dtype: 'float32', shape: [], data: Float32Array.of(count) };
      const [value, gradient] = (await session.run([[n, fed]], [y, slope])).map((each) => Array.from(elementsOf(each) as Float32Array));
      const [first, second, third] = [0, 2, 4].map((row) => value.slice(row, row + 2));
      expect(gradient).toEqual([0, 0, first[0] + second[0], first[1] + second[1], 0, 0, ...third]);
    }
  });

  it('refuse random numbers in a loop, which would be drawn again', () => {
    const g = new GraphBuilder();
    const x = placeholder(g, 'float32', [3]);
    const [y] = whileLoop(g, [x], {
      cond: ([v]) => less(g, sum(g, v as F), scalar(g, 9)),
      body: ([v]) => [dropout(g, v as F, 0.5)],
    }) as F[];
    expect(() => gradients(g, sum(g, y), [x])).toThrow(/RandomUniform .* in the loop 'while' does something else/);
  });
});
