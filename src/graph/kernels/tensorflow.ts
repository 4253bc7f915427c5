/** `shoal/graph/tfjs`: dense kernels by TensorFlow.js, whatever backend it is set to (cpu, wasm, …). What flows between these kernels stays
 *  tensors of TensorFlow.js, of which the step disposes; elements are copied out where anything else takes them.
 *
 *  @module */
import type * as tfjs from '@tensorflow/tfjs';
import { ShoalError } from '../../base/errors.ts';
import type { TypedArray } from '../../memory/dtype.ts';
import type { Kernel, KernelTable } from '../execute/kernel.ts';
import { Resident } from '../execute/resident.ts';
import type { Node } from '../structure/graph-node.ts';
import { formatValue, type DenseValue, type Value } from '../structure/value.ts';
import { elementsAs, elementsOf } from '../structure/elements.ts';
import {
  axesOf,
  elementwise,
  flag,
  scalar,
  integers,
  named,
  one,
  pairwise,
  reducing,
  type Compute,
  type Tensor,
  type TensorFlow,
} from './tensorflow-computation.ts';
import { importedComputations, kernelGradient } from './imported.ts';

/** Kernels of the dense operations by TensorFlow.js, for `SessionOptions.kernels` and `StartOptions.kernels`; of float32, int32, bool,
 *  strings, and int64 whose elements fit into int32. Other dtypes are `unsupported` when they run.
 *  @param tf `import * as tf from '@tensorflow/tfjs'`, with its backend ready. */
export function tensorflowKernels(tf: TensorFlow): KernelTable {
  // Functions of a module that are looked up by name take longer than those of an object.
  const functions = { ...tf };
  return Object.fromEntries(Object.entries(computations).map(([name, compute]) => [name, kernel(tf, functions, compute)]));
}

function kernel(tf: TensorFlow, functions: TensorFlow, compute: Compute): Kernel {
  const bring = (value: Value): TensorValue => new TensorValue(tf, tensorOf(tf, value), value.dtype);
  const run: Kernel = ({ node, inputs }) => {
    const given: Tensor[] = [];
    let brought: Tensor[] | undefined;
    for (const input of inputs) {
      if (input instanceof TensorValue && input.tf === tf) given.push(input.tensor);
      else (brought ??= []).push((given[given.length] = tensorOf(tf, input)));
    }
    try {
      if (compute.isOne === true) return [new TensorValue(tf, tf.keep(compute(functions, given, node) as Tensor), node.outputs[0].dtype)];
      const taken = new Set(given);
      const values: Value[] = [];
      // A result of `tidy` is searched for tensors, element by element: nothing is returned.
      tf.tidy(() => {
        for (const tensor of [compute(functions, given, node)].flat()) {
          // Each value has a tensor of its own, to be disposed of.
          const own = taken.has(tensor) ? tf.clone(tensor) : tensor;
          taken.add(tensor);
          values.push(new TensorValue(tf, tf.keep(own), node.outputs[values.length].dtype));
        }
      });
      return values;
    } finally {
      brought?.forEach((tensor) => tensor.dispose());
    }
  };
  return Object.assign(run, { takesResidents: true, isSynchronous: true, bring });
}

class TensorValue extends Resident {
  readonly tensor: Tensor;
  readonly tf: TensorFlow;

  constructor(tf: TensorFlow, tensor: Tensor, dtype: string) {
    super(dtype, tensor.shape);
    this.tf = tf;
    this.tensor = tensor;
  }

  dispose(): void {
    this.tensor.dispose();
  }

  protected read(): TypedArray | readonly string[] {
    const elements = this.tensor.dataSync();
    return this.dtype === 'string' ? elements : elementsAs(this.dtype, elements);
  }
}

/** Dtypes of both. */
const shared = new Set(['float32', 'int32', 'bool', 'string']);

function tensorOf(tf: TensorFlow, value: Value): Tensor {
  const { dtype, shape } = value;
  if (dtype === 'string') return tf.keep(tf.tensor((value as DenseValue).data as string[], [...shape], dtype));
  const elements = elementsOf(value);
  if (elements instanceof BigInt64Array && elements.every((each) => BigInt.asIntN(32, each) === each))
    return tf.keep(tf.tensor(Int32Array.from(elements, Number), [...shape], 'int32'));
  if (!shared.has(dtype)) throw new ShoalError('unsupported', `TensorFlow.js has no ${formatValue(value)}; cast it to float32 or int32`);
  return tf.keep(tf.tensor(elements as Float32Array, [...shape], dtype as 'float32'));
}

/** Per row, stable: log Σ exp − Σ labels · logits. */
function softmaxLoss(tf: TensorFlow, features: Tensor, labels: Tensor): readonly Tensor[] {
  const logs = tf.logSoftmax(features, -1);
  return [tf.neg(tf.sum(tf.mul(labels, logs), -1)), tf.sub(tf.exp(logs), labels)];
}

const computations: Readonly<Record<string, Compute>> = {
  ...importedComputations,
  KernelGrad: kernelGradient((op) => (Object.hasOwn(computations, op) ? computations[op] : undefined)),
  ...Object.fromEntries([
    ...named('Neg Abs Sign Square Sqrt Rsqrt Exp Log Relu Sigmoid Tanh Softplus LogicalNot ZerosLike', elementwise),
    ...named('Sub Mul FloorDiv Pow Maximum Minimum SquaredDifference', pairwise),
    ...named('Less LessEqual Greater GreaterEqual Equal NotEqual LogicalAnd LogicalOr', pairwise),
    ...named('Sum Mean Max Min Prod', reducing),
  ]),
  Softmax: one((tf, [x]) => tf.softmax(x, -1)),
  LogSoftmax: one((tf, [x]) => tf.logSoftmax(x, -1)),
  LeakyRelu: one((tf, [x], node) => tf.leakyRelu(x, scalar(node, 'alpha'))),

  AddV2: pairwise('add'),
  RealDiv: pairwise('div'),
  FloorMod: pairwise('mod'),
  AddN: (tf, inputs) => inputs.reduce((sum, each) => tf.add(sum, each)),
  SelectV2: one((tf, [condition, x, y]) => tf.where(condition, x, y)),

  MatMul: one((tf, [a, b], node) => tf.matMul(a, b, flag(node, 'transpose_a'), flag(node, 'transpose_b'))),
  BatchMatMulV2: one((tf, [x, y], node) => tf.matMul(x, y, flag(node, 'adj_x'), flag(node, 'adj_y'))),
  BiasAdd: one((tf, [value, bias]) => tf.add(value, bias)),

  ArgMax: one((tf, [x], node) => tf.argMax(x, scalar(node, 'axis'))),

  Cast: (tf, [x], node) => {
    const to = node.attributes.DstT as string;
    if (to === 'int64' && x.dtype !== 'float32') return tf.cast(x, 'int32');
    if (!shared.has(to)) throw new ShoalError('unsupported', `TensorFlow.js has no ${to}`);
    return tf.cast(x, to as 'float32');
  },
  Reshape: (tf, [x], node) => {
    const shape = node.attributes.shape as 'unknown' | readonly (number | null)[];
    if (shape === 'unknown') return x;
    const dimensions = shape.map((each) => each ?? -1);
    return tf.reshape(x, dimensions);
  },
  Transpose: one((tf, [x], node) => tf.transpose(x, integers(node, 'perm'))),
  ExpandDims: one((tf, [x], node) => tf.expandDims(x, scalar(node, 'axis'))),
  Slice: one((tf, [x], node) => tf.slice(x, integers(node, 'begin'), integers(node, 'size'))),
  ConcatV2: one((tf, inputs, node) => tf.concat([...inputs], scalar(node, 'axis'))),
  ConcatGrad: (tf, [value, ...inputs], node) => {
    const axis = scalar(node, 'axis');
    const sizes = inputs.map(({ shape }) => shape.at(axis) ?? 0);
    return tf.split(value, sizes, axis);
  },
  Pack: one((tf, inputs, node) => tf.stack([...inputs], scalar(node, 'axis'))),
  Split: (tf, [x], node) => tf.split(x, scalar(node, 'num_split'), scalar(node, 'axis')),
  Shape: (tf, [x]) => tf.tensor1d(x.shape, 'int32'),
  Size: (tf, [x]) => tf.scalar(x.size, 'int32'),
  Range: (tf, [start, limit, delta]) => {
    const [from, to, by] = [start, limit, delta].map((each) => each.dataSync()[0]);
    return tf.range(from, to, by, 'int32');
  },

  L2Loss: (tf, [t]) => tf.div(tf.sum(tf.square(t)), 2),
  SigmoidCrossEntropyWithLogits: (tf, [labels, logits]) =>
    // max(x, 0) − x · z + log(1 + exp(−|x|)): no overflow on either side.
    tf.add(tf.sub(tf.relu(logits), tf.mul(logits, labels)), tf.log1p(tf.exp(tf.neg(tf.abs(logits))))),
  SoftmaxCrossEntropyWithLogits: (tf, [features, labels]) => softmaxLoss(tf, features, labels),
  SparseSoftmaxCrossEntropyWithLogits: (tf, [features, labels]) =>
    softmaxLoss(tf, features, tf.cast(tf.oneHot(labels as tfjs.Tensor1D, features.shape[1] ?? 0), 'float32')),

  SumLike: (tf, [value, like]) => sumLike(tf, value, like),
  BroadcastLike: (tf, [value, like], node) => broadcastLike(tf, value, like, node),
  ReshapeLike: (tf, [value, like]) => tf.reshape(value, like.shape),
  InverseCount: (tf, [x], node) => {
    const axes = axesOf(node);
    const count = axes === undefined ? x.size : axes.reduce((product, axis) => product * (x.shape.at(axis) ?? 1), 1);
    return tf.scalar(1 / count);
  },
  OtherProducts: (tf, [x], node) => otherProducts(tf, x, axesOf(node)),
  SliceGrad: (tf, [value, like], node) => {
    const begin = integers(node, 'begin');
    const paddings = begin.map((from, axis): [number, number] => [from, like.shape[axis] - from - value.shape[axis]]);
    return tf.pad(value, paddings);
  },
  ReluGrad: (tf, [gradients, features]) => tf.mul(gradients, tf.step(features)),
  LeakyReluGrad: (tf, [gradients, features], node) => tf.mul(gradients, tf.step(features, scalar(node, 'alpha'))),
  SigmoidGrad: (tf, [gradients, y]) => tf.mul(gradients, tf.mul(y, tf.sub(1, y))),
  TanhGrad: (tf, [gradients, y]) => tf.mul(gradients, tf.sub(1, tf.square(y))),
  SoftmaxGrad: (tf, [gradients, y]) => tf.mul(tf.sub(gradients, tf.sum(tf.mul(gradients, y), -1, true)), y),
};

function sumLike(tf: TensorFlow, value: Tensor, like: Tensor): Tensor {
  const extra = value.rank - like.rank;
  const axes: number[] = [];
  for (let axis = 0; axis < value.rank; axis++)
    if (axis < extra || (like.shape[axis - extra] === 1 && value.shape[axis] !== 1)) axes.push(axis);
  return tf.reshape(axes.length === 0 ? value : tf.sum(value, axes), like.shape);
}

/** Products of the elements before and of those behind: an element may be 0. */
function otherProducts(tf: TensorFlow, x: Tensor, axes: readonly number[] | undefined): Tensor {
  const all = x.shape.map((_, axis) => axis);
  const reduced = axes === undefined ? all : axes.map((axis) => (axis < 0 ? axis + x.rank : axis));
  const perm = [...all.filter((axis) => !reduced.includes(axis)), ...reduced];
  const length = reduced.reduce((product, axis) => product * x.shape[axis], 1);
  const rows = tf.reshape(tf.transpose(x, perm), [length === 0 ? 0 : x.size / length, length]);
  const others = tf.mul(tf.cumprod(rows, 1, true), tf.cumprod(rows, 1, true, true));
  const shape = perm.map((axis) => x.shape[axis]);
  const back = all.map((axis) => perm.indexOf(axis));
  return tf.transpose(tf.reshape(others, shape), back);
}

function broadcastLike(tf: TensorFlow, value: Tensor, like: Tensor, node: Pick<Node, 'attributes'>): Tensor {
  const axes = new Set(integers(node, 'axis').map((axis) => (axis < 0 ? axis + like.rank : axis)));
  const kept = like.shape.map((dimension, axis) => (axes.size === 0 || axes.has(axis) ? 1 : dimension));
  return tf.broadcastTo(tf.reshape(value, kept), like.shape);
}
