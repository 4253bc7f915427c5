/** Products of matrices. */
import type { GraphBuilder, NodeOptions } from '../structure/builder.ts';
import type { InferContext, OpDefinition } from '../structure/definition.ts';
import type { FloatDType, NumericDType } from '../structure/graph-dtype.ts';
import type { Output } from '../structure/graph-node.ts';
import { broadcastShapes, formatShape, mergeShapes, type Dimension } from '../structure/shape.ts';
import { anyType, define, defineOne, floating, numeric, op, type Binary } from './op.ts';

const no = { kind: 'bool', default: false } as const;

/** The product of two matrices, `[m, k]` and `[k, n]`; `transpose_a` and `transpose_b` turn them first. @throws ShoalError `usage` when
 *  the inner dimensions differ. */
export const matMul = op<Binary<NumericDType, { readonly transpose_a?: boolean; readonly transpose_b?: boolean }>>(
  defineOne('MatMul', { a: 'T', b: 'T' }, { ...numeric, transpose_a: no, transpose_b: no }, (context) => {
    const { ranked, flag } = context;
    return product(context, turned(ranked(0, 2), flag('transpose_a')), turned(ranked(1, 2), flag('transpose_b')));
  }),
);

/** Products of the matrices in the last two axes; the axes before broadcast. */
export const batchMatMul = op<Binary<NumericDType, { readonly adj_x?: boolean; readonly adj_y?: boolean }>>(
  defineOne('BatchMatMulV2', { x: 'T', y: 'T' }, { ...numeric, adj_x: no, adj_y: no }, (context) => {
    const [x, y] = context.inputs.map(({ shape }) => shape);
    if (x === 'unknown' || y === 'unknown') return 'unknown';
    if (x.length < 2 || y.length < 2) context.fail(`${formatShape(x)} and ${formatShape(y)} must have two dimensions or more`);
    const matrices = product(context, turned(x.slice(-2), context.flag('adj_x')), turned(y.slice(-2), context.flag('adj_y')));
    const batch = broadcastShapes(x.slice(0, -2), y.slice(0, -2));
    if (batch === undefined || batch === 'unknown') return context.fail(`${formatShape(x)} and ${formatShape(y)} do not broadcast`);
    return [...batch, ...matrices];
  }),
);

/** Adds a vector to every row, along the last axis. */
export const biasAdd = op<<D extends FloatDType>(g: GraphBuilder, value: Output<D>, bias: Output<D>, options?: NodeOptions) => Output<D>>(
  defineOne('BiasAdd', { value: 'T', bias: 'T' }, floating, ({ inputs: [{ shape }], ranked, fail }) => {
    const [length] = ranked(1, 1);
    if (shape === 'unknown') return shape;
    if (shape.length === 0) fail('value must have one dimension or more');
    const last = shape[shape.length - 1];
    if (last !== null && length !== null && last !== length) fail(`a bias of ${length} does not fit ${formatShape(shape)}`);
    return [...shape.slice(0, -1), last ?? length];
  }),
);

/** The labels of a term, `ij` of `ij,jk->ik`. */
export function einsumLabels(equation: string): { readonly terms: readonly string[]; readonly result: string } {
  const [left, result = ''] = equation.replaceAll(' ', '').split('->');
  return { terms: left.split(','), result };
}

/** The sizes of labels that several terms have must agree. */
/** Sums of products over named axes. */
export const einsum: OpDefinition = define(
  'Einsum',
  [{ name: 'inputs', dtype: 'T', isList: true, least: 1 }],
  { ...anyType, equation: { kind: 'string' } },
  ({ inputs, attributes, ranked, dtype, fail }) => {
    const equation = attributes.equation as string;
    const { terms, result } = einsumLabels(equation);
    if (!/^[A-Za-z ]+(,[A-Za-z ]+)*->[A-Za-z ]*$/.test(equation)) fail(`an equation like 'ij,jk->ik' is needed, not '${equation}'`);
    if (terms.length !== inputs.length) fail(`'${equation}' is about ${terms.length} inputs, not ${inputs.length}`);
    const sizes = new Map<string, Dimension>();
    terms.forEach((labels, input) => {
      ranked(input, labels.length).forEach((size, axis) => {
        const merged = mergeShapes([sizes.get(labels[axis]) ?? null], [size]) as readonly Dimension[] | undefined;
        sizes.set(labels[axis], (merged ?? fail(`'${labels[axis]}' is ${sizes.get(labels[axis])} and ${size}`))[0]);
      });
    });
    return [{ dtype: dtype('T'), shape: Array.from(result).map((label) => sizes.get(label) ?? null) }];
  },
);

function turned(dimensions: readonly Dimension[], isTurned: boolean): readonly Dimension[] {
  return isTurned ? [dimensions[1], dimensions[0]] : dimensions;
}

function product(
  { fail }: InferContext,
  [rows, inner]: readonly Dimension[],
  [other, columns]: readonly Dimension[],
): [Dimension, Dimension] {
  if (inner !== null && other !== null && inner !== other) {
    fail(`${formatShape([rows, inner])} times ${formatShape([other, columns])}: the inner dimensions differ`);
  }
  return [rows, columns];
}
