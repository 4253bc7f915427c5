/** Tensors of TensorFlow.js between the kernels of a step: they stay there, other code gets elements, and none is left after a step,
 *  however it ends. */
import * as tf from '@tensorflow/tfjs';
import { beforeAll, describe, expect, it } from 'vitest';
import type { KernelTable } from '../execute/kernel.ts';
import { Resident } from '../execute/resident.ts';
import { Session } from '../execute/session.ts';
import { constant, identity, placeholder, reshape, split } from '../ops/array.ts';
import { call } from '../ops/call.ts';
import { cond, whileLoop } from '../ops/control-flow.ts';
import { add, addN, less, mul } from '../ops/math.ts';
import { matMul } from '../ops/matrix.ts';
import { relu, tanh } from '../ops/nn.ts';
import { assign, variable } from '../ops/state.ts';
import { GraphBuilder } from '../structure/builder.ts';
import type { Node, Output } from '../structure/graph-node.ts';
import type { DenseValue, Value } from '../structure/value.ts';
import { localKernels } from '../local-kernels.ts';
import { tensorflowKernels } from './tensorflow.ts';

type F = Output<'float32'>;
const devices = ['/job:a/task:0/device:CPU:0', '/job:b/task:0/device:CPU:0'];
const floats = (...data: number[]): DenseValue => ({ dtype: 'float32', shape: [data.length], data: Float32Array.from(data) });
const one = (g: GraphBuilder, value: number): F => constant(g, { dtype: 'float32', shape: [], data: Float32Array.of(value) });
const gives = [{ dtype: 'float32', shape: [2] }] as const;

beforeAll(() => tf.setBackend('cpu'));

function sessionOf(g: GraphBuilder, kernels: KernelTable = {}): Session {
  return new Session(g.finish(), { devices, kernels: { ...localKernels(), ...tensorflowKernels(tf), ...kernels } });
}

function settable(): { readonly promise: Promise<void>; readonly resolve: () => void } {
  let resolve!: () => void;
  const promise = new Promise<void>((settle) => (resolve = settle));
  return { promise, resolve };
}

/** Builds on [2], runs thrice, and fetches. */
async function run(build: (g: GraphBuilder, x: F) => Output, fed: Value = floats(1, 2)): Promise<Value> {
  const g = new GraphBuilder();
  const x = placeholder(g, 'float32', [2]);
  const y = build(g, x);
  const session = sessionOf(g);
  const before = tf.memory().numTensors;
  let value!: Value;
  for (let step = 0; step < 3; step++) [value] = await session.run([[x, fed]], [y]);
  expect(tf.memory().numTensors).toBe(before);
  session.close();
  return value;
}

describe('tensors of TensorFlow.js in a step', () => {
  it.each<[string, (g: GraphBuilder, x: F) => Output, number[]]>([
    ['a chain', (g, x) => tanh(g, mul(g, add(g, x, x), x)), [Math.fround(Math.tanh(2)), Math.fround(Math.tanh(8))]],
    ['an output that nothing takes', (g, x) => add(g, split(g, relu(g, x), 2)[1], x), [3, 4]],
    ['a kernel that gives its input', (g, x) => add(g, addN(g, [reshape(g, relu(g, x), { shape: 'unknown' })]), x), [2, 4]],
    ['a value that is passed on', (g, x) => identity(g, identity(g, relu(g, x))), [1, 2]],
    [
      'a transfer',
      (g, x) =>
        g.withDevice(devices[1], () =>
          add(
            g,
            g.withDevice(devices[0], () => relu(g, x)),
            x,
          ),
        ),
      [2, 4],
    ],
    [
      'a branch',
      (g, x) => cond(g, less(g, one(g, 1), one(g, 2)), [relu(g, x)], { then: ([y]) => [mul(g, y as F, y as F)], else: ([y]) => [y] })[0],
      [1, 4],
    ],
    [
      'a loop with a constant of its own',
      (g, x) =>
        whileLoop(
          g,
          [relu(g, one(g, 0)), relu(g, x)],
          {
            cond: ([i]) => less(g, i as F, one(g, 20)),
            body: ([i, y], [step]) => [add(g, i as F, one(g, 1)), add(g, y as F, step as F)],
          },
          { invariants: [relu(g, x)], parallelIterations: 3 },
        )[1],
      [21, 42],
    ],
  ])('%s leaves none', async (_, build, expected) => {
    const value = (await run(build)) as DenseValue;
    expect(value).not.toBeInstanceOf(Resident);
    expect(value.data).toEqual(Float32Array.from(expected));
  });

  it('takes tensors that are fed, and leaves them', async () => {
    const fed = tf.tensor1d([1, 2]);
    expect(((await run((g, x) => relu(g, x), fed as unknown as Value)) as DenseValue).data).toEqual(Float32Array.of(1, 2));
    expect(Array.from(fed.dataSync())).toEqual([1, 2]);
    fed.dispose();
  });

  it('gives elements to functions and variables, which may keep them', async () => {
    const g = new GraphBuilder();
    const kept: Value[] = [];
    const x = placeholder(g, 'float32', [2]);
    const [y] = call(
      g,
      async (inputs) => {
        kept.push(...inputs);
        return Promise.resolve(inputs);
      },
      [relu(g, x)],
      gives,
    );
    const v = variable(g, 'float32', [2]);
    const set = assign(g, v, relu(g, y as F));
    const session = sessionOf(g);
    const data = Float32Array.of(1, 2);
    await session.run([[x, { dtype: 'float32', shape: [2], data }]], [set.node]);
    data.fill(9);
    const [value] = await session.run([], [v]);
    expect((value as DenseValue).data).toEqual(Float32Array.of(1, 2));
    expect((kept[0] as DenseValue).data).toEqual(Float32Array.of(1, 2));
  });

  it('leaves none when a kernel fails', async () => {
    const g = new GraphBuilder();
    const x = placeholder(g, 'float32', [null, null]);
    const y = matMul(g, relu(g, x), relu(g, x));
    const session = sessionOf(g);
    const before = tf.memory().numTensors;
    await expect(session.run([[x, { ...floats(1, 2), shape: [1, 2] }]], [y])).rejects.toThrow('MatMul');
    expect(tf.memory().numTensors).toBe(before);
  });

  it('leaves none when outputs do not fit the graph', async () => {
    const g = new GraphBuilder();
    const x = placeholder(g, 'float32', [2]);
    const y = relu(g, tanh(g, x));
    const { Sum } = tensorflowKernels(tf);
    const sumNode = { outputs: y.node.outputs, attributes: { axis: [], keep_dims: false } } as unknown as Node;
    const session = sessionOf(g, { Relu: (call) => Sum({ ...call, node: sumNode }) });
    const before = tf.memory().numTensors;
    await expect(session.run([[x, floats(1, 2)]], [y])).rejects.toThrow('must be float32[2]');
    expect(tf.memory().numTensors).toBe(before);
  });

  it('leaves none when a step is aborted while it waits, nor when the answer comes late', async () => {
    const g = new GraphBuilder();
    const x = placeholder(g, 'float32', [2]);
    const [start, answer] = [settable(), settable()];
    const slow: KernelTable = {
      Tanh: async (call) => {
        start.resolve();
        await answer.promise;
        return tensorflowKernels(tf).Tanh(call);
      },
    };
    const y = add(g, tanh(g, x), relu(g, x));
    const session = sessionOf(g, slow);
    const before = tf.memory().numTensors;
    const abort = new AbortController();
    const step = session.run([[x, floats(1, 2)]], [y], { signal: abort.signal });
    await start.promise;
    expect(tf.memory().numTensors).toBeGreaterThan(before);
    abort.abort();
    await expect(step).rejects.toMatchObject({ code: 'aborted' });
    expect(tf.memory().numTensors).toBe(before);
    answer.resolve();
    await new Promise((resolve) => void setImmediate(resolve));
    expect(tf.memory().numTensors).toBe(before);
  });
});
