/** Operations of imported graphs that choose, repeat and place elements. Inputs and attributes are TensorFlow's. */
import type { Fail, InferContext, OpDefinition, OutputSpec } from '../structure/definition.ts';
import { indexDTypes } from '../structure/graph-dtype.ts';
import { formatShape, resolveAxis, type Dimension, type Shape } from '../structure/shape.ts';
import { anyType, define, defineOne } from './op.ts';

const index = { kind: 'type', allowed: indexDTypes } as const;
const mask = { kind: 'int', default: 0 } as const;
const masks = { begin_mask: mask, end_mask: mask, ellipsis_mask: mask, new_axis_mask: mask, shrink_axis_mask: mask };

/** The same element everywhere. */
export const fillDefinition = defineOne('Fill', { dims: 'index_type', value: 'T' }, { index_type: index }, (context) =>
  shapeOfConstant(context, 0),
);

/** The different elements, in the order of their first occurrence, and where each element is among them. */
export const uniqueDefinition = define(
  'Unique',
  { x: 'T' },
  { ...anyType, out_idx: { ...index, default: 'int32' } },
  ({ inputs: [x], ranked, dtype }) => [
    { dtype: x.dtype, shape: [null] },
    { dtype: dtype('out_idx'), shape: ranked(0, 1) },
  ],
);

/** Operations that programs add by `g.node`. */
export const shapingOps: readonly OpDefinition[] = [
  defineOne('StridedSlice', { input: 'T', begin: 'Index', end: 'Index', strides: 'Index' }, { Index: index, ...masks }, (context) => {
    const { inputs, constant, integer, fail } = context;
    const [begin, end, strides] = [1, 2, 3].map(constant);
    const [{ shape }] = inputs;
    if (shape === 'unknown' || begin === undefined || end === undefined || strides === undefined) return 'unknown';
    return stridedShape({ shape, entries: [begin, end, strides], masks: integer, fail });
  }),
  defineOne('Squeeze', { input: 'T' }, { squeeze_dims: { kind: 'list(int)', default: [] } }, squeezedShape),
  defineOne('BroadcastTo', { input: 'T', shape: 'Tidx' }, { Tidx: index }, (context) => shapeOfConstant(context, 1)),
  defineOne('Tile', { input: 'T', multiples: 'Tmultiples' }, { Tmultiples: index }, ({ inputs: [{ shape }], constant, fail }) => {
    const times = constant(1);
    if (shape === 'unknown') return shape;
    if (times !== undefined && times.length !== shape.length) fail(`${times.length} multiples do not fit ${formatShape(shape)}`);
    return shape.map((dimension, axis) => (dimension === null || times === undefined ? null : dimension * times[axis]));
  }),
  defineOne(
    'OneHot',
    { indices: 'TI', depth: 'int32', on_value: 'T', off_value: 'T' },
    { TI: { kind: 'type' }, axis: { kind: 'int', default: -1 } },
    ({ inputs: [{ shape }], constant, integer, fail }) => {
      if (shape === 'unknown') return shape;
      const axis = resolveAxis(integer('axis'), shape.length + 1) ?? fail(`axis ${integer('axis')} is outside ${formatShape(shape)}`);
      return shape.toSpliced(axis, 0, constant(1)?.[0] ?? null);
    },
  ),
  define('Unpack', { value: 'T' }, { ...anyType, num: { kind: 'int', least: 0 }, axis: { kind: 'int', default: 0 } }, (context) => {
    const [size, rest] = withoutAxis(context);
    const count = context.integer('num');
    if (size !== null && size !== count) context.fail(`an axis of ${size} is not unpacked into ${count}`);
    return Array.from({ length: count }, () => ({ dtype: context.dtype('T'), shape: rest }));
  }),
  define('SplitV', { value: 'T' }, { ...anyType, size_splits: { kind: 'list(int)' }, axis: { kind: 'int', default: 0 } }, splitParts),
  ...['Pad', 'PadV2', 'MirrorPad'].map((name) =>
    defineOne(
      name,
      { input: 'T', paddings: 'Tpaddings', ...(name === 'PadV2' && { constant_values: 'T' }) },
      { Tpaddings: index, ...(name === 'MirrorPad' && { mode: { kind: 'string' } }) },
      ({ inputs: [{ shape }], constant, fail }) => {
        const paddings = constant(1);
        if (shape === 'unknown') return shape;
        if (paddings !== undefined && paddings.length !== 2 * shape.length)
          fail(`paddings of ${paddings.length / 2} axes do not fit ${formatShape(shape)}`);
        return shape.map((dimension, axis) =>
          dimension === null || paddings === undefined ? null : dimension + paddings[2 * axis] + paddings[2 * axis + 1],
        );
      },
    ),
  ),
  defineOne('ClipByValue', { t: 'T', clip_value_min: 'T', clip_value_max: 'T' }, {}, ({ inputs: [{ shape }] }) => shape),
  define(
    'GatherNd',
    { params: 'Tparams', indices: 'Tindices' },
    { Tparams: { kind: 'type' }, Tindices: index },
    ({ inputs: [{ dtype, shape }, indices], fail }) => {
      const depth = indices.shape === 'unknown' ? null : (indices.shape.at(-1) ?? null);
      if (shape === 'unknown' || indices.shape === 'unknown' || depth === null) return [{ dtype, shape: 'unknown' }];
      if (depth > shape.length) fail(`indices of ${depth} axes do not fit ${formatShape(shape)}`);
      return [{ dtype, shape: [...indices.shape.slice(0, -1), ...shape.slice(depth)] }];
    },
  ),
  define('Where', { condition: 'T' }, anyType, ({ inputs: [{ shape }] }) => [
    { dtype: 'int64', shape: [null, shape === 'unknown' ? null : shape.length] },
  ]),
  define('IdentityN', [{ name: 'input', dtype: 'any', isList: true }], {}, ({ inputs }) =>
    inputs.map(({ dtype, shape }) => ({ dtype, shape })),
  ),
];

/** A shape that is an input: its elements, or at least how many there are. */
export function shapeOfConstant({ constant, ranked }: InferContext, input: number): Shape {
  const [rank] = ranked(input, 1);
  return constant(input) ?? (rank === null ? 'unknown' : Array.from({ length: rank }, () => null));
}

/** The size along `axis`, and the shape beside it. */
function withoutAxis({ inputs: [{ shape }], integer, fail }: InferContext): readonly [Dimension, Shape] {
  if (shape === 'unknown') return [null, shape];
  const axis = resolveAxis(integer('axis'), shape.length) ?? fail(`axis ${integer('axis')} is outside ${formatShape(shape)}`);
  return [shape[axis], shape.toSpliced(axis, 1)];
}

/** One size may be -1: what is left. */
function splitParts(context: InferContext): readonly OutputSpec[] {
  const { inputs, integers, integer, dtype, fail } = context;
  const [size] = withoutAxis(context);
  const [{ shape }] = inputs;
  const sizes = integers('size_splits');
  const known = sizes.reduce((sum, each) => sum + Math.max(each, 0), 0);
  const isOpen = sizes.includes(-1);
  if (size !== null && (isOpen ? known > size : known !== size)) fail(`parts of ${sizes.join(', ')} do not fit an axis of ${size}`);
  const left = size === null ? null : size - known;
  return sizes.map((each) => ({
    dtype: dtype('T'),
    shape: shape === 'unknown' ? shape : shape.with(integer('axis'), each === -1 ? left : each),
  }));
}

function squeezedShape({ inputs: [{ shape }], integers, fail }: InferContext): Shape {
  const axes = integers('squeeze_dims');
  if (shape === 'unknown' || (axes.length === 0 && shape.includes(null))) return 'unknown';
  const outside = (axis: number): never => fail(`axis ${axis} is outside ${formatShape(shape)}`);
  const gone = new Set(axes.map((axis) => resolveAxis(axis, shape.length) ?? outside(axis)));
  for (const axis of gone) if ((shape[axis] ?? 1) !== 1) fail(`axis ${axis} of ${formatShape(shape)} has more than one element`);
  return shape.filter((dimension, axis) => (gone.size === 0 ? dimension !== 1 : !gone.has(axis)));
}

/** Attributes of a StridedSlice. */
interface Strided {
  readonly shape: readonly Dimension[];
  readonly entries: readonly [begin: readonly number[], end: readonly number[], strides: readonly number[]];
  /** The bits of a mask by its name; bit k is about entry k of begin, end and strides. */
  readonly masks: (name: string) => number;
  readonly fail: Fail;
}

/** The shape of the result of a StridedSlice. */
export function stridedShape({ shape: dimensions, entries: [begin, end, strides], masks: maskOf, fail }: Strided): readonly Dimension[] {
  const has = (name: string, k: number): boolean => ((maskOf(name) >> k) & 1) === 1;
  const isNew = (k: number): boolean => has('new_axis_mask', k) && !has('ellipsis_mask', k);
  const taken = begin.filter((_, k) => !isNew(k) && !has('ellipsis_mask', k)).length;
  if (taken > dimensions.length) fail(`${taken} indices are too many for ${formatShape(dimensions)}`);
  const lengthOf = (dimension: number, k: number): number => {
    const stride = strides[k];
    if (stride === 0) fail('a stride is 0');
    const [low, high] = stride > 0 ? [0, dimension] : [-1, dimension - 1];
    const clamped = (at: number): number => Math.min(Math.max(at < 0 ? at + dimension : at, low), high);
    const from = has('begin_mask', k) ? (stride > 0 ? low : high) : clamped(begin[k]);
    const to = has('end_mask', k) ? (stride > 0 ? high : low) : clamped(end[k]);
    return Math.max(0, Math.ceil((to - from) / stride));
  };
  const result: Dimension[] = [];
  let axis = 0;
  for (let k = 0; k < begin.length; k++) {
    if (has('ellipsis_mask', k)) for (let left = dimensions.length - taken; left > 0; left--) result.push(dimensions[axis++]);
    else if (isNew(k)) result.push(1);
    else {
      const dimension = dimensions[axis++];
      if (!has('shrink_axis_mask', k)) result.push(dimension === null ? null : lengthOf(dimension, k));
      else if (dimension !== null && resolveAxis(begin[k], dimension) === undefined)
        fail(`index ${begin[k]} is outside axis ${axis - 1} of ${formatShape(dimensions)}`);
    }
  }
  return [...result, ...dimensions.slice(axis)];
}
