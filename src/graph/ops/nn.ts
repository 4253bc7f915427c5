/** Activations and losses. */
import type { GraphBuilder, NodeOptions } from '../structure/builder.ts';
import type { InferContext, OpDefinition, OutputSpec } from '../structure/definition.ts';
import { indexDTypes, type FloatDType, type IndexDType } from '../structure/graph-dtype.ts';
import type { Output } from '../structure/graph-node.ts';
import { formatShape, scalar, type Shape } from '../structure/shape.ts';
import { define, defineOne, firstShape, floating, oneShape, op, type Binary, type Unary } from './op.ts';

function activation(name: string, attributes: OpDefinition['attributes'] = floating): OpDefinition {
  return defineOne(name, { features: 'T' }, attributes, firstShape);
}

/** max(x, 0), element by element; floats. */
export const relu = op<Unary<FloatDType>>(activation('Relu'));
/** σ(x) = 1 / (1 + e⁻ˣ), element by element; floats. */
export const sigmoid = op<Unary<FloatDType>>(activation('Sigmoid'));
/** The hyperbolic tangent, element by element; floats. */
export const tanh = op<Unary<FloatDType>>(activation('Tanh'));
/** log(1 + eˣ), element by element; floats. */
export const softplus = op<Unary<FloatDType>>(activation('Softplus'));
/** eˣ over its sum along the last axis; floats. */
export const softmax = op<Unary<FloatDType>>(activation('Softmax'));
/** The logarithm of `softmax`, along the last axis; floats. */
export const logSoftmax = op<Unary<FloatDType>>(activation('LogSoftmax'));
/** x where x > 0, `alpha · x` elsewhere; floats. Default alpha 0.2. */
export const leakyRelu = op<Unary<FloatDType, { readonly alpha?: number }>>(
  activation('LeakyRelu', { ...floating, alpha: { kind: 'float', default: 0.2 } }),
);

/** Half the sum of squares. */
export const l2Loss = op<Unary<FloatDType>>(defineOne('L2Loss', { t: 'T' }, floating, () => scalar));

/** −labels·log σ(logits) − (1 − labels)·log(1 − σ(logits)), element by element. */
export const sigmoidCrossEntropyWithLogits = op<Binary<FloatDType>>(
  defineOne('SigmoidCrossEntropyWithLogits', { labels: 'T', logits: 'T' }, floating, oneShape),
);

type Loss = <D extends FloatDType>(g: GraphBuilder, features: Output<D>, labels: Output<D>, options?: NodeOptions) => LossAndGradient<D>;
type LossAndGradient<D extends FloatDType> = readonly [Output<D>, Output<D>];

/** The loss of every row, and its gradient for the logits. */
export const softmaxCrossEntropyWithLogits = op<Loss>(
  define('SoftmaxCrossEntropyWithLogits', { features: 'T', labels: 'T' }, floating, (context) =>
    lossAndGradient(context, oneShape(context)),
  ),
);

/** The same for labels that are numbers of classes. */
export const sparseSoftmaxCrossEntropyWithLogits = op<
  <D extends FloatDType>(g: GraphBuilder, features: Output<D>, labels: Output<IndexDType>, options?: NodeOptions) => LossAndGradient<D>
>(
  define(
    'SparseSoftmaxCrossEntropyWithLogits',
    { features: 'T', labels: 'Tlabels' },
    { ...floating, Tlabels: { kind: 'type', allowed: indexDTypes } },
    (context) => {
      const [rows, classes] = context.ranked(0, 2);
      const [labels] = context.ranked(1, 1);
      if (rows !== null && labels !== null && rows !== labels) context.fail(`${rows} rows, but ${labels} labels`);
      return lossAndGradient(context, [rows ?? labels, classes]);
    },
  ),
);

function lossAndGradient({ dtype, fail }: InferContext, shape: Shape): readonly OutputSpec[] {
  if (shape !== 'unknown' && shape.length !== 2) fail(`features must have 2 dimensions, not ${formatShape(shape)}`);
  return [
    { dtype: dtype('T'), shape: shape === 'unknown' ? [null] : [shape[0]] },
    { dtype: dtype('T'), shape },
  ];
}
