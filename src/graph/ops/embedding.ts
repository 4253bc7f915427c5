/** Hash tables of embeddings, with the semantics of DeepRec's embedding variables; and ids dealt to the parts of a table. */
import { checkedBuilder, checkOutputs } from '../structure/check-arguments.ts';
import type { GraphBuilder, NodeOptions } from '../structure/builder.ts';
import type { AttributeSpec, InputSpec, OpDefinition, OutputSpec } from '../structure/definition.ts';
import { indexDTypes, type FloatDType, type IndexDType } from '../structure/graph-dtype.ts';
import type { Node, Output } from '../structure/graph-node.ts';
import type { Shape } from '../structure/shape.ts';
import { define, floating, inputsOf, op } from './op.ts';

export const tableInput: InputSpec = { name: 'resource', dtype: 'T', isRef: true, isTable: true };
const keyed = { ...floating, Tkeys: { kind: 'type', allowed: indexDTypes } } as const;
const admission: Readonly<Record<string, AttributeSpec>> = {
  filter_freq: { kind: 'int', default: 0, least: 0 },
  steps_to_live: { kind: 'int', default: 0, least: 0 },
};

/** A table by key that grows: `[rows so far, width]`. */
export const kvVariable: OpDefinition = {
  name: 'KvVariable',
  inputs: [],
  attributes: { dtype: { kind: 'type', allowed: ['float32', 'float64'] }, shape: { kind: 'shape' }, ...admission },
  infer: ({ dtype, attributes }) => [{ dtype: dtype('dtype'), shape: attributes.shape as Shape, isRef: true }],
  isStateful: true,
};

function changing(name: string, inputs: readonly InputSpec[], attributes: OpDefinition['attributes'] = {}): OpDefinition {
  return { name, inputs: [tableInput, ...inputs], attributes: { ...floating, ...attributes }, infer: () => [], isStateful: true };
}

/** Makes the table empty. A new key gets row `key mod rows` of the defaults. */
export const initializeKvVariable = changing('InitializeKvVariable', inputsOf({ defaults: 'T' }), admission);

const saved = { defaults: 'T', keys: 'int64', rows: 'T', steps: 'int64', columns: 'string', candidates: 'int64', counts: 'int64' };

/** All that a table has; states of optimisers are beside the values in `rows`, and `columns` names them. */
export const kvExport: OpDefinition = {
  name: 'KvResourceExport',
  inputs: [tableInput],
  attributes: floating,
  infer: ({ dtype }) =>
    Object.entries(saved).map(([name, of]): OutputSpec => {
      const isMatrix = name === 'defaults' || name === 'rows';
      return { dtype: of === 'T' ? dtype('T') : (of as 'int64'), shape: isMatrix ? [null, null] : [null] };
    }),
  isStateful: true,
};

/** Makes the table what was exported. */
export const kvImport = changing('KvResourceImport', inputsOf(saved), admission);

/** The operation of `evictEmbeddings`. */
export const kvEvictDefinition = changing('KvResourceEvict', inputsOf({ global_step: 'int64' }));

type KvGather = (g: GraphBuilder, table: Output, keys: Output<IndexDType>, options?: NodeOptions) => Output<FloatDType>;

/** Rows by key. A key that the table does not have gets what it would begin with, or zeros if it must be seen more often. */
export const kvGather = op<KvGather>({
  name: 'KvResourceGather',
  inputs: [tableInput, { name: 'indices', dtype: 'Tkeys' }],
  attributes: keyed,
  infer: ({ inputs: [table, keys] }) => [
    { dtype: table.dtype, shape: keys.shape === 'unknown' || table.shape === 'unknown' ? 'unknown' : [...keys.shape, table.shape[1]] },
  ],
  isSparse: true,
});

/** Removes the rows of a table that no update has changed for `stepsToLive` steps: counted by the calls of this, so run it every so many
 *  steps. @returns a node to run. */
export function evictEmbeddings(g: GraphBuilder, table: Output, globalStep: Output<'int64'>, options: NodeOptions = {}): Node {
  checkOutputs('evictEmbeddings', [table, globalStep]);
  return checkedBuilder('evictEmbeddings', g).node(kvEvictDefinition, [table, globalStep], {}, options);
}

/** Ids of each part, and where they were among all; by remainder of the id, or by range. */
export const partitionIds = define(
  'PartitionIds',
  { ids: 'T' },
  {
    T: { kind: 'type', allowed: indexDTypes },
    num_partitions: { kind: 'int', least: 1 },
    strategy: { kind: 'string' },
    rows: { kind: 'int', default: 0 },
  },
  ({ dtype, integer }) => {
    const each = (of: OutputSpec['dtype']): OutputSpec[] =>
      Array.from({ length: integer('num_partitions') }, () => ({ dtype: of, shape: [null] }));
    return [...each(dtype('T')), ...each('int32')];
  },
);

/** The elements of several tensors one behind the other, of any dtype and shape. */
export const joinElements = op<<D extends IndexDType>(g: GraphBuilder, values: readonly Output<D>[], options?: NodeOptions) => Output<D>>(
  define('JoinElements', { values: 'T+' }, { T: { kind: 'type', allowed: indexDTypes } }, ({ dtype }) => [
    { dtype: dtype('T'), shape: [null] },
  ]),
);
