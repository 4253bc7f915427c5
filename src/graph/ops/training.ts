/** Updates of variables by gradients, as TensorFlow's Apply… and SparseApply…; hyperparameters are attributes;
 *  the learning rate may be an input as well. A sparse update changes the
 *  rows that `indices` names; a row that is named several times gets the sum. The state of an optimiser is in variables beside
 *  the one that is updated. */
import type { GraphBuilder, NodeOptions } from '../structure/builder.ts';
import type { AttributeSpec, InputSpec, OpDefinition } from '../structure/definition.ts';
import { indexDTypes, type FloatDType, type GraphDType, type IndexDType } from '../structure/graph-dtype.ts';
import { Output, type Node } from '../structure/graph-node.ts';
import { formatShape, mergeShapes } from '../structure/shape.ts';
import { checkedBuilder } from '../structure/check-arguments.ts';
import { checkedOptions, inputsOf, splitOptions, type Op } from './op.ts';
import { tableInput } from './embedding.ts';
import { changedRows } from './state.ts';

const reals: readonly GraphDType[] = ['float32', 'float64'];
const real = { T: { kind: 'type', allowed: reals } } as const;

type Hyperparameters = Readonly<Record<string, AttributeSpec>>;

const float = (value: number): AttributeSpec => ({ kind: 'float', default: value });

/** The states of a rule, of the variable's shape, and its hyperparameters beside the rate. */
interface UpdateRule {
  readonly states: readonly string[];
  /** A scalar that counts the updates, behind the states. */
  readonly counter?: string;
  readonly attributes: Hyperparameters;
}

const rules = {
  GradientDescent: { states: [], attributes: {} },
  Momentum: { states: ['accum'], attributes: { momentum: { kind: 'float' }, use_nesterov: { kind: 'bool', default: false } } },
  Adagrad: { states: ['accum'], attributes: { epsilon: float(1e-6) } },
  Adam: { states: ['m', 'v'], counter: 'steps', attributes: { beta1: float(0.9), beta2: float(0.999), epsilon: float(1e-8) } },
  Ftrl: { states: ['z', 'n'], attributes: { l1: float(0), l2: float(0), beta: float(1) } },
} as const satisfies Readonly<Record<string, UpdateRule>>;

/** An optimiser's rule, as TensorFlow names it. */
export type UpdateName = keyof typeof rules;

/** The thing that is updated: a variable, rows of one, or rows of a hash table, which has the states itself. */
export type UpdateKind = 'dense' | 'sparse' | 'table';

/** The variable, its states, the gradient: of the same shape, or of some rows; and the learning rate, when a step computes it. */
function update(rule: UpdateName, kind: UpdateKind): OpDefinition {
  const [isSparse, isTable] = [kind !== 'dense', kind === 'table'];
  const { counter, attributes, ...of }: UpdateRule = rules[rule];
  const states = isTable ? [] : of.states;
  const further = [...states, ...(counter === undefined ? [] : [counter])].map((name) => ({ name, dtype: 'T', isRef: true }));
  const refs: InputSpec[] = [isTable ? tableInput : { name: 'var', dtype: 'T', isRef: true }, ...further];
  return {
    name: `${{ dense: '', sparse: 'Sparse', table: 'KvResourceSparse' }[kind]}Apply${rule}`,
    inputs: [
      ...refs,
      ...inputsOf(isSparse ? { grad: 'T', indices: 'Tindices' } : { grad: 'T' }),
      { name: 'learning_rate', dtype: 'T', isList: true },
    ],
    attributes: {
      ...real,
      ...(isSparse && { Tindices: { kind: 'type', allowed: indexDTypes } }),
      learning_rate: { kind: 'float' },
      ...attributes,
      ...(isTable && { columns: { kind: 'list(string)' }, first: { kind: 'value' } }),
    },
    infer: ({ inputs, fail }) => {
      const [variable, ...others] = inputs;
      const [grad, indices] = inputs.slice(refs.length);
      for (const other of [...others.slice(0, states.length), ...(isSparse ? [] : [grad])]) {
        if (mergeShapes(variable.shape, other.shape) === undefined)
          fail(`${formatShape(other.shape)} beside a variable of ${formatShape(variable.shape)}; all must be of one shape`);
      }
      for (const scalar of [...others.slice(states.length, refs.length - 1), ...inputs.slice(refs.length + (isSparse ? 2 : 1))]) {
        if (mergeShapes(scalar.shape, []) === undefined) fail(`steps and learning_rate must be scalars, not ${formatShape(scalar.shape)}`);
      }
      const changed = isSparse ? changedRows([variable, indices, grad], 'grad has', fail) : undefined;
      if (isTable) return [];
      return changed ?? [{ dtype: variable.dtype, shape: variable.shape, isRef: true }];
    },
    isStateful: true,
    isSparse,
  };
}

const names = Object.keys(rules) as UpdateName[];
const updatesOf = (kind: UpdateKind): Record<UpdateName, OpDefinition> =>
  Object.fromEntries(names.map((name) => [name, update(name, kind)])) as Record<UpdateName, OpDefinition>;
const updates = { dense: updatesOf('dense'), sparse: updatesOf('sparse'), table: updatesOf('table') };

/** Adds an update. @param inputs the variable, its states, the gradient, and the rows that it is of where it is sparse. */
export function addUpdate(
  g: GraphBuilder,
  [rule, kind]: readonly [rule: UpdateName, kind: UpdateKind],
  inputs: readonly Output[],
  { learning_rate, ...options }: Readonly<Record<string, unknown>>,
): Node {
  const definition = updates[kind][rule];
  const { nodeOptions, attributes } = splitOptions(options);
  const [rate, more] = learning_rate instanceof Output ? [0, [learning_rate]] : [learning_rate as number | undefined, []];
  return g.node(definition, [...inputs, ...more], { learning_rate: rate, ...attributes }, nodeOptions);
}

function applying<Call>(rule: UpdateName, kind: UpdateKind = 'dense'): Op<Call> {
  const definition = updates[kind][rule];
  const count = definition.inputs.length - 1;
  const call = (g: GraphBuilder, ...args: unknown[]): Output =>
    addUpdate(checkedBuilder(definition.name, g), [rule, kind], args.slice(0, count) as Output[], checkedOptions(definition, args[count]))
      .outputs[0];
  return Object.assign(call as Call & object, { definition });
}

type Floats = Output<FloatDType>;
type Indices = Output<IndexDType>;
/** A number, or a scalar that a step computes. */
export type Rate = number | Output<FloatDType>;
type LearningRate = { readonly learning_rate: Rate };
type AdamOptions = NodeOptions & LearningRate & { readonly beta1?: number; readonly beta2?: number; readonly epsilon?: number };
type AdagradOptions = NodeOptions & LearningRate & { readonly epsilon?: number };
type FtrlOptions = NodeOptions & LearningRate & { readonly l1?: number; readonly l2?: number; readonly beta?: number };

/** ref −= learning_rate · grad; all of one shape. Gives the variable. */
export const applyGradientDescent: Op<(g: GraphBuilder, ref: Floats, grad: Floats, options: NodeOptions & LearningRate) => Floats> =
  applying('GradientDescent');

/** `steps`: a variable of shape [] that counts updates. */
export const applyAdam: Op<
  (g: GraphBuilder, ref: Floats, m: Floats, v: Floats, steps: Floats, grad: Floats, options: AdamOptions) => Floats
> = applying('Adam');

/** history += grad²; ref −= learning_rate · grad / (√history + epsilon). Default epsilon 1e-6. Gives the variable. */
export const applyAdagrad: Op<(g: GraphBuilder, ref: Floats, history: Floats, grad: Floats, options: AdagradOptions) => Floats> =
  applying('Adagrad');

/** `applyGradientDescent` of the rows that `indices` names; `grad[k]` is the gradient of row `indices[k]`, and a row that is named
 *  several times gets the sum. */
export const sparseApplyGradientDescent: Op<
  (g: GraphBuilder, ref: Floats, grad: Floats, indices: Indices, options: NodeOptions & LearningRate) => Floats
> = applying('GradientDescent', 'sparse');

/** `applyAdagrad` of the rows that `indices` names, as `sparseApplyGradientDescent`; other rows of `history` stay. */
export const sparseApplyAdagrad: Op<
  (g: GraphBuilder, ref: Floats, history: Floats, grad: Floats, indices: Indices, options: AdagradOptions) => Floats
> = applying('Adagrad', 'sparse');

/** `z` and `n`: what the rule calls linear and accum in TensorFlow. */
export const sparseApplyFtrl: Op<
  (g: GraphBuilder, ref: Floats, z: Floats, n: Floats, grad: Floats, indices: Indices, options: FtrlOptions) => Floats
> = applying('Ftrl', 'sparse');

export const trainingOps: readonly OpDefinition[] = Object.values(updates).flatMap((each) => Object.values(each));
