/** Sums and the like over axes. */
import type { GraphBuilder, NodeOptions } from '../structure/builder.ts';
import type { Fail, OpDefinition } from '../structure/definition.ts';
import { indexDTypes, type IndexDType, type NumericDType } from '../structure/graph-dtype.ts';
import type { Output } from '../structure/graph-node.ts';
import { formatShape, resolveAxis, type Shape } from '../structure/shape.ts';
import { define, defineOne, numeric, op, type Unary } from './op.ts';

interface ReductionAttributes {
  /** Default: all. */
  readonly axis?: readonly number[];
  /** Reduced axes stay, with one element. */
  readonly keep_dims?: boolean;
}

function reduction(name: string): OpDefinition {
  const attributes = { ...numeric, axis: { kind: 'list(int)', default: [] }, keep_dims: { kind: 'bool', default: false } } as const;
  return defineOne(name, { input: 'T' }, attributes, ({ inputs: [{ shape }], integers, flag, fail }) =>
    reduced(shape, integers('axis'), flag('keep_dims'), fail),
  );
}

/** The sum over `axis`, by default over all; with `keep_dims` reduced axes stay, with one element. */
export const sum = op<Unary<NumericDType, ReductionAttributes>>(reduction('Sum'));
/** The mean over `axis`; as `sum`. */
export const mean = op<Unary<NumericDType, ReductionAttributes>>(reduction('Mean'));
/** The largest over `axis`; as `sum`. */
export const max = op<Unary<NumericDType, ReductionAttributes>>(reduction('Max'));
/** The smallest over `axis`; as `sum`. */
export const min = op<Unary<NumericDType, ReductionAttributes>>(reduction('Min'));
/** The product over `axis`; as `sum`. */
export const prod = op<Unary<NumericDType, ReductionAttributes>>(reduction('Prod'));

/** The index of the largest element along `axis`. */
export const argMax = op<
  (g: GraphBuilder, input: Output<NumericDType>, options?: NodeOptions & { axis?: number; output_type?: IndexDType }) => Output<IndexDType>
>(
  define(
    'ArgMax',
    { input: 'T' },
    { ...numeric, axis: { kind: 'int', default: 0 }, output_type: { kind: 'type', default: 'int64', allowed: indexDTypes } },
    ({ inputs: [{ shape }], integer, dtype, fail }) => [
      { dtype: dtype('output_type'), shape: reduced(shape, [integer('axis')], false, fail) },
    ],
  ),
);

function reduced(shape: Shape, axes: readonly number[], keepDims: boolean, fail: Fail): Shape {
  if (shape === 'unknown') return axes.length === 0 && !keepDims ? [] : shape;
  const gone = new Set(axes.map((axis) => resolveAxis(axis, shape.length) ?? fail(`axis ${axis} is outside ${formatShape(shape)}`)));
  const isGone = (axis: number): boolean => axes.length === 0 || gone.has(axis);
  return keepDims ? shape.map((dimension, axis) => (isGone(axis) ? 1 : dimension)) : shape.filter((_, axis) => !isGone(axis));
}
