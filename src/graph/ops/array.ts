/** Values from outside, constants, and operations that move elements without computing. */
import { checkedBuilder } from '../structure/check-arguments.ts';
import type { GraphBuilder, NodeOptions } from '../structure/builder.ts';
import type { OutputSpec } from '../structure/definition.ts';
import { indexDTypes, type GraphDType, type IndexDType } from '../structure/graph-dtype.ts';
import type { Output } from '../structure/graph-node.ts';
import { exactCount, formatShape, mergeShapes, resolveAxis, type Dimension, type Shape } from '../structure/shape.ts';
import type { Value } from '../structure/value.ts';
import { define, anyType, checkedOptions, defineOne, firstShape, oneShape, op, splitOptions, type Unary } from './op.ts';

/** The operation of `placeholder`. */
export const placeholderDefinition = define(
  'Placeholder',
  {},
  { dtype: { kind: 'type' }, shape: { kind: 'shape', default: 'unknown' } },
  ({ dtype, attributes }) => [{ dtype: dtype('dtype'), shape: attributes.shape as Shape }],
);

/** A value that every step which needs it is fed. */
export function placeholder<D extends GraphDType>(g: GraphBuilder, dtype: D, shape: Shape, options: NodeOptions = {}): Output<D> {
  return checkedBuilder('placeholder', g).node(placeholderDefinition, [], { dtype, shape }, options).outputs[0] as Output<D>;
}

/** The operation of `constant`, for programs that add nodes by `g.node`. */
export const constantDefinition = define('Const', {}, { value: { kind: 'value' } }, ({ attributes }) => {
  const { dtype, shape } = attributes.value as Value;
  return [{ dtype: dtype as GraphDType, shape }];
});

/** Always the same value, which must not change. */
export function constant<D extends GraphDType = GraphDType>(
  g: GraphBuilder,
  value: Value & { readonly dtype: D },
  options: NodeOptions = {},
): Output<D> {
  return checkedBuilder('constant', g).node(constantDefinition, [], { value }, options).outputs[0] as Output<D>;
}

/** The value as it is; on another device, what brings it there. */
export const identity = op<Unary<GraphDType>>(defineOne('Identity', { input: 'T' }, {}, firstShape));

/** The value as it is, from which gradients do not go on. */
export const stopGradient = op<Unary<GraphDType>>({ ...identity.definition, name: 'StopGradient' });

/** The operation of `cast`. */
export const castDefinition = define(
  'Cast',
  { x: 'SrcT' },
  { SrcT: { kind: 'type' }, DstT: { kind: 'type' } },
  ({ inputs: [x], dtype }) => [{ dtype: dtype('DstT'), shape: x.shape }],
);

/** The elements as another dtype. */
export function cast<D extends GraphDType>(g: GraphBuilder, x: Output, dtype: D, options: NodeOptions = {}): Output<D> {
  return checkedBuilder('cast', g).node(castDefinition, [x], { DstT: dtype }, options).outputs[0] as Output<D>;
}

/** The elements in another shape; one dimension may be null: what is left. @throws ShoalError `usage` when the counts differ. */
export const reshape = op<Unary<GraphDType, { readonly shape: Shape }>>(
  defineOne('Reshape', { tensor: 'T' }, { shape: { kind: 'shape' } }, ({ inputs: [input], attributes, fail }) => {
    const shape = attributes.shape as Shape;
    const [from, to] = [exactCount(input.shape), exactCount(shape)];
    if (shape !== 'unknown' && shape.filter((dimension) => dimension === null).length > 1) fail('only one dimension may be left open');
    if (from !== undefined && to !== undefined && from !== to) {
      fail(`${formatShape(input.shape)} has ${from} elements, ${formatShape(shape)} has ${to}`);
    }
    if (from === undefined || to !== undefined || shape === 'unknown') return shape;
    const known = shape.reduce<number>((product, dimension) => product * (dimension ?? 1), 1);
    if (known === 0 || from % known !== 0) fail(`${formatShape(input.shape)} has ${from} elements and does not fit ${formatShape(shape)}`);
    return shape.map((dimension) => dimension ?? from / known);
  }),
);

/** Axes in the order `perm`: axis i of the result is axis `perm[i]` of `x`. @throws ShoalError `usage` for what is no permutation. */
export const transpose = op<Unary<GraphDType, { readonly perm: readonly number[] }>>(
  defineOne('Transpose', { x: 'T' }, { perm: { kind: 'list(int)' } }, ({ integers, ranked, fail }) => {
    const perm = integers('perm');
    const dimensions = ranked(0, perm.length);
    if ([...perm].sort((a, b) => a - b).some((axis, index) => axis !== index)) fail(`perm [${perm.join(', ')}] is no permutation`);
    return perm.map((axis) => dimensions[axis]);
  }),
);

/** A new axis of one element at `axis`; negative ones count from behind. */
export const expandDims = op<Unary<GraphDType, { readonly axis: number }>>(
  defineOne('ExpandDims', { input: 'T' }, { axis: { kind: 'int' } }, ({ inputs: [{ shape }], integer, fail }) => {
    if (shape === 'unknown') return shape;
    const axis = resolveAxis(integer('axis'), shape.length + 1) ?? fail(`axis ${integer('axis')} is outside ${formatShape(shape)}`);
    return shape.toSpliced(axis, 0, 1);
  }),
);

/** A size of -1 is the rest of its axis. */
export const slice = op<Unary<GraphDType, { readonly begin: readonly number[]; readonly size: readonly number[] }>>(
  defineOne('Slice', { input: 'T' }, { begin: { kind: 'list(int)' }, size: { kind: 'list(int)' } }, ({ integers, ranked, fail }) => {
    const [begin, size] = [integers('begin'), integers('size')];
    if (begin.length !== size.length) fail('begin and size have different lengths');
    return ranked(0, begin.length).map((dimension, axis): Dimension => {
      const [from, isRest] = [begin[axis], size[axis] === -1];
      const end = isRest ? dimension : from + size[axis];
      if (from < 0 || size[axis] < -1 || (dimension !== null && (from > dimension || (end ?? 0) > dimension)))
        fail(`[${from}, ${end ?? '?'}) is outside axis ${axis} of ${dimension ?? '?'}`);
      return isRest ? (dimension === null ? null : dimension - from) : size[axis];
    });
  }),
);

/** Tensors side by side along `axis`; negative ones count from behind. @throws ShoalError `usage` when they differ beside it. */
export const concat = op<
  <D extends GraphDType>(g: GraphBuilder, values: readonly Output<D>[], options: NodeOptions & { readonly axis: number }) => Output<D>
>(
  defineOne('ConcatV2', { values: 'T+' }, { axis: { kind: 'int' } }, ({ inputs, integer, fail }) => {
    const known = inputs.map(({ shape }) => shape).filter((shape) => shape !== 'unknown');
    if (known.length === 0) return 'unknown';
    const rank = known[0].length;
    const axis = resolveAxis(integer('axis'), rank) ?? fail(`axis ${integer('axis')} is outside ${formatShape(known[0])}`);
    let rest: Shape = known[0].toSpliced(axis, 1);
    for (const shape of known) {
      const next: Shape | undefined = shape.length === rank ? mergeShapes(rest, shape.toSpliced(axis, 1)) : undefined;
      rest = next ?? fail(`${formatShape(known[0])} and ${formatShape(shape)} differ beside axis ${axis}`);
    }
    const along = known.map((shape) => shape[axis]);
    const sum = known.length < inputs.length || along.includes(null) ? null : along.reduce<number>((total, each) => total + (each ?? 0), 0);
    return (rest as readonly Dimension[]).toSpliced(axis, 0, sum);
  }),
);

/** Several tensors of one shape as one with a new axis, by default the first. */
export const pack = op<
  <D extends GraphDType>(g: GraphBuilder, values: readonly Output<D>[], options?: NodeOptions & { readonly axis?: number }) => Output<D>
>(
  defineOne('Pack', { values: 'T+' }, { axis: { kind: 'int', default: 0 } }, (context) => {
    const { inputs, integer, fail } = context;
    const shape = oneShape(context);
    if (shape === 'unknown') return shape;
    const axis = resolveAxis(integer('axis'), shape.length + 1) ?? fail(`axis ${integer('axis')} is outside ${formatShape(shape)}`);
    return shape.toSpliced(axis, 0, inputs.length);
  }),
);

/** The operation of `split`. */
export const splitDefinition = define(
  'Split',
  { value: 'T' },
  { ...anyType, num_split: { kind: 'int', least: 1 }, axis: { kind: 'int', default: 0 } },
  ({ inputs: [{ dtype, shape }], integer, fail }) => {
    const parts = integer('num_split');
    const each = (part: Shape): OutputSpec[] => Array.from({ length: parts }, () => ({ dtype, shape: part }));
    if (shape === 'unknown') return each(shape);
    const axis = resolveAxis(integer('axis'), shape.length) ?? fail(`axis ${integer('axis')} is outside ${formatShape(shape)}`);
    const whole = shape[axis];
    if (whole !== null && whole % parts !== 0) fail(`axis ${axis} of ${formatShape(shape)} does not split into ${parts}`);
    return each(shape.with(axis, whole === null ? null : whole / parts));
  },
);

/** Equal parts along `axis`. */
export function split<D extends GraphDType>(
  g: GraphBuilder,
  value: Output<D>,
  parts: number,
  options: NodeOptions & { readonly axis?: number } = {},
): readonly Output<D>[] {
  const { nodeOptions, attributes } = splitOptions(checkedOptions(splitDefinition, options));
  return checkedBuilder('split', g).node(splitDefinition, [value], { num_split: parts, ...attributes }, nodeOptions)
    .outputs as readonly Output<D>[];
}

/** The dimensions of a tensor, as a tensor. */
export const shapeOf = op<
  (g: GraphBuilder, input: Output, options?: NodeOptions & { readonly out_type?: IndexDType }) => Output<IndexDType>
>(
  define(
    'Shape',
    { input: 'T' },
    { ...anyType, out_type: { kind: 'type', default: 'int32', allowed: indexDTypes } },
    ({ inputs: [{ shape }], dtype }) => [{ dtype: dtype('out_type'), shape: shape === 'unknown' ? [null] : [shape.length] }],
  ),
);

/** The number of elements of a tensor. */
export const sizeOf = op<(g: GraphBuilder, input: Output, options?: NodeOptions) => Output<'int32'>>(
  define('Size', { input: 'T' }, anyType, () => [{ dtype: 'int32', shape: [] }]),
);

/** start, start + delta, … below limit. */
export const range = op<
  (g: GraphBuilder, start: Output<'int32'>, limit: Output<'int32'>, delta: Output<'int32'>, options?: NodeOptions) => Output<'int32'>
>(define('Range', { start: 'int32', limit: 'int32', delta: 'int32' }, {}, () => [{ dtype: 'int32', shape: [null] }]));

/** Zeros of the input's dtype and shape. */
export const zerosLike = op<Unary<GraphDType>>(defineOne('ZerosLike', { x: 'T' }, {}, firstShape));
