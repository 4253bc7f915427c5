/** Kernels by TensorFlow.js of operations that imported graphs have, and the gradients of these kernels. */
import type * as tfjs from '@tensorflow/tfjs';
import { ShoalError } from '../../base/errors.ts';
import { floatFunctions } from '../ops/float-functions.ts';
import { einsumLabels } from '../ops/matrix.ts';
import { stridedShape } from '../ops/shaping.ts';
import type { Attributes } from '../structure/definition.ts';
import { elementwise, flag, scalar, integers, named, type Compute, type Tensor, type TensorFlow } from './tensorflow-computation.ts';

const numbers = (tensor: Tensor): number[] => Array.from(tensor.dataSync());
const pad: Compute = (tf, [x, paddings, value]) => tf.pad(x, pairs(paddings), value === undefined ? 0 : numbers(value)[0]);

export const importedComputations: Readonly<Record<string, Compute>> = {
  ...Object.fromEntries(named(floatFunctions.join(' '), elementwise)),
  StridedSlice: (tf, [x, begin, end, strides], node) => {
    const masks = ['begin_mask', 'end_mask', 'ellipsis_mask', 'new_axis_mask', 'shrink_axis_mask'].map((name) => scalar(node, name));
    const entries = [begin, end, strides].map(numbers) as [number[], number[], number[]];
    const shape = stridedShape({ shape: x.shape, entries, masks: (name) => scalar(node, name), fail });
    // TensorFlow.js refuses a slice that ends before it begins.
    return shape.includes(0) ? tf.zeros(shape as number[], x.dtype) : tf.stridedSlice(x, ...entries, ...masks);
  },
  Squeeze: (tf, [x], node) => {
    const axes = integers(node, 'squeeze_dims').map((axis) => (axis < 0 ? axis + x.rank : axis));
    return tf.squeeze(x, axes.length === 0 ? undefined : axes);
  },
  Fill: (tf, [dims, value]) => tf.fill(numbers(dims), numbers(value)[0], value.dtype),
  BroadcastTo: (tf, [x, shape]) => tf.broadcastTo(x, numbers(shape)),
  Tile: (tf, [x, multiples]) => tf.tile(x, numbers(multiples)),
  OneHot: (tf, [indices, depth, on, off], node) => {
    const rows = tf.oneHot(tf.cast(indices, 'int32'), numbers(depth)[0], numbers(on)[0], numbers(off)[0], on.dtype);
    const order = indices.shape.map((_, axis) => axis);
    const axis = scalar(node, 'axis');
    return tf.transpose(rows, axis === -1 ? [...order, indices.rank] : order.toSpliced(axis, 0, indices.rank));
  },
  Unpack: (tf, [x], node) => tf.unstack(x, scalar(node, 'axis')),
  SplitV: (tf, [x], node) => tf.split(x, integers(node, 'size_splits'), scalar(node, 'axis')),
  Pad: pad,
  PadV2: pad,
  MirrorPad: (tf, [x, paddings], node) =>
    tf.mirrorPad(x, pairs(paddings), (node.attributes.mode as string).toLowerCase() as 'reflect' | 'symmetric'),
  ClipByValue: (tf, [x, low, high]) => tf.clipByValue(x, numbers(low)[0], numbers(high)[0]),
  Conv2D: (tf, [x, filter], node) =>
    tf.conv2d(x as Images, filter as Images, middle(node, 'strides'), padding(node), 'NHWC', middle(node, 'dilations')),
  DepthwiseConv2dNative: (tf, [x, filter], node) =>
    tf.depthwiseConv2d(x as Images, filter as Images, middle(node, 'strides'), padding(node), 'NHWC', middle(node, 'dilations')),
  MaxPool: (tf, [x], node) => tf.maxPool(x as Images, middle(node, 'ksize'), middle(node, 'strides'), padding(node)),
  AvgPool: (tf, [x], node) => tf.avgPool(x as Images, middle(node, 'ksize'), middle(node, 'strides'), padding(node)),
  FusedBatchNormV3: (tf, [x, scale, offset, mean, variance], node) => {
    const isTraining = flag(node, 'is_training');
    const own = isTraining ? tf.moments(x, [0, 1, 2]) : { mean, variance };
    const y = tf.batchNorm(x, own.mean, own.variance, offset, scale, scalar(node, 'epsilon'));
    const [count, factor] = [x.size / mean.size, scalar(node, 'exponential_avg_factor')];
    const moving = (before: Tensor, now: Tensor): Tensor =>
      !isTraining || factor === 1 ? now : tf.add(tf.mul(before, 1 - factor), tf.mul(now, factor));
    const estimate = isTraining ? tf.mul(own.variance, count / Math.max(count - 1, 1)) : variance;
    return [y, moving(mean, own.mean), moving(variance, estimate), own.mean, own.variance, own.mean];
  },
  SparseSegmentSum: (tf, [x, indices, ids]) => tf.sparse.sparseSegmentSum(x, indices as tfjs.Tensor1D, ids as tfjs.Tensor1D),
  SparseSegmentMean: (tf, [x, indices, ids]) => tf.sparse.sparseSegmentMean(x, indices as tfjs.Tensor1D, ids as tfjs.Tensor1D),
  StringToHashBucketFast: (tf, [x], node) => tf.string.stringToHashBucketFast(x, scalar(node, 'num_buckets')),
  GatherNd: (tf, [x, indices]) => tf.gatherND(x, indices),
  Einsum: (tf, inputs, node) => {
    const { terms, result } = einsumLabels(node.attributes.equation as string);
    return einsum(tf, terms, inputs, result);
  },
};

type Images = tfjs.Tensor4D;

/** Along height and width. */
function middle(node: Parameters<Compute>[2], name: string): [number, number] {
  const [, height, width] = integers(node, name);
  return [height, width];
}

function padding(node: Parameters<Compute>[2]): 'same' | 'valid' {
  const name = (node.attributes.padding as string).toLowerCase() as 'same' | 'valid' | 'explicit';
  const [, , top, bottom, left, right] = integers(node, 'explicit_paddings');
  // Pools and convolutions take it; the declaration of maxPool does not say so.
  const explicit = [
    [0, 0],
    [top, bottom],
    [left, right],
    [0, 0],
  ] as unknown as 'valid';
  return name === 'explicit' ? explicit : name;
}

/** TensorFlow.js gives wrong shapes for labels that one term has alone: they are summed before. */
function einsum(tf: TensorFlow, terms: readonly string[], inputs: readonly Tensor[], result: string): Tensor {
  const isAlone = (label: string, k: number): boolean => !result.includes(label) && !terms.toSpliced(k, 1).join('').includes(label);
  const kept = terms.map((labels, k) =>
    Array.from(labels)
      .filter((label) => !isAlone(label, k))
      .join(''),
  );
  const summed = inputs.map((input, k) =>
    kept[k] === terms[k]
      ? input
      : tf.sum(
          input,
          Array.from(terms[k]).flatMap((label, axis) => (isAlone(label, k) ? [axis] : [])),
        ),
  );
  return kept.length === 1 && kept[0] === result ? summed[0] : tf.einsum(`${kept.join(',')}->${result}`, ...summed);
}

function fail(why: string): never {
  throw new ShoalError('usage', why);
}

function pairs(paddings: Tensor): [number, number][] {
  const flat = numbers(paddings);
  return Array.from({ length: flat.length / 2 }, (_, axis) => [flat[2 * axis], flat[2 * axis + 1]]);
}

/** The gradients of an operation's inputs: TensorFlow.js's, or one of these where it has none.
 *  @param computationOf undefined: there is no such operation here. */
export function kernelGradient(computationOf: (op: string) => Compute | undefined): Compute {
  return (tf, [dy, ...inputs], { attributes }) => {
    const { op, count, attributes: json } = attributes as { op: string; count: number; attributes: string };
    const compute = computationOf(op);
    if (compute === undefined) throw new ShoalError('unsupported', `there is no kernel of '${op}' that has a gradient`);
    const node = { attributes: JSON.parse(json) as Attributes };
    const forward = (...xs: Tensor[]): Tensor => first(compute(tf, [...xs, ...inputs.slice(count)], node));
    if (Object.hasOwn(gradients, op)) return gradients[op](tf, dy, inputs, node.attributes, forward);
    return tf.grads(forward)(inputs.slice(0, count), dy);
  };
}

type Gradient = (tf: TensorFlow, dy: Tensor, inputs: readonly Tensor[], attributes: Attributes, forward: (x: Tensor) => Tensor) => Tensor[];

/** Each element of the result is one of the input: the numbers of the elements show which. */
const moved: Gradient = (tf, dy, [x], _, forward) => {
  const places = forward(tf.reshape(tf.range(0, x.size, 1, 'int32'), x.shape));
  return [tf.reshape(tf.scatterND(tf.reshape(places, [-1, 1]), tf.reshape(dy, [-1]), [x.size]), x.shape)];
};

const gradients: Readonly<Record<string, Gradient>> = {
  StridedSlice: moved,
  GatherNd: moved,
  Tile: moved,
  MirrorPad: moved,
  SparseSegmentSum: (tf, dy, [x, indices, ids]) => [tf.scatterND(tf.expandDims(indices, 1), tf.gather(dy, ids), x.shape)],
  SparseSegmentMean: (tf, dy, [x, indices, ids]) => {
    const counts = tf.bincount(ids as tfjs.Tensor1D, tf.tensor1d([]), dy.shape[0]);
    const shares = tf.reshape(tf.gather(tf.cast(counts, 'float32'), ids), [-1, ...x.shape.slice(1).map(() => 1)]);
    return [tf.scatterND(tf.expandDims(indices, 1), tf.div(tf.gather(dy, ids), shares), x.shape)];
  },
  /** The term changes places with the result; labels that only this term has were summed, so that all their elements have one gradient. */
  Einsum: (tf, dy, inputs, { equation }) => {
    const { terms, result } = einsumLabels(equation as string);
    return inputs.map((input, k) => {
      const others = terms.toSpliced(k, 1);
      const known = Array.from(terms[k]).filter((label) => result.includes(label) || others.join('').includes(label));
      const part = einsum(tf, [result, ...others], [dy, ...inputs.toSpliced(k, 1)], known.join(''));
      const shape = Array.from(terms[k]).map((label, axis) => (known.includes(label) ? input.shape[axis] : 1));
      return tf.broadcastTo(tf.reshape(part, shape), input.shape);
    });
  },
};

function first(made: Tensor | readonly Tensor[]): Tensor {
  return Array.isArray(made) ? (made as readonly Tensor[])[0] : (made as Tensor);
}
