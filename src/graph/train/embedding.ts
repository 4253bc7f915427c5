/** Embeddings: tables in parts on several devices, hash tables, and lookups in both. Names are TensorFlow's and DeepRec's. */
import { ShoalError } from '../../base/errors.ts';
import {
  anyText,
  anything,
  callback,
  checkArgument,
  checkFields,
  checkOptions,
  count,
  flag,
  integer,
  list,
  literal,
  optionTable,
} from '../../base/schema.ts';
import type { Floats } from '../gradients/rules.ts';
import { cast, constant, pack, reshape } from '../ops/array.ts';
import { initializeKvVariable, kvExport, kvGather, kvVariable, partitionIds } from '../ops/embedding.ts';
import { slicesToDense } from '../ops/gradient.ts';
import { div, equal, mul, select, sqrt, square } from '../ops/math.ts';
import { fillDefinition, uniqueDefinition } from '../ops/shaping.ts';
import { dynamicStitch, gather } from '../ops/state.ts';
import { placeShapes, type GraphBuilder, type NodeOptions } from '../structure/builder.ts';
import { checkedBuilder, checkOutputs } from '../structure/check-arguments.ts';
import type { GraphDType, IndexDType } from '../structure/graph-dtype.ts';
import { Output, requestedDevice } from '../structure/graph-node.ts';
import { exactCount, type Shape } from '../structure/shape.ts';
import { getVariable, truncatedNormalInitializer, variableOptionKeys, type Initializer, type VariableOptions } from './variables.ts';

/** A variable in parts along its first axis, one for each device: `name/part_0`, … Options are those of `getVariable`. */
export function getPartitionedVariable<D extends GraphDType = 'float32'>(
  g: GraphBuilder,
  name: string,
  shape: readonly number[],
  devices: readonly string[],
  options: VariableOptions<D> = {},
): Output<D>[] {
  checkArgument('getPartitionedVariable: name', name, anyText);
  checkOptions('getPartitionedVariable', options, variableOptionKeys);
  checkArgument('getPartitionedVariable: shape', shape, list(count, { min: 1 }));
  checkArgument('getPartitionedVariable: devices', devices, list(anyText, { min: 1 }));
  const [rows, ...rest] = shape;
  return devices.map((device, part) => {
    const own = Math.ceil((rows - part) / devices.length);
    return getVariable(g, `${name}/part_${part}`, [own, ...rest], { ...options, device });
  });
}

/** Options of `getEmbeddingVariable`. */
export interface EmbeddingVariableOptions extends Omit<NodeOptions, 'name'> {
  /** Default float32. */
  readonly dtype?: 'float32' | 'float64';
  /** Makes rows that new keys begin with. Default `truncatedNormalInitializer()`. */
  readonly initializer?: Initializer;
  /** Number of these rows; a key gets row `key mod defaultValueDim`. Default 4096. */
  readonly defaultValueDim?: number;
  /** Number of times that updates must name a key before it gets a row. Default 1. */
  readonly filterFreq?: number;
  /** Rows that no update has changed for so many steps go with `evictEmbeddings`. Default: they stay. */
  readonly stepsToLive?: number;
  /** False: optimisers leave it alone. Default true. */
  readonly trainable?: boolean;
}

const embeddingOptionKeys = optionTable<EmbeddingVariableOptions>({
  dtype: literal('float32', 'float64'),
  initializer: callback,
  defaultValueDim: integer({ min: 1 }),
  filterFreq: count,
  stepsToLive: count,
  trainable: flag,
  ...placeShapes,
});

/** A table of rows by int32 or int64 keys, which grows: a key that an update names the first time gets a row. Reading changes nothing. */
export function getEmbeddingVariable(
  g: GraphBuilder,
  name: string,
  embeddingDim: number,
  options: EmbeddingVariableOptions = {},
): Output<'float32'> {
  checkedBuilder('getEmbeddingVariable', g);
  checkArgument('getEmbeddingVariable: name', name, anyText);
  checkArgument('getEmbeddingVariable: embeddingDim', embeddingDim, integer({ min: 1 }));
  checkOptions('getEmbeddingVariable', options, embeddingOptionKeys);
  const { dtype = 'float32', initializer = truncatedNormalInitializer(), defaultValueDim = 4096, trainable = true, ...rest } = options;
  const { filterFreq = 1, stepsToLive = 0, ...nodeOptions } = rest;
  const admission = { filter_freq: filterFreq, steps_to_live: stepsToLive };
  const made = g.node(kvVariable, [], { dtype, shape: [null, embeddingDim], ...admission }, { ...nodeOptions, name }).outputs[0] as Floats;
  const first = g.withScope(`${name}/initializer`, () =>
    g.withDevice(requestedDevice(made.node), () =>
      g.node(initializeKvVariable, [made, initializer(g, [defaultValueDim, embeddingDim], dtype)], admission),
    ),
  );
  g.variables.push({ variable: made, initializer: first, isTrainable: trainable });
  return made as Output<'float32'>;
}

/** The keys of a hash table, and their rows; behind the values of a row are the states of its optimiser. */
export function exportEmbeddings(
  g: GraphBuilder,
  table: Output,
): {
  /** The keys, `[n]`. */
  readonly keys: Output<'int64'>;
  /** The row of each key, and behind its values the states of the optimiser: `[n, width]`. */
  readonly rows: Floats;
} {
  checkOutputs('exportEmbeddings', [table]);
  const [, keys, rows] = checkedBuilder('exportEmbeddings', g).node(kvExport, [table]).outputs;
  return { keys: keys as Output<'int64'>, rows: rows as Floats };
}

/** Options of `embeddingLookup`. */
export interface LookupOptions {
  /** The way in which rows are dealt to the parts of a table: row r is in part r mod parts, or parts have rows in sequence. Hash tables
   *  have a key in part key mod parts. Default `mod`. */
  readonly partitionStrategy?: 'mod' | 'div';
  /** Scope of the nodes. */
  readonly name?: string;
}

const lookup = { partitionStrategy: literal('mod', 'div'), name: anyText };
const lookupKeys = optionTable<LookupOptions>(lookup);

/** Rows of a table, which may be in parts: `[...ids' shape, ...row]`. Rows are gathered where the parts are. */
export function embeddingLookup(
  g: GraphBuilder,
  params: Output | readonly Output[],
  ids: Output<IndexDType>,
  options: LookupOptions = {},
): Floats {
  checkedBuilder('embeddingLookup', g);
  const parts = params instanceof Output ? [params] : params;
  checkOutputs('embeddingLookup: params', parts);
  if (parts.length === 0) throw new ShoalError('usage', 'embeddingLookup: a table has at least one part');
  checkOutputs('embeddingLookup: ids', [ids]);
  checkOptions('embeddingLookup', options, lookupKeys);
  const { partitionStrategy = 'mod', name = 'embedding_lookup' } = options;
  const isHash = parts[0].node.op === 'KvVariable';
  const rowsOf = (part: Output, own: Output<IndexDType>): Floats =>
    isHash ? kvGather(g, part, own) : (gather(g, part, own, { colocateWith: part }) as Floats);
  return g.withScope(name, () => {
    if (parts.length === 1) return rowsOf(parts[0], ids);
    const rows = isHash ? 0 : parts.reduce((sum, { shape }) => sum + (shape === 'unknown' ? 0 : (shape[0] ?? 0)), 0);
    const attributes = { num_partitions: parts.length, strategy: isHash ? 'key' : partitionStrategy, rows };
    const dealt = g.node(partitionIds, [ids], attributes).outputs as readonly Output<'int32'>[];
    const found = parts.map((part, k) => rowsOf(part, dealt[k]));
    const all = dynamicStitch(g, dealt.slice(parts.length), found);
    if (ids.shape !== 'unknown' && ids.shape.length === 1) return all;
    return reshape(g, all, { shape: ids.shape === 'unknown' ? ids.shape : [...ids.shape, ...(all.shape as readonly number[]).slice(1)] });
  });
}

/** Ids of several rows of a batch, one behind the other. */
export interface SparseIds {
  /** `[n]`. */
  readonly ids: Output<IndexDType>;
  /** The row of the batch of each id, `[n]`. */
  readonly segments: Output<'int32'>;
  /** Number of rows of the batch: a number, or a scalar. */
  readonly rows: number | Output<'int32'>;
  /** The weight of each id, `[n]`. Default 1. */
  readonly weights?: Floats;
}

/** Options of `embeddingLookupSparse`. */
export interface SparseLookupOptions extends LookupOptions {
  /** Sum of weighted rows, divided by the sum of the weights, or by the root of the sum of their squares. Default `mean`. */
  readonly combiner?: 'sum' | 'mean' | 'sqrtn';
}

const sparseIdKeys = optionTable<SparseIds>({ ids: anything, segments: anything, rows: anything, weights: anything });
const sparseLookupKeys = optionTable<SparseLookupOptions>({ ...lookup, combiner: literal('sum', 'mean', 'sqrtn') });

/** Rows of a table, combined for each row of a batch: `[rows, width]`, zeros where there is no id. An id that is there several times is
 *  looked up once. */
export function embeddingLookupSparse(
  g: GraphBuilder,
  params: Output | readonly Output[],
  sparse: SparseIds,
  options: SparseLookupOptions = {},
): Floats {
  checkedBuilder('embeddingLookupSparse', g);
  checkFields('embeddingLookupSparse: the ids', sparse, sparseIdKeys);
  checkOptions('embeddingLookupSparse', options, sparseLookupKeys);
  const { ids, segments, rows, weights } = sparse;
  checkOutputs('embeddingLookupSparse: the ids', [ids, segments, ...(weights === undefined ? [] : [weights])]);
  if (!(rows instanceof Output)) checkArgument('embeddingLookupSparse: rows', rows, count);
  const { combiner = 'mean', name = 'embedding_lookup_sparse', partitionStrategy } = options;
  return g.withScope(name, () => {
    const [different, places] = g.node(uniqueDefinition, [ids]).outputs;
    const found = gather(g, embeddingLookup(g, params, different as Output<IndexDType>, { partitionStrategy }), places as Output<'int32'>);
    const { dtype } = found;
    const width = found.shape === 'unknown' ? undefined : exactCount(found.shape.slice(1));
    if (width === undefined)
      throw new ShoalError('usage', `embeddingLookupSparse: rows must be of a known width, not ${String(found.shape)}`);
    const whole = (value: number): Output<'int32'> => constant(g, { dtype: 'int32', shape: [], data: [value] });
    const filled = (lines: Output<'int32'>, columns: number, value: number): Floats =>
      g.node(fillDefinition, [pack(g, [lines, whole(columns)]), constant(g, { dtype, shape: [], data: [value] })]).outputs[0] as Floats;
    const lines = rows instanceof Output ? cast(g, rows, 'int32') : whole(rows);
    const summed = (values: Floats, columns: number): Floats => slicesToDense(g, values, segments, filled(lines, columns, 0));
    const column: Shape = [null, 1];
    const factors = weights === undefined ? undefined : reshape(g, weights, { shape: column });
    const total = summed(factors === undefined ? found : mul(g, found, factors), width);
    if (combiner === 'sum') return total;
    const one = constant(g, { dtype, shape: [], data: [1] });
    const each = factors ?? cast(g, reshape(g, equal(g, segments, segments), { shape: column }), dtype);
    const norm = combiner === 'mean' ? summed(each, 1) : sqrt(g, summed(square(g, each), 1));
    const none = equal(g, norm, constant(g, { dtype, shape: [], data: [0] }));
    return div(g, total, select(g, none, one, norm));
  });
}
