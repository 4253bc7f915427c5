/** Variables and sparse tables. A variable's output is a reference; operations that change it run on its device. */
import { checkedBuilder, checkOutputs } from '../structure/check-arguments.ts';
import type { GraphBuilder, NodeOptions } from '../structure/builder.ts';
import type { Fail, InferContext, InputSpec, OpDefinition, OutputSpec } from '../structure/definition.ts';
import { indexDTypes, type GraphDType, type IndexDType, type NumericDType } from '../structure/graph-dtype.ts';
import type { Output } from '../structure/graph-node.ts';
import { formatShape, mergeShapes, type Dimension, type Shape } from '../structure/shape.ts';
import { define, anyType, inputsOf, numeric, op, type Binary } from './op.ts';

const ref: InputSpec = { name: 'ref', dtype: 'T', isRef: true };
const indexed = { ...anyType, Tindices: { kind: 'type', allowed: indexDTypes } } as const;

/** The operation of `variable`. */
export const variableDefinition: OpDefinition = {
  name: 'VariableV2',
  inputs: [],
  attributes: { dtype: { kind: 'type' }, shape: { kind: 'shape' } },
  infer: ({ dtype, attributes }) => [{ dtype: dtype('dtype'), shape: attributes.shape as Shape, isRef: true }],
  isStateful: true,
};

/** A value that stays from step to step, by the node's name. */
export function variable<D extends GraphDType>(g: GraphBuilder, dtype: D, shape: Shape, options: NodeOptions = {}): Output<D> {
  return checkedBuilder('variable', g).node(variableDefinition, [], { dtype, shape }, options).outputs[0] as Output<D>;
}

function assignment(name: string, attributes: OpDefinition['attributes']): OpDefinition {
  return { name, inputs: [ref, { name: 'value', dtype: 'T' }], attributes, infer: sameAsVariable, isStateful: true };
}

/** Overwrites a variable with a value of its dtype and shape, on the variable's device; gives the variable. The first write makes it
 *  usable. */
export const assign = op<Binary<GraphDType>>(assignment('Assign', anyType));
/** variable += value; gives the variable. */
export const assignAdd = op<Binary<NumericDType>>(assignment('AssignAdd', numeric));
/** variable −= value; gives the variable. */
export const assignSub = op<Binary<NumericDType>>(assignment('AssignSub', numeric));

type Gather = <D extends GraphDType>(g: GraphBuilder, params: Output<D>, indices: Output<IndexDType>, options?: NodeOptions) => Output<D>;

/** Rows of a table: `params[indices]`. */
export const gather = op<Gather>({
  name: 'GatherV2',
  inputs: [
    { name: 'params', dtype: 'T', isCopied: true },
    { name: 'indices', dtype: 'Tindices' },
  ],
  attributes: indexed,
  infer: ({ inputs: [params, indices], fail }) => {
    if (params.shape !== 'unknown' && params.shape.length === 0) fail('params must have rows');
    const shape = params.shape === 'unknown' || indices.shape === 'unknown' ? 'unknown' : [...indices.shape, ...params.shape.slice(1)];
    return [{ dtype: params.dtype, shape }];
  },
  isSparse: true,
});

function scatter(name: string, attributes: OpDefinition['attributes']): OpDefinition {
  const inputs = [ref, ...inputsOf({ indices: 'Tindices', updates: 'T' })];
  const infer = (context: InferContext): readonly OutputSpec[] => changedRows(context.inputs, 'updates have', context.fail);
  return { name, inputs, attributes, infer, isStateful: true, isSparse: true };
}

type Scatter<In extends GraphDType> = <D extends In>(
  g: GraphBuilder,
  ref: Output<D>,
  indices: Output<IndexDType>,
  updates: Output<D>,
  options?: NodeOptions,
) => Output<D>;

/** Overwrites rows: `variable[indices[k]] = updates[k]`; gives the variable. */
export const scatterUpdate = op<Scatter<GraphDType>>(scatter('ScatterUpdate', indexed));
/** Adds to rows: `variable[indices[k]] += updates[k]`, also when a row is named several times; gives the variable. */
export const scatterAdd = op<Scatter<NumericDType>>(scatter('ScatterAdd', { ...indexed, ...numeric }));
/** Subtracts from rows: `variable[indices[k]] −= updates[k]`, also when a row is named several times; gives the variable. */
export const scatterSub = op<Scatter<NumericDType>>(scatter('ScatterSub', { ...indexed, ...numeric }));

/** The operation of `dynamicPartition`. */
export const partitionDefinition = define(
  'DynamicPartition',
  { data: 'T', partitions: 'int32' },
  { ...anyType, num_partitions: { kind: 'int', least: 1 } },
  ({ inputs: [data, partitions], integer, fail }) => {
    const parts = (shape: Shape): OutputSpec[] => Array.from({ length: integer('num_partitions') }, () => ({ dtype: data.dtype, shape }));
    if (data.shape === 'unknown' || partitions.shape === 'unknown') return parts('unknown');
    const { length } = partitions.shape;
    if (mergeShapes(data.shape.slice(0, length), partitions.shape) === undefined)
      fail(`partitions of ${formatShape(partitions.shape)} do not fit data of ${formatShape(data.shape)}`);
    return parts([null, ...data.shape.slice(length)]);
  },
);

/** The rows of `data` whose entry in `partitions` is k, in output k, in their order. */
export function dynamicPartition<D extends GraphDType>(
  g: GraphBuilder,
  data: Output<D>,
  partitions: Output<'int32'>,
  count: number,
  options: NodeOptions = {},
): readonly Output<D>[] {
  return checkedBuilder('dynamicPartition', g).node(partitionDefinition, [data, partitions], { num_partitions: count }, options)
    .outputs as readonly Output<D>[];
}

/** The operation of `dynamicStitch`. */
export const stitchDefinition = define(
  'DynamicStitch',
  [{ name: 'indices_and_data', dtype: 'any', isList: true, least: 2 }],
  anyType,
  ({ inputs, dtype, fail }) => {
    const half = inputs.length / 2;
    if (!Number.isInteger(half)) fail('takes as many indices as data');
    let rest: Shape = 'unknown';
    inputs.slice(0, half).forEach((indices, k) => {
      const data = inputs[half + k];
      if (indices.dtype !== 'int32' || data.dtype !== dtype('T'))
        fail(`indices are int32 and data ${dtype('T')}, not ${indices.dtype} and ${data.dtype}`);
      if (indices.shape === 'unknown' || data.shape === 'unknown') return;
      const own = data.shape.slice(indices.shape.length);
      rest = mergeShapes(rest, own) ?? fail(`rows of ${formatShape(own)} and of ${formatShape(rest)} in one tensor`);
    });
    return [{ dtype: dtype('T'), shape: rest === 'unknown' ? rest : [null, ...(rest as readonly Dimension[])] }];
  },
);

/** Row `indices[k][i]` of the result is row i of `data[k]`: puts together what `dynamicPartition` took apart. */
export function dynamicStitch<D extends GraphDType>(
  g: GraphBuilder,
  indices: readonly Output<'int32'>[],
  data: readonly Output<D>[],
  options: NodeOptions = {},
): Output<D> {
  checkOutputs('dynamicStitch: indices', indices);
  checkOutputs('dynamicStitch: data', data);
  return checkedBuilder('dynamicStitch', g).node(stitchDefinition, [...indices, ...data], { T: data[0]?.dtype }, options)
    .outputs[0] as Output<D>;
}

function sameAsVariable({ inputs: [variable, value], fail }: InferContext): readonly OutputSpec[] {
  if (mergeShapes(variable.shape, value.shape) === undefined) {
    fail(`a value of shape ${formatShape(value.shape)} does not fit a variable of shape ${formatShape(variable.shape)}`);
  }
  return [{ dtype: variable.dtype, shape: variable.shape, isRef: true }];
}

/** The variable, whose rows at `indices` get others. @param have for messages: `updates have`. */
export function changedRows([table, indices, updates]: readonly OutputSpec[], have: string, fail: Fail): readonly OutputSpec[] {
  const rows = table.shape === 'unknown' ? table.shape : table.shape.slice(1);
  if (table.shape !== 'unknown' && table.shape.length === 0) fail('the variable must have rows');
  if (rows !== 'unknown' && indices.shape !== 'unknown' && mergeShapes([...indices.shape, ...rows], updates.shape) === undefined) {
    const expected = formatShape([...indices.shape, ...rows]);
    fail(`${have} shape ${formatShape(updates.shape)}, but indices and variable need ${expected}`);
  }
  return [{ dtype: table.dtype, shape: table.shape, isRef: true }];
}
