/** Optimisers that add gradients and updates to a graph, as TensorFlow's `tf.train.Optimizer`. */
import { ShoalError } from '../../base/errors.ts';
import { anyList, anyText, anything, checkArgument, checkOptions, flag, number, optionTable } from '../../base/schema.ts';
import { gradients, IndexedSlices, type Gradient } from '../gradients/gradients.ts';
import type { Floats } from '../gradients/rules.ts';
import { constant } from '../ops/array.ts';
import { noOp } from '../ops/control-flow.ts';
import { assignAdd } from '../ops/state.ts';
import { addUpdate, type Rate, type UpdateName } from '../ops/training.ts';
import type { GraphBuilder } from '../structure/builder.ts';
import { checkedBuilder, checkOutputs } from '../structure/check-arguments.ts';
import { requestedDevice, Output, type Node } from '../structure/graph-node.ts';
import { constantInitializer, getVariable } from './variables.ts';

/** A gradient, and the variable that it is the gradient of. */
export type GradientAndVariable = readonly [gradient: Gradient, variable: Floats];

/** Options of `computeGradients`. */
export interface ComputeGradientsOptions {
  /** Default: the floating-point variables of `getVariable`, but for those that are not trainable. */
  readonly varList?: readonly Floats[];
  /** True: the gradient of a node is computed where the node is. Default false. */
  readonly colocateGradientsWithOps?: boolean;
}

/** Options of `applyGradients`. */
export interface ApplyGradientsOptions {
  /** A variable that is raised by 1 after the updates. */
  readonly globalStep?: Output;
  /** Name of the node. Default: the optimiser's. */
  readonly name?: string;
}

const computeKeys = { varList: anyList, colocateGradientsWithOps: flag };
const applyKeys = { globalStep: anything, name: anyText };
const computeOptionKeys = optionTable<ComputeGradientsOptions>(computeKeys);
const applyOptionKeys = optionTable<ApplyGradientsOptions>(applyKeys);
const minimizeOptionKeys = optionTable<ComputeGradientsOptions & ApplyGradientsOptions>({ ...computeKeys, ...applyKeys });

interface Rule {
  readonly update: UpdateName;
  /** States by name, in the order of the update, with their first values. */
  readonly slots: Readonly<Record<string, number>>;
  /** The slot that counts updates, a scalar. */
  readonly counter?: string;
  readonly attributes: Readonly<Record<string, unknown>>;
}

/** Adds what trains variables; see the classes below for the rules. The states of a rule are variables, *slots*, beside each variable,
 *  which `globalVariablesInitializer` initialises as well.
 *
 *      const rate = exponentialDecay(g, 0.1, step, 1000, 0.96);
 *      const train = new AdagradOptimizer(rate).minimize(g, loss, { globalStep: step });
 *      const init = globalVariablesInitializer(g); */
export class Optimizer {
  readonly #rate: Rate;
  readonly #rule: Rule;
  readonly #slots = new Map<Output, Map<string, Output>>();

  /** Called by the classes below. */
  protected constructor(learningRate: Rate, rule: Rule) {
    this.#rate = learningRate;
    this.#rule = rule;
    if (!(learningRate instanceof Output)) checkArgument(`${rule.update}Optimizer: learningRate`, learningRate, number({ min: 0 }));
  }

  /** Adds a node that trains by the gradients of `loss`. @throws ShoalError `usage` when no variable has one. */
  minimize(g: GraphBuilder, loss: Output, options: ComputeGradientsOptions & ApplyGradientsOptions = {}): Node {
    checkOptions('minimize', options, minimizeOptionKeys);
    const { globalStep, name, ...computing } = options;
    return this.applyGradients(g, this.computeGradients(g, loss, computing), { globalStep, name });
  }

  /** The first half of `minimize`: what is done to gradients comes between. */
  computeGradients(g: GraphBuilder, loss: Output, options: ComputeGradientsOptions = {}): GradientAndVariable[] {
    checkedBuilder('computeGradients', g);
    checkOptions('computeGradients', options, computeOptionKeys);
    const trainable = (): Output[] => g.variables.filter(({ isTrainable }) => isTrainable).map(({ variable }) => variable);
    const variables = (options.varList ?? trainable()) as readonly Floats[];
    const made = gradients(g, loss, variables, { colocate: options.colocateGradientsWithOps ?? false });
    return made.map((gradient, k) => [gradient, variables[k]]);
  }

  /** The second half: updates every variable that has a gradient, on its device. @returns a node that is run once for a step. */
  applyGradients(g: GraphBuilder, gradsAndVars: readonly GradientAndVariable[], options: ApplyGradientsOptions = {}): Node {
    checkedBuilder('applyGradients', g);
    checkOptions('applyGradients', options, applyOptionKeys);
    checkArgument('applyGradients: gradsAndVars', gradsAndVars, anyList);
    const { globalStep, name = this.#rule.update } = options;
    const updates = gradsAndVars.flatMap(([gradient, variable]) => {
      checkOutputs('applyGradients: variables', [variable]);
      return gradient === undefined ? [] : [this.#update(g, gradient, variable)];
    });
    if (updates.length === 0) throw new ShoalError('usage', `${name}: no variable has a gradient; does the loss depend on one?`);
    if (globalStep === undefined) return noOp(g, { name, controlInputs: updates });
    checkOutputs('applyGradients: globalStep', [globalStep]);
    const data = globalStep.dtype === 'int64' ? [1n] : [1];
    const one = constant(g, { dtype: globalStep.dtype as 'int64', shape: [], data }, { colocateWith: globalStep });
    return assignAdd(g, globalStep as Output<'int64'>, one, { name, controlInputs: updates }).node;
  }

  /** The state of a variable; undefined before a gradient was applied to it. */
  getSlot(variable: Output, name: string): Output | undefined {
    return this.#slots.get(variable)?.get(name);
  }

  /** Names of the states that each variable has. */
  getSlotNames(): string[] {
    const { slots, counter } = this.#rule;
    return [...Object.keys(slots), ...(counter === undefined ? [] : [counter])];
  }

  #update(g: GraphBuilder, gradient: Floats | IndexedSlices, variable: Floats): Node {
    const { update, attributes, slots: columns } = this.#rule;
    const isTable = variable.node.op === 'KvVariable';
    const slots = this.#slots.get(variable) ?? this.#makeSlots(g, variable, isTable);
    const isSparse = gradient instanceof IndexedSlices;
    const given = isSparse ? [gradient.values, gradient.indices] : [gradient];
    const kind = isTable ? 'table' : (isSparse && 'sparse') || 'dense';
    const first = { dtype: variable.dtype, shape: [Object.keys(columns).length], data: Object.values(columns) };
    return addUpdate(g, [update, kind], [variable, ...slots.values(), ...given], {
      learning_rate: this.#rate,
      ...attributes,
      ...(isTable && { columns: Object.keys(columns).map((name) => `${update}/${name}`), first }),
    });
  }

  /** A hash table has its states itself. */
  #makeSlots(g: GraphBuilder, variable: Floats, isTable: boolean): Map<string, Output> {
    const { slots, counter } = this.#rule;
    const made = new Map<string, Output>();
    const make = (name: string, shape: readonly number[], first: number): void => {
      const options = { dtype: variable.dtype, initializer: constantInitializer(first), trainable: false };
      const place = { device: requestedDevice(variable.node), colocateWith: variable };
      made.set(name, getVariable(g, `${variable.node.name}/${this.#rule.update}/${name}`, shape, { ...options, ...place }));
    };
    if (!isTable) for (const [name, first] of Object.entries(slots)) make(name, variable.shape as readonly number[], first);
    if (counter !== undefined) make(counter, [], 0);
    this.#slots.set(variable, made);
    return made;
  }
}

/** variable −= rate · gradient. */
export class GradientDescentOptimizer extends Optimizer {
  constructor(learningRate: Rate) {
    super(learningRate, { update: 'GradientDescent', slots: {}, attributes: {} });
  }
}

const momentumKeys = optionTable<{ useNesterov?: boolean }>({ useNesterov: flag });

/** momentum = share · momentum + gradient; variable −= rate · momentum. Slot `momentum`. */
export class MomentumOptimizer extends Optimizer {
  /** @param options.useNesterov true: variable −= rate · (gradient + share · momentum). Default false. */
  constructor(learningRate: Rate, momentum: number, options: { readonly useNesterov?: boolean } = {}) {
    checkArgument('MomentumOptimizer: momentum', momentum, number({ min: 0 }));
    checkOptions('MomentumOptimizer', options, momentumKeys);
    super(learningRate, {
      update: 'Momentum',
      slots: { momentum: 0 },
      attributes: { momentum, use_nesterov: options.useNesterov ?? false },
    });
  }
}

const positive = number({ min: 0 });
const adagradKeys = optionTable<{ initialAccumulatorValue?: number }>({ initialAccumulatorValue: number({ above: 0 }) });

/** accumulator += gradient²; variable −= rate · gradient / √accumulator. Slot `accumulator`. Duchi et al., 2011. */
export class AdagradOptimizer extends Optimizer {
  /** @param options.initialAccumulatorValue default 0.1. */
  constructor(learningRate: Rate, options: { readonly initialAccumulatorValue?: number } = {}) {
    checkOptions('AdagradOptimizer', options, adagradKeys);
    super(learningRate, { update: 'Adagrad', slots: { accumulator: options.initialAccumulatorValue ?? 0.1 }, attributes: { epsilon: 0 } });
  }
}

/** Options of `AdamOptimizer`. */
export interface AdamOptions {
  /** Default 0.9. */
  readonly beta1?: number;
  /** Default 0.999. */
  readonly beta2?: number;
  /** Default 1e-8. */
  readonly epsilon?: number;
}

const adamKeys = optionTable<AdamOptions>({ beta1: positive, beta2: positive, epsilon: positive });

/** Kingma & Ba, 2015. Slots `m`, `v` and `steps`. Rows of a table that have no gradient in a step stay as they are. */
export class AdamOptimizer extends Optimizer {
  /** @param learningRate default 0.001. */
  constructor(learningRate: Rate = 0.001, options: AdamOptions = {}) {
    checkOptions('AdamOptimizer', options, adamKeys);
    super(learningRate, { update: 'Adam', slots: { m: 0, v: 0 }, counter: 'steps', attributes: { ...options } });
  }
}

/** Options of `FtrlOptimizer`. */
export interface FtrlOptions {
  /** Default 0.1. */
  readonly initialAccumulatorValue?: number;
  /** Default 0. */
  readonly l1RegularizationStrength?: number;
  /** Default 0. */
  readonly l2RegularizationStrength?: number;
}

const ftrlKeys = optionTable<FtrlOptions>({
  initialAccumulatorValue: positive,
  l1RegularizationStrength: positive,
  l2RegularizationStrength: positive,
});

/** McMahan et al., "Ad click prediction", 2013, with TensorFlow's regularisation. Slots `linear` and `accum`. */
export class FtrlOptimizer extends Optimizer {
  constructor(learningRate: Rate, options: FtrlOptions = {}) {
    checkOptions('FtrlOptimizer', options, ftrlKeys);
    const { initialAccumulatorValue = 0.1, l1RegularizationStrength: l1 = 0, l2RegularizationStrength: l2 = 0 } = options;
    super(learningRate, { update: 'Ftrl', slots: { linear: 0, accum: initialAccumulatorValue }, attributes: { l1, l2: 2 * l2, beta: 0 } });
  }
}
