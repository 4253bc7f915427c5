/** Symbolic gradients and the kernels of TensorFlow.js, against TensorFlow.js's own gradients; indexed slices; what has no gradient. */
import * as tf from '@tensorflow/tfjs';
import { beforeAll, describe, expect, it } from 'vitest';
import { seededRandom } from '../../base/random.ts';
import { createParameterKernels } from '../../memory/parameter-kernels/create-parameter-kernels.ts';
import { Session } from '../execute/session.ts';
import { tableKernels } from '../kernels/table-kernels.ts';
import { elementsOf } from '../structure/elements.ts';
import { tensorflowKernels } from '../kernels/tensorflow.ts';
import * as array from '../ops/array.ts';
import { call } from '../ops/call.ts';
import { merge, switchOn } from '../ops/control-flow.ts';
import * as math from '../ops/math.ts';
import * as matrix from '../ops/matrix.ts';
import * as nn from '../ops/nn.ts';
import * as reduction from '../ops/reduction.ts';
import { assign, dynamicPartition, dynamicStitch, gather, variable } from '../ops/state.ts';
import { sparseApplyAdagrad } from '../ops/training.ts';
import { floatFunctions } from '../ops/float-functions.ts';
import { operations } from '../ops/registry.ts';
import { GraphBuilder } from '../structure/builder.ts';
import type { Attribute, OpDefinition } from '../structure/definition.ts';
import type { Output } from '../structure/graph-node.ts';
import type { DenseValue } from '../structure/value.ts';
import { gradients, IndexedSlices, whole } from './gradients.ts';

type F = Output<'float32'>;
const device = '/job:worker/task:0/device:CPU:0';
let kernels: ReturnType<typeof tensorflowKernels>;

beforeAll(async () => {
  await tf.setBackend('cpu');
  kernels = { ...tableKernels(createParameterKernels()), ...tensorflowKernels(tf) };
});

const random = seededRandom(11);
const values = (shape: readonly number[], low = -2, high = 2): DenseValue => ({
  dtype: 'float32',
  shape,
  data: Float32Array.from({ length: shape.reduce((a, b) => a * b, 1) }, () => low + (high - low) * random.next()),
});
const tensor = (value: DenseValue): tf.Tensor => tf.tensor(value.data as Float32Array, [...value.shape]);

interface Case {
  readonly inputs: readonly DenseValue[];
  readonly graph: (g: GraphBuilder, ...x: F[]) => Output;
  readonly reference: (...x: tf.Tensor[]) => tf.Tensor;
}

const [m, n] = [values([3, 4]), values([3, 4])];
const positive = values([3, 4], 0.3, 3);
const one = (graph: Case['graph'], reference: Case['reference'], x = m): Case => ({ inputs: [x], graph, reference });
const both = (graph: Case['graph'], reference: Case['reference'], inputs: readonly DenseValue[] = [m, n]): Case => ({
  inputs,
  graph,
  reference,
});

const labels = values([3, 4], 0, 1);
const cases: Readonly<Record<string, Case>> = {
  Neg: one((g, x) => math.neg(g, x), tf.neg),
  Abs: one((g, x) => math.abs(g, x), tf.abs),
  Square: one((g, x) => math.square(g, x), tf.square),
  Sqrt: one((g, x) => math.sqrt(g, x), tf.sqrt, positive),
  Rsqrt: one((g, x) => math.rsqrt(g, x), tf.rsqrt, positive),
  Exp: one((g, x) => math.exp(g, x), tf.exp),
  Log: one((g, x) => math.log(g, x), tf.log, positive),
  Relu: one((g, x) => nn.relu(g, x), tf.relu),
  LeakyRelu: one(
    (g, x) => nn.leakyRelu(g, x, { alpha: 0.3 }),
    (x) => tf.leakyRelu(x, 0.3),
  ),
  Sigmoid: one((g, x) => nn.sigmoid(g, x), tf.sigmoid),
  Tanh: one((g, x) => nn.tanh(g, x), tf.tanh),
  Softplus: one((g, x) => nn.softplus(g, x), tf.softplus),
  Softmax: one(
    (g, x) => math.square(g, nn.softmax(g, x)),
    (x) => tf.square(tf.softmax(x)),
  ),
  LogSoftmax: one(
    (g, x) => math.square(g, nn.logSoftmax(g, x)),
    (x) => tf.square(tf.logSoftmax(x)),
  ),
  AddV2: both((g, x, y) => math.add(g, x, y), tf.add, [values([3, 1, 4]), values([2, 4])]),
  Sub: both((g, x, y) => math.sub(g, x, y), tf.sub, [m, values([4])]),
  Mul: both((g, x, y) => math.mul(g, x, y), tf.mul, [m, values([3, 1])]),
  RealDiv: both((g, x, y) => math.div(g, x, y), tf.div, [m, positive]),
  Pow: both((g, x, y) => math.pow(g, x, y), tf.pow, [positive, values([])]),
  Maximum: both((g, x, y) => math.maximum(g, x, y), tf.maximum),
  Minimum: both((g, x, y) => math.minimum(g, x, y), tf.minimum),
  SquaredDifference: both((g, x, y) => math.squaredDifference(g, x, y), tf.squaredDifference),
  AddN: both(
    (g, x, y) => math.addN(g, [x, y, x]),
    (x, y) => tf.add(tf.add(x, y), x),
  ),
  SelectV2: both(
    (g, x, y) => math.select(g, math.less(g, x, y), math.square(g, x), y),
    (x, y) => tf.where(tf.less(tensor(m), tensor(n)), tf.square(x), y),
  ),
  Reshape: one(
    (g, x) => math.square(g, array.reshape(g, x, { shape: [null, 2] })),
    (x) => tf.square(tf.reshape(x, [-1, 2])),
  ),
  ExpandDims: one(
    (g, x) => math.square(g, array.expandDims(g, x, { axis: 1 })),
    (x) => tf.square(tf.expandDims(x, 1)),
  ),
  Transpose: one(
    (g, x) =>
      math.mul(
        g,
        array.transpose(g, x, { perm: [2, 0, 1] }),
        array.constant(g, { ...values([4, 2, 3]), dtype: 'float32', data: Float32Array.from({ length: 24 }, (_, k) => k) }),
      ),
    (x) => tf.mul(tf.transpose(x, [2, 0, 1]), tf.reshape(tf.range(0, 24), [4, 2, 3])),
    values([2, 3, 4]),
  ),
  Slice: one(
    (g, x) => math.square(g, array.slice(g, x, { begin: [1, 1], size: [2, 2] })),
    (x) => tf.square(tf.slice(x, [1, 1], [2, 2])),
  ),
  ConcatV2: both(
    (g, x, y) => math.square(g, array.concat(g, [x, y, x], { axis: 1 })),
    (x, y) => tf.square(tf.concat([x, y, x], 1)),
    [m, values([3, 2])],
  ),
  Pack: both(
    (g, x, y) => math.square(g, array.pack(g, [x, y])),
    (x, y) => tf.square(tf.stack([x, y])),
  ),
  Split: one(
    (g, x) => math.square(g, array.split(g, x, 2, { axis: 1 })[1]),
    (x) => tf.square(tf.split(x, 2, 1)[1]),
  ),
  Sum: one(
    (g, x) => math.square(g, reduction.sum(g, x, { axis: [0] })),
    (x) => tf.square(tf.sum(x, 0)),
  ),
  Mean: one(
    (g, x) => math.square(g, reduction.mean(g, x, { axis: [-1], keep_dims: true })),
    (x) => tf.square(tf.mean(x, -1, true)),
  ),
  Max: one(
    (g, x) => math.square(g, reduction.max(g, x, { axis: [1] })),
    (x) => tf.square(tf.max(x, 1)),
  ),
  Min: one(
    (g, x) => reduction.min(g, x),
    (x) => tf.min(x),
  ),
  'Prod, with a zero in a row': one(
    (g, x) => reduction.prod(g, x, { axis: [1] }),
    (x) => tf.prod(x, 1),
    { ...m, data: (m.data as Float32Array).map((each, k) => (k === 5 ? 0 : each)) },
  ),
  'Prod over several axes': one(
    (g, x) => reduction.prod(g, x, { axis: [0, -1], keep_dims: true }),
    (x) => tf.prod(tf.reshape(tf.transpose(x, [1, 0, 2]), [3, 8]), 1),
    values([2, 3, 4], 0.5, 1.5),
  ),
  'Prod of all': one(
    (g, x) => reduction.prod(g, x),
    (x) => tf.prod(x),
  ),
  FloorMod: both((g, x, y) => math.floorMod(g, x, y), tf.mod, [m, values([4], 0.3, 1)]),
  L2Loss: one(
    (g, x) => nn.l2Loss(g, x),
    (x) => tf.div(tf.sum(tf.square(x)), 2),
  ),
  BiasAdd: both(
    (g, x, y) => math.square(g, matrix.biasAdd(g, x, y)),
    (x, y) => tf.square(tf.add(x, y)),
    [m, values([4])],
  ),
  SigmoidCrossEntropyWithLogits: one(
    (g, x) => nn.sigmoidCrossEntropyWithLogits(g, array.constant(g, { ...labels, dtype: 'float32' }), x),
    (x) => tf.add(tf.sub(tf.relu(x), tf.mul(x, tensor(labels))), tf.log1p(tf.exp(tf.neg(tf.abs(x))))),
  ),
  SoftmaxCrossEntropyWithLogits: one(
    (g, x) => nn.softmaxCrossEntropyWithLogits(g, x, nn.softmax(g, array.constant(g, { ...labels, dtype: 'float32' })))[0],
    (x) => tf.neg(tf.sum(tf.mul(tf.softmax(tensor(labels)), tf.logSoftmax(x)), -1)),
  ),
  BatchMatMulV2: both(
    (g, x, y) => matrix.batchMatMul(g, x, y, { adj_y: true }),
    (x, y) => tf.matMul(x, y, false, true),
    [values([2, 3, 4]), values([2, 5, 4])],
  ),
};
/** A node of an operation without a function; the inputs behind x are constants. */
const node =
  (op: string, attributes: Readonly<Record<string, Attribute>> = {}, ...constants: readonly DenseValue[]) =>
  (g: GraphBuilder, ...xs: F[]): Output => {
    const definition = operations.find(({ name }) => name === op) as OpDefinition;
    const behind = constants.map((each) => array.constant(g, each as DenseValue & { dtype: 'float32' }));
    return math.square(g, g.node(definition, [...xs, ...behind], attributes).outputs[0] as F);
  };
const ints = (shape: readonly number[], ...data: readonly number[]): DenseValue => ({ dtype: 'int32', shape, data: Int32Array.from(data) });
const single = (value: number): DenseValue => ({ dtype: 'float32', shape: [], data: Float32Array.of(value) });
const [mean, variance] = [values([2]), values([2], 0.5, 2)];
const imported: Readonly<Record<string, Case>> = {
  StridedSlice: one(node('StridedSlice', { begin_mask: 1 }, ints([2], 0, 3), ints([2], 2, 0), ints([2], 1, -2)), (x) =>
    tf.square(tf.gather(tf.slice(x, 0, 2), tf.tensor1d([3, 1], 'int32'), 1)),
  ),
  Squeeze: one(node('Squeeze', { squeeze_dims: [1] }), (x) => tf.square(x), values([3, 1, 2])),
  Fill: one(
    (g, x) =>
      math.square(
        g,
        g.node(
          operations.find(({ name }) => name === 'Fill')!,
          [array.constant(g, { dtype: 'int32', shape: [2], data: [2, 3] }), x],
        ).outputs[0] as F,
      ),
    (x) => tf.square(tf.mul(x, tf.ones([2, 3]))),
    values([]),
  ),
  BroadcastTo: one(node('BroadcastTo', {}, ints([3], 2, 3, 4)), (x) => tf.square(tf.broadcastTo(x, [2, 3, 4])), values([3, 1])),
  Tile: one(node('Tile', {}, ints([2], 2, 3)), (x) => tf.square(tf.tile(x, [2, 3]))),
  Unpack: one(
    (g, x) =>
      math.square(
        g,
        g.node(
          operations.find(({ name }) => name === 'Unpack')!,
          [x],
          { num: 4, axis: 1 },
        ).outputs[2] as F,
      ),
    (x) => tf.square(tf.unstack(x, 1)[2]),
  ),
  'Pack along another axis': both(
    (g, x, y) => math.square(g, array.pack(g, [x, y], { axis: 1 })),
    (x, y) => tf.square(tf.stack([x, y], 1)),
  ),
  SplitV: one(node('SplitV', { size_splits: [1, -1], axis: 1 }), (x) => tf.square(tf.split(x, [1, 3], 1)[0])),
  Pad: one(node('Pad', {}, ints([2, 2], 0, 1, 2, 0)), (x) =>
    tf.square(
      tf.pad(x, [
        [0, 1],
        [2, 0],
      ]),
    ),
  ),
  PadV2: one(node('PadV2', {}, ints([2, 2], 0, 1, 2, 0), single(3)), (x) =>
    tf.square(
      tf.pad(
        x,
        [
          [0, 1],
          [2, 0],
        ],
        3,
      ),
    ),
  ),
  MirrorPad: one(node('MirrorPad', { mode: 'SYMMETRIC' }, ints([2, 2], 1, 0, 0, 2)), (x) =>
    tf.square(tf.concat([tf.concat([tf.slice(x, 0, 1), x], 0), tf.reverse(tf.slice(tf.concat([tf.slice(x, 0, 1), x], 0), [0, 2]), 1)], 1)),
  ),
  ClipByValue: one(node('ClipByValue', {}, single(-1), single(0.5)), (x) => tf.square(tf.clipByValue(x, -1, 0.5))),
  GatherNd: one(node('GatherNd', {}, ints([4, 2], 0, 1, 2, 3, 0, 1, 1, 1)), (x) =>
    tf.square(tf.gather(tf.reshape(x, [-1]), tf.tensor1d([1, 11, 1, 5], 'int32'))),
  ),
  Einsum: both(
    (g, x, y) =>
      math.square(
        g,
        g.node(
          operations.find(({ name }) => name === 'Einsum')!,
          [x, y],
          { equation: 'abc,dc->da' },
        ).outputs[0] as F,
      ),
    (x, y) => tf.square(tf.matMul(y, tf.sum(x, 1), false, true)),
    [values([2, 3, 4]), values([5, 4])],
  ),
  Conv2D: both(
    node('Conv2D', { strides: [1, 2, 1, 1], padding: 'SAME' }),
    (x, filter) => tf.square(tf.conv2d(x as tf.Tensor4D, filter as tf.Tensor4D, [2, 1], 'same')),
    [values([2, 4, 3, 2]), values([3, 2, 2, 3])],
  ),
  DepthwiseConv2dNative: both(
    node('DepthwiseConv2dNative', { strides: [1, 1, 1, 1], padding: 'VALID' }),
    (x, filter) => tf.square(tf.depthwiseConv2d(x as tf.Tensor4D, filter as tf.Tensor4D, 1, 'valid')),
    [values([2, 4, 3, 2]), values([3, 2, 2, 2])],
  ),
  MaxPool: one(
    node('MaxPool', { ksize: [1, 2, 2, 1], strides: [1, 2, 1, 1], padding: 'VALID' }),
    (x) => tf.square(tf.maxPool(x as tf.Tensor4D, 2, [2, 1], 'valid')),
    values([2, 4, 3, 2]),
  ),
  AvgPool: one(
    node('AvgPool', { ksize: [1, 2, 2, 1], strides: [1, 2, 1, 1], padding: 'SAME' }),
    (x) => tf.square(tf.avgPool(x as tf.Tensor4D, 2, [2, 1], 'same')),
    values([2, 4, 3, 2]),
  ),
  FusedBatchNormV3: {
    inputs: [values([2, 4, 3, 2]), values([2]), values([2])],
    graph: node('FusedBatchNormV3', { is_training: false, epsilon: 1e-3 }, mean, variance),
    reference: (x, scale, offset) =>
      tf.square(tf.batchNorm(x, tensor(mean) as tf.Tensor1D, tensor(variance) as tf.Tensor1D, offset as tf.Tensor1D, scale as tf.Tensor1D)),
  },
  'FusedBatchNormV3 of a batch': {
    inputs: [values([2, 4, 3, 2]), values([2]), values([2])],
    graph: node('FusedBatchNormV3', { epsilon: 1e-3 }, mean, variance),
    reference: (x, scale, offset) => {
      const { mean: center, variance: width } = tf.moments(x, [0, 1, 2]);
      return tf.square(tf.add(tf.mul(tf.div(tf.sub(x, center), tf.sqrt(tf.add(width, 1e-3))), scale), offset));
    },
  },
  SparseSegmentSum: one(node('SparseSegmentSum', {}, ints([4], 2, 0, 0, 1), ints([4], 0, 0, 1, 1)), (x) =>
    tf.square(
      tf.matMul(
        tf.tensor2d([
          [1, 0, 1],
          [1, 1, 0],
        ]),
        x as tf.Tensor2D,
      ),
    ),
  ),
  SparseSegmentMean: one(node('SparseSegmentMean', {}, ints([3], 2, 0, 1), ints([3], 0, 0, 1)), (x) =>
    tf.square(
      tf.matMul(
        tf.tensor2d([
          [0.5, 0, 0.5],
          [0, 1, 0],
        ]),
        x as tf.Tensor2D,
      ),
    ),
  ),
  'Einsum of one': one(node('Einsum', { equation: 'ab->b' }), (x) => tf.square(tf.sum(x, 0))),
  StopGradient: one(
    (g, x) => math.mul(g, x, array.stopGradient(g, x)),
    (x) => tf.mul(x, m.data.length === 0 ? x : tensor(m)),
  ),
};
Object.assign(cases, imported);
for (const name of floatFunctions) {
  const compute = new Map(Object.entries(tf)).get(`${name[0].toLowerCase()}${name.slice(1)}`) as typeof tf.floor;
  const x = { ...values([6], 0.1, 0.9) };
  // Acosh is defined for numbers from 1 on.
  const inputs = name === 'Acosh' ? { ...x, data: (x.data as Float32Array).map((each) => 1 + each) } : x;
  Object.assign(cases, { [name]: one(node(name), (each) => tf.square(compute(each)), inputs) });
}
for (const a of [false, true])
  for (const b of [false, true])
    (cases as Record<string, Case>)[`MatMul ${a} ${b}`] = both(
      (g, x, y) => matrix.matMul(g, x, y, { transpose_a: a, transpose_b: b }),
      (x, y) => tf.matMul(x, y, a, b),
      [values(a ? [4, 3] : [3, 4]), values(b ? [5, 4] : [4, 5])],
    );

function close(actual: unknown, expected: ArrayLike<number>): void {
  const numbers = [...(elementsOf(actual as DenseValue) as Float32Array)];
  expect(numbers).toHaveLength(expected.length);
  numbers.forEach((each, k) =>
    expect(Math.abs(each - expected[k]), `element ${k}: ${each} and ${expected[k]}`).toBeLessThan(1e-3 + 1e-3 * Math.abs(expected[k])),
  );
}

describe('gradients', () => {
  it.each(Object.entries(cases))("of %s are TensorFlow.js's", async (_, { inputs, graph, reference }) => {
    // Known shapes and unknown ones go different ways.
    for (const isKnown of [true, false]) {
      const g = new GraphBuilder();
      const xs = inputs.map(({ shape }) => array.placeholder(g, 'float32', isKnown ? shape : shape.map(() => null)));
      const y = graph(g, ...xs);
      const made = gradients(g, y, xs) as Output[];
      const session = new Session(g.finish(), { devices: [device], kernels });
      const [value, ...results] = await session.run(
        xs.map((x, k) => [x, inputs[k]]),
        [y, ...made],
      );
      const given = inputs.map(tensor);
      close(value, reference(...given).dataSync());
      tf.grads((...x: tf.Tensor[]) => reference(...x))(given).forEach((expected, k) => close(results[k], expected.dataSync()));
    }
  });

  it('of a table are slices: of rows, also of rows named twice, and of several gathers', async () => {
    const g = new GraphBuilder();
    const table = variable(g, 'float32', [5, 2], { name: 'table' });
    const init = assign(
      g,
      table,
      array.constant(g, { dtype: 'float32', shape: [5, 2], data: Float32Array.from({ length: 10 }, (_, k) => k) }),
    );
    const history = variable(g, 'float32', [5, 2], { name: 'history' });
    const initHistory = assign(g, history, array.constant(g, { dtype: 'float32', shape: [5, 2], data: new Float32Array(10) }));
    const ids = array.placeholder(g, 'int32', [null]);
    const more = array.placeholder(g, 'int64', [null]);
    const loss = reduction.sum(
      g,
      math.square(g, array.concat(g, [gather(g, table, ids), gather(g, table, array.cast(g, ids, 'int32'))], { axis: 0 })),
    );
    const [slices] = gradients(g, loss, [table]);
    expect(slices).toBeInstanceOf(IndexedSlices);
    const { values: rows, indices } = slices as IndexedSlices;
    const dense = whole(g, slices as IndexedSlices);
    const step = sparseApplyAdagrad(g, table, history, rows, indices, { learning_rate: 1, epsilon: 1e-6 });
    const session = new Session(g.finish(), { devices: [device], kernels });
    await session.run([], [init.node, initHistory.node]);
    const feeds = [[ids, { dtype: 'int32', shape: [3], data: Int32Array.of(3, 1, 3) }]] as const;
    const [whole1, where] = await session.run(feeds, [dense, indices]);
    expect([...elementsOf(where)]).toEqual([3, 1, 3, 3, 1, 3]);
    // Twice by two gathers; row 3 twice in each.
    close(whole1, [0, 0, 8, 12, 0, 0, 48, 56, 0, 0]);
    await session.run(feeds, [step.node]);
    const [after] = await session.run([], [table]);
    // The first step of Adagrad goes by the learning rate, whatever the gradient is.
    close(after, [0, 1, 1, 2, 4, 5, 5, 6, 8, 9]);
    expect(more.dtype).toBe('int64');
    await expect(session.run([[ids, { dtype: 'int32', shape: [1], data: Int32Array.of(5) }]], [loss])).rejects.toThrow(
      /GatherV2 \S+ on \S+: index 5 at 0 is outside a table of 5 rows/,
    );
  });

  it('go through tables in parts', async () => {
    const g = new GraphBuilder();
    const ids = array.placeholder(g, 'int32', [null]);
    const tables = [0, 1].map((k) => variable(g, 'float32', [3, 1], { name: `part_${k}` }));
    const inits = tables.map(
      (table, k) => assign(g, table, array.constant(g, { dtype: 'float32', shape: [3, 1], data: Float32Array.of(k, k + 2, k + 4) })).node,
    );
    const scalarInt = (value: number): Output<'int32'> => array.constant(g, { dtype: 'int32', shape: [], data: Int32Array.of(value) });
    const parts = math.floorMod(g, ids, scalarInt(2));
    const rows = dynamicPartition(g, math.floorDiv(g, ids, scalarInt(2)), parts, 2);
    const places = dynamicPartition(g, array.range(g, scalarInt(0), array.sizeOf(g, ids), scalarInt(1)), parts, 2);
    const all = dynamicStitch(
      g,
      places,
      rows.map((each, k) => gather(g, tables[k], each)),
    );
    const made = gradients(g, reduction.sum(g, math.square(g, all)), tables) as IndexedSlices[];
    const fetches = made.map((each) => whole(g, each));
    const session = new Session(g.finish(), { devices: [device], kernels });
    await session.run([], inits);
    const [value, ...results] = await session.run(
      [[ids, { dtype: 'int32', shape: [4], data: Int32Array.of(5, 0, 2, 3) }]],
      [all, ...fetches],
    );
    close(value, [5, 0, 2, 3]);
    close(results[0], [0, 4, 0]);
    close(results[1], [0, 6, 10]);
  });

  it('are beside their nodes where that is asked for, also of nodes that are beside others', () => {
    const g = new GraphBuilder();
    const server = '/job:ps/task:1';
    const table = variable(g, 'float32', [5, 2], { device: server });
    const ids = array.placeholder(g, 'int32', [3], { device: '/job:worker' });
    const rows = g.withDevice('/job:worker', () => math.square(g, gather(g, table, ids, { colocateWith: table }), { colocateWith: table }));
    const before = g.nodes.length;
    gradients(g, reduction.sum(g, rows), [table], { colocate: true });
    const made = g.nodes.slice(before).filter(({ name }) => name.includes('Square_grad'));
    expect(made.length).toBeGreaterThan(0);
    expect(new Set(made.map(({ device }) => device))).toEqual(new Set([server]));
  });

  it('of DynamicPartition are the rows of its parts, where they came from; zeros for parts that nothing depends on', async () => {
    const g = new GraphBuilder();
    const x = array.placeholder(g, 'float32', [2, 3, 2]);
    const where = array.placeholder(g, 'int32', [2, 3]);
    const [first, , third] = dynamicPartition(g, x, where, 3);
    const y = math.add(g, reduction.sum(g, math.square(g, first)), reduction.sum(g, third));
    const [dx] = gradients(g, y, [x]) as Output[];
    const session = new Session(g.finish(), { devices: [device], kernels });
    const data = Float32Array.from({ length: 12 }, (_, k) => k + 1);
    const feed = (parts: readonly number[]) =>
      [
        [x, { dtype: 'float32', shape: [2, 3, 2], data }],
        [where, { dtype: 'int32', shape: [2, 3], data: Int32Array.from(parts) }],
      ] as const;
    close((await session.run(feed([0, 1, 2, 2, 0, 1]), [dx]))[0], [2, 4, 0, 0, 1, 1, 1, 1, 18, 20, 0, 0]);
    close((await session.run(feed([1, 1, 1, 1, 1, 1]), [dx]))[0], new Float32Array(12));
  });

  it('of calls are the vjp that was given', async () => {
    const g = new GraphBuilder();
    const x = array.placeholder(g, 'float32', []);
    const scale = (value: unknown, by: number): DenseValue => ({
      dtype: 'float32',
      shape: [],
      data: Float32Array.of(((value as DenseValue).data[0] as number) * by),
    });
    const [y] = call(g, ([v]) => [scale(v, 3)], [x], [{ dtype: 'float32', shape: [] }], { gradient: ([, dy]) => [scale(dy, 3)] });
    const [dx] = gradients(g, math.square(g, y as F), [x]) as Output[];
    const session = new Session(g.finish(), { devices: [device], kernels });
    close((await session.run([[x, { dtype: 'float32', shape: [], data: Float32Array.of(2) }]], [dx]))[0], [36]);
  });

  it('are undefined where nothing depends, and refused by name', () => {
    const g = new GraphBuilder();
    const [x, y] = [array.placeholder(g, 'float32', []), array.placeholder(g, 'float32', [])];
    expect(gradients(g, math.neg(g, x), [y])).toEqual([undefined]);
    expect(() => gradients(g, x, [array.placeholder(g, 'int32', [], { name: 'ids' })])).toThrow(/'ids:0' is int32; only floating-point/);
    const [merged] = merge(g, switchOn(g, x, math.less(g, x, y)), { name: 'merged' });
    expect(() => gradients(g, merged, [x])).toThrow(/Merge 'merged' is of no `cond` or `whileLoop`/);
    const [called] = call(g, ([v]) => [v], [x], [{ dtype: 'float32', shape: [] }], { name: 'step' });
    expect(() => gradients(g, called, [x])).toThrow(/Call 'step' has no gradient; give it one/);
  });
});
