/** Updates of variables by gradients, as TensorFlow's Apply… and SparseApply…; hyperparameters are attributes. A sparse update changes the
 *  rows that `indices` names; a row that is named several times gets the sum. The state of an optimiser is in variables beside
 *  the one that is updated. */
import type { GraphBuilder, NodeOptions } from '../structure/builder.ts';
import type { AttributeSpec, InferContext, InputSpec, OpDefinition, OutputSpec } from '../structure/definition.ts';
import { indexDTypes, type FloatDType, type GraphDType, type IndexDType } from '../structure/graph-dtype.ts';
import type { Output } from '../structure/graph-node.ts';
import { formatShape, mergeShapes } from '../structure/shape.ts';
import { inputsOf, op, type Op } from './op.ts';
import { changedRows } from './state.ts';

const reals: readonly GraphDType[] = ['float32', 'float64'];
const real = { T: { kind: 'type', allowed: reals } } as const;

type Hyperparameters = Readonly<Record<string, AttributeSpec>>;

const common: Hyperparameters = { learning_rate: { kind: 'float' } };
const adam: Hyperparameters = {
  ...common,
  beta1: { kind: 'float', default: 0.9 },
  beta2: { kind: 'float', default: 0.999 },
  epsilon: { kind: 'float', default: 1e-8 },
};
const adagrad: Hyperparameters = { ...common, epsilon: { kind: 'float', default: 1e-6 } };
const ftrl: Hyperparameters = {
  ...common,
  l1: { kind: 'float', default: 0 },
  l2: { kind: 'float', default: 0 },
  beta: { kind: 'float', default: 1 },
};

function refs(...names: readonly string[]): InputSpec[] {
  return names.map((name) => ({ name, dtype: 'T', isRef: true }));
}

/** The variable, its states, the gradient of the same shape. */
function dense(name: string, states: readonly string[], attributes: Hyperparameters): OpDefinition {
  return {
    name,
    inputs: [...refs('var', ...states), { name: 'grad', dtype: 'T' }],
    attributes: { ...real, ...attributes },
    infer: updated,
    isStateful: true,
  };
}

function sparse(name: string, states: readonly string[], attributes: Hyperparameters): OpDefinition {
  return {
    name,
    inputs: [...refs('var', ...states), ...inputsOf({ grad: 'T', indices: 'Tindices' })],
    attributes: { ...real, Tindices: { kind: 'type', allowed: indexDTypes }, ...attributes },
    infer: (context) => updatedRows(context, states.length),
    isStateful: true,
    isSparse: true,
  };
}

type Floats = Output<FloatDType>;
type Indices = Output<IndexDType>;
type LearningRate = { readonly learning_rate: number };
type AdamOptions = NodeOptions & LearningRate & { readonly beta1?: number; readonly beta2?: number; readonly epsilon?: number };
type AdagradOptions = NodeOptions & LearningRate & { readonly epsilon?: number };
type FtrlOptions = NodeOptions & LearningRate & { readonly l1?: number; readonly l2?: number; readonly beta?: number };

/** ref −= learning_rate · grad; all of one shape. Gives the variable. */
export const applyGradientDescent: Op<(g: GraphBuilder, ref: Floats, grad: Floats, options: NodeOptions & LearningRate) => Floats> = op(
  dense('ApplyGradientDescent', [], common),
);

/** `steps`: a variable of shape [] that counts updates. */
export const applyAdam: Op<
  (g: GraphBuilder, ref: Floats, m: Floats, v: Floats, steps: Floats, grad: Floats, options: AdamOptions) => Floats
> = op({
  ...dense('ApplyAdam', ['m', 'v'], adam),
  inputs: [...refs('var', 'm', 'v', 'steps'), { name: 'grad', dtype: 'T' }],
  infer: ({ inputs: [variable, m, v, steps, grad], fail, ...rest }) => {
    if (mergeShapes(steps.shape, []) === undefined) fail(`steps must be a scalar, not ${formatShape(steps.shape)}`);
    return updated({ inputs: [variable, m, v, grad], fail, ...rest });
  },
});

/** history += grad²; ref −= learning_rate · grad / (√history + epsilon). Default epsilon 1e-6. Gives the variable. */
export const applyAdagrad: Op<(g: GraphBuilder, ref: Floats, history: Floats, grad: Floats, options: AdagradOptions) => Floats> = op(
  dense('ApplyAdagrad', ['accum'], adagrad),
);

/** `applyGradientDescent` of the rows that `indices` names; `grad[k]` is the gradient of row `indices[k]`, and a row that is named
 *  several times gets the sum. */
export const sparseApplyGradientDescent: Op<
  (g: GraphBuilder, ref: Floats, grad: Floats, indices: Indices, options: NodeOptions & LearningRate) => Floats
> = op(sparse('SparseApplyGradientDescent', [], common));

/** `applyAdagrad` of the rows that `indices` names, as `sparseApplyGradientDescent`; other rows of `history` stay. */
export const sparseApplyAdagrad: Op<
  (g: GraphBuilder, ref: Floats, history: Floats, grad: Floats, indices: Indices, options: AdagradOptions) => Floats
> = op(sparse('SparseApplyAdagrad', ['accum'], adagrad));

/** `z` and `n`: what the rule calls linear and accum in TensorFlow. */
export const sparseApplyFtrl: Op<
  (g: GraphBuilder, ref: Floats, z: Floats, n: Floats, grad: Floats, indices: Indices, options: FtrlOptions) => Floats
> = op(sparse('SparseApplyFtrl', ['z', 'n'], ftrl));

export const trainingOps: readonly OpDefinition[] = [
  ...[applyGradientDescent, applyAdam, applyAdagrad],
  ...[sparseApplyGradientDescent, sparseApplyAdagrad, sparseApplyFtrl],
].map(({ definition }) => definition);

function updated({ inputs, fail }: InferContext): readonly OutputSpec[] {
  const [variable] = inputs;
  for (const other of inputs.slice(1)) {
    if (mergeShapes(variable.shape, other.shape) === undefined)
      fail(`${formatShape(other.shape)} beside a variable of ${formatShape(variable.shape)}; all must be of one shape`);
  }
  return [{ dtype: variable.dtype, shape: variable.shape, isRef: true }];
}

function updatedRows({ inputs, fail }: InferContext, states: number): readonly OutputSpec[] {
  const [variable] = inputs;
  const [grad, indices] = inputs.slice(states + 1);
  for (const state of inputs.slice(1, states + 1)) {
    if (mergeShapes(variable.shape, state.shape) === undefined)
      fail(`a state of ${formatShape(state.shape)} beside a variable of ${formatShape(variable.shape)}`);
  }
  return changedRows([variable, indices, grad], 'grad has', fail);
}
