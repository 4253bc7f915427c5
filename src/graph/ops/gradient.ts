/** Operations of symbolic gradients beyond those of models, for shapes that are only known when a step runs. */
import type { GraphBuilder, NodeOptions } from '../structure/builder.ts';
import type { InferContext, OpDefinition, OutputSpec } from '../structure/definition.ts';
import { indexDTypes, type FloatDType, type GraphDType, type IndexDType } from '../structure/graph-dtype.ts';
import type { Output } from '../structure/graph-node.ts';
import type { Shape } from '../structure/shape.ts';
import { define, anyType, defineOne, firstShape, floating, inputsOf, op, type Binary, type Unary } from './op.ts';

type Like = <D extends GraphDType>(
  g: GraphBuilder,
  value: Output<D>,
  like: Output,
  options?: NodeOptions & { readonly axis?: readonly number[]; readonly keep_dims?: boolean },
) => Output<D>;

function likeSecond({ inputs: [value, like] }: InferContext): readonly OutputSpec[] {
  return [{ dtype: value.dtype, shape: like.shape }];
}

function like(name: string, attributes: OpDefinition['attributes'] = {}): OpDefinition {
  const inputs = inputsOf({ value: 'T', like: 'L' });
  return define(name, inputs, { ...anyType, L: { kind: 'type' }, ...attributes }, likeSecond);
}

/** Sums over the axes along which `like` was broadcast: the other way of broadcasting. */
export const sumLike = op<Like>(like('SumLike'));

/** The other way of a reduction of `like` over `axis`: its elements again along them. */
export const broadcastLike = op<Like>(
  like('BroadcastLike', { axis: { kind: 'list(int)', default: [] }, keep_dims: { kind: 'bool', default: false } }),
);

/** The same elements in the shape of `like`. */
export const reshapeLike = op<Like>(like('ReshapeLike'));

/** 1 / (number of elements of `x` over `axis`), a scalar. */
export const inverseCount = op<Unary<FloatDType, { readonly axis?: readonly number[] }>>(
  defineOne('InverseCount', { x: 'T' }, { ...floating, axis: { kind: 'list(int)', default: [] } }, () => []),
);

/** For each element of `x`, the product of the others over `axis`. */
export const otherProducts = op<Unary<FloatDType, { readonly axis?: readonly number[] }>>(
  defineOne('OtherProducts', { x: 'T' }, { ...floating, axis: { kind: 'list(int)', default: [] } }, firstShape),
);

/** `value` at `begin` in zeros of the shape of `like`: the other way of Slice. */
export const sliceGrad = op<
  <D extends GraphDType>(
    g: GraphBuilder,
    value: Output<D>,
    like: Output,
    options: NodeOptions & { readonly begin: readonly number[] },
  ) => Output<D>
>(like('SliceGrad', { begin: { kind: 'list(int)' } }));

/** Rows in zeros of the shape of `like`; a row that is named several times is a sum. */
export const slicesToDense = op<
  <D extends FloatDType>(g: GraphBuilder, values: Output<D>, indices: Output<IndexDType>, like: Output, options?: NodeOptions) => Output<D>
>({
  name: 'SlicesToDense',
  inputs: [
    { name: 'values', dtype: 'T' },
    { name: 'indices', dtype: 'Tindices' },
    { name: 'like', dtype: 'T', isCopied: true },
  ],
  attributes: { ...floating, Tindices: { kind: 'type', allowed: indexDTypes } },
  infer: ({ inputs: [values, , { shape }] }) => [{ dtype: values.dtype, shape }],
  isSparse: true,
});

/** The parts of `value` along `axis` as long as those of the inputs that were concatenated. */
export const concatGrad = op<
  <D extends GraphDType>(
    g: GraphBuilder,
    value: Output<D>,
    inputs: readonly Output<D>[],
    options: NodeOptions & { readonly axis: number },
  ) => Output<D> | readonly Output<D>[]
>(
  define('ConcatGrad', { value: 'T', inputs: 'T+' }, { ...anyType, axis: { kind: 'int' } }, ({ inputs: [value, ...inputs] }) =>
    inputs.map(({ shape }) => ({ dtype: value.dtype, shape })),
  ),
);

function activationGrad(name: string, second: string, attributes: OpDefinition['attributes'] = {}): OpDefinition {
  return define(name, { gradients: 'T', [second]: 'T' }, { ...floating, ...attributes }, likeSecond);
}

export const reluGrad = op<Binary<FloatDType>>(activationGrad('ReluGrad', 'features'));
export const leakyReluGrad = op<Binary<FloatDType, { readonly alpha: number }>>(
  activationGrad('LeakyReluGrad', 'features', { alpha: { kind: 'float', default: 0.2 } }),
);
/** gradients · y · (1 − y), of the sigmoid's output. */
export const sigmoidGrad = op<Binary<FloatDType>>(activationGrad('SigmoidGrad', 'y'));
/** gradients · (1 − y²), of the tanh's output. */
export const tanhGrad = op<Binary<FloatDType>>(activationGrad('TanhGrad', 'y'));
/** (gradients − Σ gradients · y) · y along the last axis, of the softmax's output. */
export const softmaxGrad = op<Binary<FloatDType>>(activationGrad('SoftmaxGrad', 'y'));

/** Values on top of those of the iterations before: gives the number of iterations, which carries them. 0 has none. */
export const historyPush = op<
  (g: GraphBuilder, history: Output<'int32'>, values: readonly Output[], options?: NodeOptions) => Output<'int32'>
>(define('HistoryPush', { history: 'int32', values: 'any*' }, {}, () => [{ dtype: 'int32', shape: [] }]));

/** The history without the last iteration, and the values of that. */
export const historyPop = define(
  'HistoryPop',
  { history: 'int32' },
  { output_types: { kind: 'list(type)' }, output_shapes: { kind: 'list(shape)' } },
  ({ attributes }) => {
    const [dtypes, shapes] = [attributes.output_types as readonly GraphDType[], attributes.output_shapes as readonly Shape[]];
    return [{ dtype: 'int32', shape: [] }, ...dtypes.map((dtype, k) => ({ dtype, shape: shapes[k] }))];
  },
);

/** The gradients that a kernel has itself, of the first `count` inputs of the operation `op`, whose attributes are JSON. */
export const kernelGrad = define(
  'KernelGrad',
  { dy: 'T', inputs: 'any+' },
  { ...floating, op: { kind: 'string' }, attributes: { kind: 'string' }, count: { kind: 'int', least: 1 } },
  ({ inputs, integer }) => inputs.slice(1, 1 + integer('count')).map(({ dtype, shape }) => ({ dtype, shape })),
);
