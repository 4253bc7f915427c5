/** Data-parallel training of jax-js models that are a list of stages, each jitted with its vjp: gradients of a stage are on their way
 *  while the earlier stages' backward passes run, and with a scheduled group each stage of the next forward pass waits for its own.
 *
 *      step     use 0, forward 0, use 1, forward 1, …, loss and its gradients ─▶ give n−1 ─▶ backward n−2 ─▶ give n−2 ─▶ … give 0
 *      next     use 0: waits for stage 0's averages, updates it …
 *
 *  A stage's vjp computes its forward pass again: jax-js has no way to hand what a jitted forward pass leaves behind to a jitted
 *  backward pass. jax-js runs nothing before somebody reads it, so each stage's output is read before the next stage is waited for. */
import { jit, numpy as np, tree, valueAndGrad, vjp, type JsTreeDef, type OwnedFunction } from '@jax-js/jax';
import { ShoalError } from '../../base/errors.ts';
import {
  anyList,
  anyNumber,
  anyText,
  callback,
  checkArgument,
  checkOptions,
  describeValue,
  isPlainObject,
  optionTable,
} from '../../base/schema.ts';
import type { CallOptions, ScheduledGroup } from '../../group/caller/types.ts';
import { checkSpecs, type ParameterSpec } from '../buckets.ts';
import { bindHook, type BoundHook, type CommHook } from '../hooks/comm-hook.ts';
import { checkGroup } from '../../group/caller/call-arguments.ts';
import type { ReducerGroup } from '../reducer-options.ts';
import { registrationText, verifyRegistration } from '../registration.ts';
import { verifyReplicas } from '../replicas.ts';
import { isScheduled } from './exchange.ts';
import { arrayOf, checkHost, leafSpecs, readOnce, type ArrayTree } from './jax-js-trees.ts';
import { LayerUpdates, type Layer } from './layer-updates.ts';

/** A part of a model. As everywhere in jax-js, calls consume the arrays they are given. */
export interface Stage<Parameters extends ArrayTree = ArrayTree> {
  /** The stage's name, unlike all others in the model and the same on all ranks. */
  readonly name: string;
  /** Float32 arrays, at least one. The model consumes them; all ranks start from those of rank 0. */
  readonly parameters: Parameters;
  /** Computes the next stage's input; in the last stage the loss, a scalar, with `rest` as given to `step` beside the input. It
   *  is jitted, once for each shape. */
  forward(parameters: Parameters, input: np.Array, ...rest: np.Array[]): np.Array;
}

/** The optimiser of one stage. It must be deterministic: equal parameters, gradients and state give equal bits. */
export interface StageOptimizer<Parameters extends ArrayTree = ArrayTree> {
  /** The parameters after one step; consumes both. */
  update(parameters: Parameters, gradients: Parameters): Parameters;
}

/** Options of `distributeStages`. */
export interface StagesOptions {
  /** Called once for each stage. */
  readonly optimizer: (stage: Stage, index: number) => StageOptimizer;
  /** Limit of a bucket, in groups that are not scheduled. Default: SHOAL_BUCKET_BYTES, 25 MiB. */
  readonly bucketBytes?: number;
  /** Limit of the first bucket. Default: SHOAL_FIRST_BUCKET_BYTES, 1 MiB. */
  readonly firstBucketBytes?: number;
  /** Timeout of each collective, in milliseconds. Default: the group's. */
  readonly timeoutMs?: number;
}

const stagesOptions = optionTable<StagesOptions>({
  optimizer: callback,
  bucketBytes: anyNumber,
  firstBucketBytes: anyNumber,
  timeoutMs: anyNumber,
});

/** Makes every rank start from rank 0's parameters. Collective. Communication must run in its own thread, as it does by default.
 *  @throws ShoalError `usage` when an argument is not a list of stages; `mismatch` on every rank when their stages differ in
 *          names, order or shapes; `unsupported` for parameters that are not float32 arrays. */
export async function distributeStages(
  group: ReducerGroup | ScheduledGroup,
  stages: readonly Stage[],
  options: StagesOptions,
): Promise<StagedModel> {
  checkGroup('distributeStages', group, 'allReduce');
  checkOptions('distributeStages', options, stagesOptions);
  checkArgument('distributeStages: optimizer', options?.optimizer, callback);
  checkStages(stages);
  const { bucketBytes, firstBucketBytes, timeoutMs } = options;
  const states: StageState[] = [];
  const specs: ParameterSpec[] = [];
  for (const stage of stages) {
    const own = leafSpecs(stage.parameters).map((spec) => ({ ...spec, name: `${stage.name}.${spec.name}` }));
    const other = own.find(({ dtype }) => dtype !== 'float32');
    if (other) throw new ShoalError('unsupported', `ddp: parameter '${other.name}' is ${other.dtype}; stages are of float32 arrays`);
    const [leaves, structure] = tree.flatten<np.Array>(stage.parameters);
    if (leaves.length === 0) throw new ShoalError('usage', `distributeStages: stage '${stage.name}' has no parameters; join it to another`);
    checkHost(leaves);
    states.push({ stage, leaves, structure, specs: own, first: specs.length });
    specs.push(...own);
  }
  checkSpecs(specs);
  const call = { timeoutMs };
  const settings = {
    stages: isScheduled(group) ? 'scheduled' : 'buckets',
    names: stages.map(({ name }) => name),
    bucketBytes,
    firstBucketBytes,
  };
  await verifyRegistration(group, registrationText(specs, settings), call);
  for (const state of states) {
    for (const [index, leaf] of state.leaves.entries()) {
      const { device } = leaf;
      // A copy of our own: what a read returns may be shared with other arrays.
      const values = readOnce(leaf).slice();
      await group.broadcast(values, { ...call, root: 0, name: `ddp/${state.specs[index].name}` });
      state.leaves[index] = arrayOf(values, state.specs[index], device);
    }
  }
  return new StagedModel({ group, states, specs, options, call });
}

/** A stage before it is jitted: its parameters as leaves. */
interface StageState {
  readonly stage: Stage;
  readonly structure: JsTreeDef;
  readonly specs: readonly ParameterSpec[];
  /** Index of the stage's first parameter among those of all stages. */
  readonly first: number;
  readonly leaves: np.Array[];
}

interface StagedModelParts {
  readonly group: ReducerGroup | ScheduledGroup;
  readonly states: readonly StageState[];
  readonly specs: readonly ParameterSpec[];
  readonly options: StagesOptions;
  readonly call: CallOptions;
}

/** A stage with its jitted functions and its current parameters. */
interface Compiled {
  readonly optimizer: StageOptimizer;
  readonly structure: JsTreeDef;
  readonly specs: readonly ParameterSpec[];
  /** The stage's output; in the last stage the loss alone, for `loss`. */
  readonly forward: OwnedFunction<(parameters: ArrayTree, input: np.Array, ...rest: np.Array[]) => np.Array>;
  /** Gradients of the parameters and, in all stages but the first, of the input; in the last stage they follow the loss. */
  readonly backward: OwnedFunction<(parameters: ArrayTree, input: np.Array, ...rest: np.Array[]) => ArrayTree[]>;
  parameters: ArrayTree;
}

/** Made by `distributeStages`. */
export class StagedModel {
  readonly #group: ReducerGroup | ScheduledGroup;
  readonly #stages: readonly Compiled[];
  readonly #specs: readonly ParameterSpec[];
  readonly #layers: readonly Layer[];
  readonly #options: StagesOptions;
  readonly #call: CallOptions;
  #hook: BoundHook | undefined;
  #updates: LayerUpdates | undefined;
  #isClosed = false;

  /** Use `distributeStages`. */
  constructor({ group, states, specs, options, call }: StagedModelParts) {
    this.#group = group;
    this.#specs = specs;
    this.#options = options;
    this.#call = call;
    this.#stages = states.map((state, index) => compile(state, options.optimizer(state.stage, index), index, states.length));
    this.#layers = states.map(({ stage: { name }, specs: own, first }) => ({
      name,
      bytes: own.reduce((sum, { shape }) => sum + 4 * shape.reduce((a, b) => a * b, 1), 0),
      parameters: own.map((_, at) => first + at),
    }));
  }

  /** Like `Reducer.registerCommHook`; call it before the first step. With a scheduled group each parameter is a bucket. */
  registerCommHook<S>(state: S, hook: CommHook<S>): void {
    if (this.#hook || this.#updates) throw new ShoalError('usage', 'registerCommHook: once, before the first step; a model has one hook');
    this.#hook = bindHook(state, hook);
  }

  /** Collective. One step of training: forward, backward, averages, updates. With a scheduled group, averages that are on their
   *  way are applied in the next step. Consumes its arguments.
   *  @param rest passed to the last stage, such as the targets.
   *  @returns this rank's loss. */
  step(input: np.Array, ...rest: np.Array[]): number {
    checkArrays('step', [input, ...rest]);
    const updates = this.#started();
    const last = this.#stages.length - 1;
    const inputs: np.Array[] = [];
    updates.forward(() => {
      let value = input;
      for (let index = 0; index <= last; index++) {
        updates.use(index);
        inputs.push(value);
        if (index === last) break;
        value = this.#forward(index, value.ref);
        run(value);
      }
    });
    const [loss, ...gradients] = this.#stages[last].backward(this.#parametersOf(last), inputs[last], ...rest);
    const own = readScalar(loss as np.Array);
    let cotangent = this.#give(updates, last, gradients);
    for (let index = last - 1; index >= 0; index--) {
      const pulled = this.#stages[index].backward(this.#parametersOf(index), inputs[index], cotangent as np.Array);
      cotangent = this.#give(updates, index, pulled);
    }
    const averages = updates.finish();
    if (averages)
      for (const [index, { parameters }] of this.#layers.entries())
        this.#apply(
          index,
          parameters.map((at) => averages[at]),
        );
    return own;
  }

  /** This rank's loss, without a step: for validation. Consumes its arguments. */
  loss(input: np.Array, ...rest: np.Array[]): number {
    checkArrays('loss', [input, ...rest]);
    this.#checkOpen();
    this.drain();
    const last = this.#stages.length - 1;
    let value = input;
    for (let index = 0; index < last; index++) value = this.#forward(index, value);
    return readScalar(this.#stages[last].forward(this.#parametersOf(last), value, ...rest));
  }

  /** The parameters of each stage after the last step; the arrays are the caller's. */
  get parameters(): readonly ArrayTree[] {
    this.#checkOpen();
    this.drain();
    return this.#stages.map((_, index) => this.#parametersOf(index));
  }

  /** Waits for all averages that are on their way, and applies them. */
  drain(): void {
    this.#updates?.drain();
  }

  /** Collective. The checksum of all parameters, equal on every rank.
   *  @throws ShoalError `mismatch` on every rank, naming the ranks that differ and the first parameter in which they do. */
  async verifyReplicas(): Promise<string> {
    const leaves = this.parameters.flatMap((parameters) => tree.leaves<np.Array>(parameters));
    const named = leaves.map((leaf, index) => ({ name: this.#specs[index].name, array: readOnce(leaf) }));
    return verifyReplicas(this.#group, named, this.#call);
  }

  /** Applies the averages that are on their way, and releases all memory. Idempotent. */
  close(): void {
    if (this.#isClosed) return;
    this.drain();
    this.#isClosed = true;
    this.#updates?.close();
    for (const { parameters, forward, backward } of this.#stages) {
      tree.dispose(parameters);
      forward.dispose();
      backward.dispose();
    }
  }

  // ── a step ─────────────────────────────────────────────────────────────────────────────────────────────────────

  #started(): LayerUpdates {
    this.#checkOpen();
    if (this.#updates) return this.#updates;
    const { bucketBytes, firstBucketBytes, timeoutMs } = this.#options;
    this.#updates = new LayerUpdates({
      group: this.#group,
      layers: this.#layers,
      parameters: this.#specs,
      exchange: { bucketBytes, firstBucketBytes, timeoutMs, hook: this.#hook },
      apply: (index, averages) => this.#apply(index, averages),
    });
    return this.#updates;
  }

  #forward(index: number, input: np.Array): np.Array {
    return this.#stages[index].forward(this.#parametersOf(index), input);
  }

  /** Hands the stage's gradients over; reading them runs the backward pass. @returns the gradient of the stage's input, if it has one. */
  #give(updates: LayerUpdates, index: number, [ofParameters, ofInput]: readonly ArrayTree[]): ArrayTree | undefined {
    const values = tree.leaves<np.Array>(ofParameters).map((leaf) => readOnce(leaf) as Float32Array);
    updates.give(index, values);
    return ofInput;
  }

  #apply(index: number, averages: readonly Float32Array[]): void {
    const stage = this.#stages[index];
    const { specs, structure, optimizer, parameters } = stage;
    const { device } = tree.leaves<np.Array>(parameters)[0];
    const gradients = tree.unflatten(
      structure,
      averages.map((values, at) => arrayOf(values, specs[at], device)),
    );
    const updated = optimizer.update(parameters, gradients);
    if (!tree.structure<np.Array>(updated).equals(structure)) {
      throw new ShoalError('usage', `ddp: the optimizer of stage '${this.#layers[index].name}' gave another tree than it was given`);
    }
    stage.parameters = updated;
  }

  #parametersOf(index: number): ArrayTree {
    return tree.ref(this.#stages[index].parameters);
  }

  #checkOpen(): void {
    if (this.#isClosed) throw new ShoalError('closed', 'ddp: the model is closed', { rank: this.#group.rank });
  }
}

function compile({ stage, structure, specs, leaves }: StageState, optimizer: StageOptimizer, index: number, count: number): Compiled {
  if (typeof optimizer?.update !== 'function') {
    const message = `distributeStages: the optimizer of stage '${stage.name}' has an update, not ${describeValue(optimizer)}`;
    throw new ShoalError('usage', message);
  }
  const forward = (parameters: ArrayTree, input: np.Array, ...rest: np.Array[]): np.Array => stage.forward(parameters, input, ...rest);
  const isFirst = index === 0;
  const parameters = tree.unflatten(structure, leaves);
  const backward = index === count - 1 ? lossAndGradients(forward, isFirst) : pullback(forward, isFirst);
  return { optimizer, structure, specs, parameters, forward: jit(forward), backward: jit(backward) };
}

type Forward = (parameters: ArrayTree, input: np.Array, ...rest: np.Array[]) => np.Array;
type Backward = (parameters: ArrayTree, input: np.Array, ...rest: np.Array[]) => ArrayTree[];

/** The backward pass of the last stage. If that is also the first, its input, such as tokens, has no gradient. */
function lossAndGradients(forward: Forward, isFirst: boolean): Backward {
  const compute = valueAndGrad(forward, { argnums: isFirst ? [0] : [0, 1] });
  return (parameters, input, ...rest) => {
    const [loss, gradients] = compute(parameters, input, ...rest);
    return [loss, ...(gradients as unknown as ArrayTree[])];
  };
}

/** The backward pass of another stage: maps the gradient of its output to those of its parameters and its input. */
function pullback(forward: Forward, isFirst: boolean): Backward {
  return (parameters, input, cotangent) => {
    const [output, pull] = isFirst
      ? vjp((own: ArrayTree) => forward(own, input), [parameters] as never)
      : vjp((own: ArrayTree, value: np.Array) => forward(own, value), [parameters, input] as never);
    tree.dispose(output);
    const gradients = pull(cotangent) as unknown as ArrayTree[];
    pull.dispose();
    return gradients;
  };
}

/** Consumes nothing. @throws ShoalError `usage` for anything but arrays of the host. */
function checkArrays(call: string, given: readonly np.Array[]): void {
  const wrong = given.findIndex((each) => !(each instanceof np.Array));
  if (wrong >= 0) throw new ShoalError('usage', `${call}: takes arrays of jax-js, not ${describeValue(given[wrong])}`);
  checkHost(given);
}

/** Reads the value, which makes jax-js compute it now. */
function run(value: np.Array): void {
  value.ref.dataSync();
}

function readScalar(loss: np.Array): number {
  if (loss.size === 1) return readOnce(loss)[0];
  throw new ShoalError('usage', `ddp: the last stage gives the loss, a scalar, not an array of shape [${loss.shape.join(', ')}]`);
}

function checkStages(stages: readonly Stage[]): void {
  checkArgument('distributeStages: stages', stages, anyList);
  if (stages.length === 0) throw new ShoalError('usage', 'distributeStages: a model has at least one stage');
  const names = new Set<string>();
  for (const [index, stage] of stages.entries()) {
    if (typeof stage !== 'object' || stage === null || typeof stage.forward !== 'function')
      throw new ShoalError('usage', `distributeStages: stage ${index} has a name, parameters and a forward, not ${describeValue(stage)}`);
    checkArgument(`distributeStages: the name of stage ${index}`, stage.name, anyText);
    if (names.has(stage.name)) throw new ShoalError('usage', `distributeStages: two stages are called '${stage.name}'`);
    names.add(stage.name);
    const { parameters } = stage;
    if (!(parameters instanceof np.Array || Array.isArray(parameters) || isPlainObject(parameters))) {
      const message = `distributeStages: the parameters of stage '${stage.name}' are a tree of arrays, not ${describeValue(parameters)}`;
      throw new ShoalError('usage', message);
    }
  }
}
