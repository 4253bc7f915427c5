/** The gradient of every operation that has one: gradients of the outputs in, gradients of the inputs out. Undefined: the output does
 *  not depend on that input, or only in steps. */
import { cast, concat, constant, pack, range, reshape, sizeOf, split, transpose, zerosLike } from '../ops/array.ts';
import { callDefinition, noGradient } from '../ops/call.ts';
import { merge, switchOn } from '../ops/control-flow.ts';
import { floatFunctions } from '../ops/float-functions.ts';
import * as grad from '../ops/gradient.ts';
import { div, equal, exp, floorDiv, log, less, logicalNot, mul, neg, pow, select, sign, sub } from '../ops/math.ts';
import { batchMatMul, matMul } from '../ops/matrix.ts';
import { sigmoid, softmax } from '../ops/nn.ts';
import { sum } from '../ops/reduction.ts';
import { dynamicPartition, dynamicStitch, gather } from '../ops/state.ts';
import type { GraphBuilder } from '../structure/builder.ts';
import type { CallFunction } from '../structure/definition.ts';
import { floatDTypes, type FloatDType, type IndexDType } from '../structure/graph-dtype.ts';
import { describeNode, type Node, type Output } from '../structure/graph-node.ts';
import { ShoalError } from '../../base/errors.ts';

export type Floats = Output<FloatDType>;

export interface RuleCall {
  readonly g: GraphBuilder;
  readonly node: Node;
  readonly inputs: readonly Floats[];
  readonly outputs: readonly Floats[];
  /** Gradients by output; undefined: nothing depends on it. */
  readonly gradients: readonly (Floats | undefined)[];
}

/** Rows of a table. */
export interface Rows {
  readonly values: Floats;
  readonly indices: Output<IndexDType>;
}

export type GradientRule = (call: RuleCall) => readonly (Floats | Rows | undefined)[];

/** A rule of operations with one output. */
type Chain = (call: Omit<RuleCall, 'gradients'> & { readonly dy: Floats; readonly y: Floats }) => readonly (Floats | Rows | undefined)[];

function chain(rule: Chain): GradientRule {
  return (call) => {
    const [dy] = call.gradients;
    return dy === undefined ? [] : rule({ ...call, dy, y: call.outputs[0] });
  };
}

function scalar(g: GraphBuilder, like: Floats, value: number): Floats {
  return constant(g, { dtype: like.dtype, shape: [], data: Float32Array.of(value) });
}

/** A rule of an operation that broadcasts its two inputs. */
function broadcasting(rule: (call: Parameters<Chain>[0]) => readonly [Floats, Floats]): GradientRule {
  return chain((call) => rule(call).map((gradient, index) => fitted(call.g, gradient, call.inputs[index])));
}

function fitted(g: GraphBuilder, gradient: Floats, input: Floats): Floats {
  const [from, to] = [gradient.shape, input.shape];
  const isSame =
    from !== 'unknown' && to !== 'unknown' && from.length === to.length && from.every((each, k) => each !== null && each === to[k]);
  return isSame ? gradient : grad.sumLike(g, gradient, input);
}

/** `x` where `condition`, else 0. */
function where(g: GraphBuilder, condition: Output<'bool'>, x: Floats): Floats {
  return select(g, condition, x, zerosLike(g, x));
}

const none: GradientRule = () => [];
const passing: GradientRule = chain(({ dy }) => [dy]);

const larger = (isMaximum: boolean): GradientRule =>
  broadcasting(({ g, inputs: [x, y], dy }) => {
    const isSecond = isMaximum ? less(g, x, y) : less(g, y, x);
    return [where(g, logicalNot(g, isSecond), dy), where(g, isSecond, dy)];
  });

/** @param factorOf of each element; undefined: 1. */
const reducing = (factorOf?: typeof grad.inverseCount): GradientRule =>
  chain(({ g, node, inputs: [x], dy }) => {
    const axis = node.attributes.axis as readonly number[];
    const spread = grad.broadcastLike(g, dy, x, { axis, keep_dims: node.attributes.keep_dims as boolean });
    return [factorOf === undefined ? spread : mul(g, spread, factorOf(g, x, { axis }))];
  });

/** A rule of operations that take a tensor apart; zeros for parts that nothing depends on. */
function joining(join: (call: RuleCall, parts: readonly Floats[]) => Floats): GradientRule {
  return (call) => {
    const { g, outputs, gradients } = call;
    if (gradients.every((each) => each === undefined)) return [];
    const parts = gradients.map((each, slot) => each ?? zerosLike(g, outputs[slot]));
    return [join(call, parts)];
  };
}

const joiningAlong: GradientRule = joining(({ g, node }, parts) => concat(g, parts, { axis: node.attributes.axis as number }));

/** The gradient goes to all elements that are as large as the result. */
const extreme: GradientRule = chain(({ g, node, inputs: [x], dy, y }) => {
  const options = { axis: node.attributes.axis as readonly number[], keep_dims: node.attributes.keep_dims as boolean };
  const isChosen = equal(g, x, grad.broadcastLike(g, y, x, options));
  const chosen = cast(g, isChosen, x.dtype);
  const share = div(g, dy, sum(g, chosen, options));
  return [mul(g, chosen, grad.broadcastLike(g, share, x, options))];
});

/** The last two axes the other way round, by a product with the flag set. */
function product(multiply: typeof matMul, [flagA, flagB]: readonly [string, string]): GradientRule {
  return chain(({ g, node, inputs: [a, b], dy }) => {
    const [turnedA, turnedB] = [node.attributes[flagA] as boolean, node.attributes[flagB] as boolean];
    const times = (x: Floats, y: Floats, first: boolean, second: boolean): Floats => multiply(g, x, y, { [flagA]: first, [flagB]: second });
    const da = turnedA ? times(b, dy, turnedB, true) : times(dy, b, false, !turnedB);
    const db = turnedB ? times(dy, a, true, turnedA) : times(a, dy, !turnedA, false);
    return [fitted(g, da, a), fitted(g, db, b)];
  });
}

/** Output 1 of the operation is the gradient per row. */
const softmaxLoss: GradientRule = ({ g, node, gradients: [dy, dGradient], outputs: [, gradient] }) => {
  if (dGradient !== undefined) throw new ShoalError('unsupported', `gradients: ${describeNode(node)}: of its second output`);
  return dy === undefined ? [] : [mul(g, reshape(g, dy, { shape: [null, 1] }), gradient)];
};

const callRule: GradientRule = ({ g, node, inputs, outputs, gradients }) => {
  const vjp = node.attributes.gradient as CallFunction | string;
  if (vjp === noGradient)
    throw new ShoalError('unsupported', `gradients: ${describeNode(node)} has no gradient; give it one: call(…, { gradient })`);
  const all = gradients.map((each, slot) => each ?? zerosLike(g, outputs[slot]));
  const isFloat = (input: Output): boolean => floatDTypes.includes(input.dtype as FloatDType);
  const wanted = inputs.filter(isFloat);
  const attributes = { function: vjp, output_types: wanted.map(({ dtype }) => dtype), output_shapes: wanted.map(({ shape }) => shape) };
  const made = g.node(callDefinition, [...inputs, ...all], attributes).outputs as readonly Floats[];
  let next = 0;
  return inputs.map((input) => (isFloat(input) ? made[next++] : undefined));
};

/** The kernel's own gradient, of the first inputs: as many as have one. */
const byKernel = (most: number): GradientRule =>
  chain(({ g, node: { op, inputs, attributes }, dy }) => {
    const count = Math.min(most, inputs.length);
    return g.node(grad.kernelGrad, [dy, ...inputs], { op, count, attributes: JSON.stringify(attributes) }).outputs as readonly Floats[];
  });

const rowsRead: GradientRule = chain(({ node, dy }) => [{ values: dy, indices: node.inputs[1] as Output<IndexDType> }]);

const two = (g: GraphBuilder, x: Floats): Floats => mul(g, x, scalar(g, x, 2));

/** Operations whose kernel has the gradient of the first input. */
const further = 'StridedSlice Tile Pad PadV2 MirrorPad ClipByValue GatherNd MaxPool AvgPool SparseSegmentSum SparseSegmentMean'.split(' ');

export const gradientRules: Readonly<Record<string, GradientRule>> = {
  Identity: passing,
  AddN: chain(({ inputs, dy }) => inputs.map(() => dy)),
  Neg: chain(({ g, dy }) => [neg(g, dy)]),
  Abs: chain(({ g, inputs: [x], dy }) => [mul(g, dy, sign(g, x))]),
  Sign: none,
  Square: chain(({ g, inputs: [x], dy }) => [mul(g, dy, two(g, x))]),
  Sqrt: chain(({ g, y, dy }) => [div(g, dy, two(g, y))]),
  Rsqrt: chain(({ g, inputs: [x], y, dy }) => [mul(g, dy, div(g, y, mul(g, x, scalar(g, x, -2))))]),
  Exp: chain(({ g, y, dy }) => [mul(g, dy, y)]),
  Log: chain(({ g, inputs: [x], dy }) => [div(g, dy, x)]),
  Relu: chain(({ g, inputs: [x], dy }) => [grad.reluGrad(g, dy, x)]),
  LeakyRelu: chain(({ g, node, inputs: [x], dy }) => [grad.leakyReluGrad(g, dy, x, { alpha: node.attributes.alpha as number })]),
  Sigmoid: chain(({ g, y, dy }) => [grad.sigmoidGrad(g, dy, y)]),
  Tanh: chain(({ g, y, dy }) => [grad.tanhGrad(g, dy, y)]),
  Softplus: chain(({ g, inputs: [x], dy }) => [mul(g, dy, sigmoid(g, x))]),
  Softmax: chain(({ g, y, dy }) => [grad.softmaxGrad(g, dy, y)]),
  LogSoftmax: chain(({ g, inputs: [x], dy }) => [sub(g, dy, mul(g, softmax(g, x), sum(g, dy, { axis: [-1], keep_dims: true })))]),

  AddV2: broadcasting(({ dy }) => [dy, dy]),
  Sub: broadcasting(({ g, dy }) => [dy, neg(g, dy)]),
  Mul: broadcasting(({ g, inputs: [x, y], dy }) => [mul(g, dy, y), mul(g, dy, x)]),
  RealDiv: broadcasting(({ g, inputs: [, y], y: z, dy }) => [div(g, dy, y), neg(g, mul(g, dy, div(g, z, y)))]),
  Pow: broadcasting(({ g, inputs: [x, y], y: z, dy }) => {
    // Where x is not above 0, the power does not depend on y smoothly.
    const isAbove = less(g, scalar(g, x, 0), x);
    const logarithm = where(g, isAbove, log(g, select(g, isAbove, x, exp(g, zerosLike(g, x)))));
    return [mul(g, dy, mul(g, y, pow(g, x, sub(g, y, scalar(g, y, 1))))), mul(g, dy, mul(g, z, logarithm))];
  }),
  FloorDiv: none,
  FloorMod: broadcasting(({ g, inputs: [x, y], dy }) => [dy, neg(g, mul(g, dy, floorDiv(g, x, y)))]),
  Maximum: larger(true),
  Minimum: larger(false),
  SquaredDifference: broadcasting(({ g, inputs: [x, y], dy }) => {
    const gradient = mul(g, dy, two(g, sub(g, x, y)));
    return [gradient, neg(g, gradient)];
  }),
  SelectV2: chain(({ g, node, inputs: [, x, y], dy }) => {
    const condition = node.inputs[0] as Output<'bool'>;
    return [undefined, fitted(g, where(g, condition, dy), x), fitted(g, where(g, logicalNot(g, condition), dy), y)];
  }),

  Cast: chain(({ g, inputs: [x], dy }) => (floatDTypes.includes(x.dtype) ? [cast(g, dy, x.dtype)] : [])),
  Reshape: chain(({ g, inputs: [x], dy }) => [grad.reshapeLike(g, dy, x)]),
  ExpandDims: chain(({ g, inputs: [x], dy }) => [grad.reshapeLike(g, dy, x)]),
  Transpose: chain(({ g, node, dy }) => {
    const perm = node.attributes.perm as readonly number[];
    return [transpose(g, dy, { perm: perm.map((_, axis) => perm.indexOf(axis)) })];
  }),
  Slice: chain(({ g, node, inputs: [x], dy }) => [grad.sliceGrad(g, dy, x, { begin: node.attributes.begin as readonly number[] })]),
  ConcatV2: chain(({ g, node, inputs, dy }) => {
    const parts = grad.concatGrad(g, dy, inputs, { axis: node.attributes.axis as number });
    return Array.isArray(parts) ? (parts as readonly Floats[]) : [parts as Floats];
  }),
  Pack: chain(({ g, node, inputs, dy }) =>
    split(g, dy, inputs.length, { axis: node.attributes.axis as number }).map((part, k) => grad.reshapeLike(g, part, inputs[k])),
  ),
  Split: joiningAlong,
  Shape: none,
  Size: none,
  ZerosLike: none,

  MatMul: product(matMul, ['transpose_a', 'transpose_b']),
  BatchMatMulV2: product(batchMatMul, ['adj_x', 'adj_y']),
  BiasAdd: chain(({ g, inputs: [, bias], dy }) => [dy, grad.sumLike(g, dy, bias)]),

  Sum: reducing(),
  Mean: reducing(grad.inverseCount),
  Max: extreme,
  Min: extreme,
  Prod: reducing(grad.otherProducts),
  ArgMax: none,

  L2Loss: chain(({ g, inputs: [t], dy }) => [mul(g, t, dy)]),
  SigmoidCrossEntropyWithLogits: chain(({ g, inputs: [labels, logits], dy }) => [
    neg(g, mul(g, dy, logits)),
    mul(g, dy, sub(g, sigmoid(g, logits), labels)),
  ]),
  SoftmaxCrossEntropyWithLogits: softmaxLoss,
  SparseSoftmaxCrossEntropyWithLogits: softmaxLoss,

  Switch: joining(({ g }, parts) => merge(g, parts)[0]),
  Merge: chain(({ g, node, inputs, dy }) => {
    const branches = inputs.map((input) => g.branchOf(input.node));
    const [first] = branches;
    if (first === undefined) throw new ShoalError('unsupported', `gradients: ${describeNode(node)} is of no \`cond\` or \`whileLoop\``);
    const sides = switchOn(g, dy, first.pred);
    return branches.map((branch) => branch && sides[branch.side]);
  }),
  SlicesToDense: chain(({ g, node, dy }) => [gather(g, dy, node.inputs[1] as Output<IndexDType>)]),

  GatherV2: rowsRead,
  KvResourceGather: rowsRead,
  DynamicStitch: chain(({ g, node, dy }) => {
    const half = node.inputs.length / 2;
    const indices = node.inputs.slice(0, half) as readonly Output<'int32'>[];
    return [...indices.map(() => undefined), ...indices.map((each) => gather(g, dy, each))];
  }),
  /** Rows that were taken apart are put together by their numbers. */
  DynamicPartition: joining(({ g, node, inputs: [data] }, parts) => {
    const partitions = node.inputs[1] as Output<'int32'>;
    const number = (value: number): Output<'int32'> => constant(g, { dtype: 'int32', shape: [], data: Int32Array.of(value) });
    const numbers = grad.reshapeLike(g, range(g, number(0), sizeOf(g, partitions), number(1)), partitions);
    const rows = dynamicStitch(g, dynamicPartition(g, numbers, partitions, parts.length), parts);
    return grad.reshapeLike(g, rows, data);
  }),
  Call: callRule,

  ...Object.fromEntries([...floatFunctions, ...further].map((name) => [name, byKernel(1)])),
  Conv2D: byKernel(2),
  DepthwiseConv2dNative: byKernel(2),
  FusedBatchNormV3: byKernel(3),
  Einsum: byKernel(Infinity),
  StopGradient: none,
  OneHot: none,
  Squeeze: chain(({ g, inputs: [x], dy }) => [grad.reshapeLike(g, dy, x)]),
  Fill: chain(({ g, inputs: [, value], dy }) => [undefined, grad.sumLike(g, dy, value)]),
  BroadcastTo: chain(({ g, inputs: [x], dy }) => [grad.sumLike(g, dy, x)]),
  Unpack: joining(({ g, node }, parts) => pack(g, parts, { axis: node.attributes.axis as number })),
  SplitV: joiningAlong,
  IdentityN: ({ gradients }) => gradients,
};
