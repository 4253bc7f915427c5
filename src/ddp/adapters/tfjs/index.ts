/** Data-parallel training with TensorFlow.js: an optimiser that averages gradients over all ranks. It must not know the model.
 *
 *      minimize(f) ─▶ forward: each variable is waited for, and updated, when it is used first       scheduled groups only
 *                  ─▶ backward: each gradient goes to the comm thread as it is produced
 *                  ─▶ all groups but scheduled ones: averages are waited for, and applied
 *
 *  Names, shapes and the order of variables are compared at the first step, and all ranks start from rank 0's values.
 *
 *  @module */
import * as tf from '@tensorflow/tfjs';
import { ShoalError } from '../../../base/errors.ts';
import { anyNumber, checkOptions, describeValue, flag, noOptions, optionTable } from '../../../base/schema.ts';
import type { ScheduledGroup } from '../../../group/caller/types.ts';
import { checkSpecs, type ParameterSpec } from '../../buckets.ts';
import { registrationText, verifyRegistrationSync } from '../../registration.ts';
import { checkGroup } from '../../../group/caller/call-arguments.ts';
import type { ReducerGroup } from '../../reducer-options.ts';
import { verifyReplicas } from '../../replicas.ts';
import { isScheduled } from '../exchange.ts';
import { LayerUpdates } from '../layer-updates.ts';
import { elementsOf } from './heap-view.ts';
import { bindHook, type BoundHook, type CommHook } from '../../hooks/comm-hook.ts';
import { addTransposedProducts } from './matrix-products.ts';
import { addMissingKernels } from './polyfill.ts';
import { optimizersByVariable, SharedState } from './shared-state.ts';
import { VariableHooks } from './variable-hooks.ts';

export {
  agreedStop,
  broadcastBuffers,
  learningRateWarmup,
  metricAverage,
  tensorBoard,
  type CallbackGroup,
  type WarmupOptions,
} from './callbacks.ts';
export { ModelCheckpoints } from './model-checkpoints.ts';
export { shard } from './shard.ts';

/** Options of `distribute`: how an optimiser's gradients travel. */
export interface DistributeOptions {
  /** `false` (default): a step in which a variable got no gradient is refused, naming it. `true`: it counts as zeros on this rank. */
  readonly findUnused?: boolean;
  /** Limit of a bucket, in groups that are not scheduled. Default: SHOAL_BUCKET_BYTES, 25 MiB. */
  readonly bucketBytes?: number;
  /** Limit of the first bucket. Default: SHOAL_FIRST_BUCKET_BYTES, 1 MiB. */
  readonly firstBucketBytes?: number;
  /** Timeout of each collective, in milliseconds. Default: the group's. */
  readonly timeoutMs?: number;
  /** `true` (default): products of transposed matrices, of which backward passes consist, are computed by other kernels than the wasm
   *  backend's own, for this whole process; large ones of 8 or more rows 6 to 60 times as fast. `false`: the registered kernels stay. */
  readonly fastProducts?: boolean;
}

const distributeOptions = optionTable<DistributeOptions>({
  findUnused: flag,
  bucketBytes: anyNumber,
  firstBucketBytes: anyNumber,
  timeoutMs: anyNumber,
  fastProducts: flag,
});

type NamedTensor = Awaited<ReturnType<tf.Optimizer['getWeights']>>[number];
type Gradients = tf.NamedTensorMap | NamedTensor[];

/** The optimiser, over all ranks of the group: for `model.compile` and for loops of one's own. With a scheduled group, updates happen in
 *  the next forward pass, or when a program reads a variable. Communication must run in its own thread, as it does by default.
 *  @throws ShoalError `usage`; `unsupported` for an optimiser that a scheduled group cannot apply variable by variable. */
export function distribute(
  group: ReducerGroup | ScheduledGroup,
  optimizer: tf.Optimizer,
  options: DistributeOptions = noOptions,
): DistributedOptimizer {
  checkGroup('distribute', group, 'allReduce');
  if (typeof optimizer !== 'object' || optimizer === null || !(optimizer instanceof tf.Optimizer))
    throw new ShoalError('usage', `distribute: the second argument is an optimizer of TensorFlow.js, not ${describeValue(optimizer)}`);
  checkOptions('distribute', options, distributeOptions);
  const name = optimizer.getClassName();
  if (isScheduled(group) && !optimizersByVariable.includes(name)) {
    const known = optimizersByVariable.join(', ');
    const message = `distribute: a scheduled group updates variables one by one, which it knows of ${known}, not of ${name}`;
    throw new ShoalError('unsupported', message);
  }
  addMissingKernels();
  if (options.fastProducts !== false) addTransposedProducts();
  return new DistributedOptimizer(group, optimizer, options);
}

/** The learning rate of an optimiser, which TensorFlow.js does not declare. */
interface Rated {
  learningRate: number;
  setLearningRate?(rate: number): void;
}

/** The variables of a model, once they are known. */
interface Registration {
  readonly variables: readonly tf.Variable[];
  /** Each variable is a layer. */
  readonly updates: LayerUpdates;
  readonly hooks: VariableHooks;
}

/** Made by `distribute`. */
export class DistributedOptimizer extends tf.Optimizer {
  readonly #group: ReducerGroup | ScheduledGroup;
  readonly #inner: tf.Optimizer;
  readonly #options: DistributeOptions;
  readonly #shared: SharedState;
  #registered: Registration | undefined;
  #hook: BoundHook | undefined;
  #isStepKept = false;

  /** Use `distribute`. */
  constructor(group: ReducerGroup | ScheduledGroup, inner: tf.Optimizer, options: DistributeOptions) {
    super();
    this.#group = group;
    this.#inner = inner;
    this.#options = options;
    this.#shared = new SharedState(inner);
  }

  /** Like `Reducer.registerCommHook`; call it before the first step. With a scheduled group each variable is a bucket. */
  registerCommHook<S>(state: S, hook: CommHook<S>): void {
    if (this.#hook || this.#registered)
      throw new ShoalError('usage', 'registerCommHook: once, before the first step; an optimizer has one hook');
    this.#hook = bindHook(state, hook);
  }

  /** Collective. Computes the gradients of `f`, averages them over all ranks, and applies the averages. */
  override minimize(f: () => tf.Scalar, returnCost = false, varList?: tf.Variable[]): tf.Scalar | null {
    const registered = this.#register(trainable(varList));
    const { hooks, updates } = registered;
    const { value, grads } = hooks.record(() =>
      tf.variableGrads(() => {
        const cost = updates.forward(f);
        // Variables that this pass did not use still have their last averages, and their next gradients are about to come.
        updates.drain();
        return cost;
      }, varList),
    );
    tf.dispose(grads);
    try {
      this.#finish(registered);
    } catch (thrown) {
      value.dispose();
      throw thrown;
    }
    if (returnCost) return value;
    value.dispose();
    return null;
  }

  /** Collective. Averages gradients that were computed by other means, and applies them. */
  override applyGradients(gradients: Gradients): void {
    const given = Array.isArray(gradients) ? gradients : Object.entries(gradients).map(([name, tensor]) => ({ name, tensor }));
    const registered = tf.engine().registeredVariables;
    const registration = this.#register(given.map(({ name }) => registered[name]));
    const { updates } = registration;
    updates.drain();
    for (let index = given.length - 1; index >= 0; index--) {
      const { tensor } = given[index];
      if (tensor) updates.give(index, [elementsOf(tf.backend(), tensor)]);
    }
    this.#finish(registration);
  }

  /** This rank's own gradients, not averaged. */
  override computeGradients(f: () => tf.Scalar, varList?: tf.Variable[]): ReturnType<typeof tf.variableGrads> {
    return tf.variableGrads(f, varList);
  }

  /** Waits for all averages that are on their way, and applies them. Reading a variable does so for that variable alone. */
  drain(): void {
    this.#registered?.updates.drain();
  }

  /** Collective, after the first step. The checksum of the variables after all averages have been applied, equal on every rank.
   *  @throws ShoalError `usage` before the first step; `mismatch` on every rank, naming the ranks that differ and the first variable in
   *          which they do. */
  async verifyReplicas(): Promise<string> {
    const registered = this.#registered;
    if (registered === undefined) throw new ShoalError('usage', 'verifyReplicas: after the first step, which makes the replicas equal');
    this.drain();
    const named = registered.variables.map((variable) => ({ name: variable.name, array: variable.dataSync<'float32'>() }));
    return verifyReplicas(this.#group, named, { timeoutMs: this.#options.timeoutMs });
  }

  /** The rate of the next step. */
  get learningRate(): number {
    return (this.#inner as unknown as Rated).learningRate;
  }

  /** Sets the rate of the next step; another one applies all averages first, with the rate of their step. Set the same on all ranks. */
  set learningRate(rate: number) {
    if (rate === this.learningRate) return;
    this.drain();
    const inner = this.#inner as unknown as Rated;
    // SGD, and momentum, which extends it, keep the rate as a tensor.
    if (inner.setLearningRate === undefined) inner.learningRate = rate;
    else inner.setLearningRate(rate);
  }

  override get iterations(): number {
    return this.#inner.iterations;
  }

  override getClassName(): string {
    return this.#inner.getClassName();
  }

  override getConfig(): ReturnType<tf.Optimizer['getConfig']> {
    return this.#inner.getConfig();
  }

  /** The optimiser's own state, such as moments, after all averages have been applied: this rank's copy, which is the same on all
   *  ranks. Same as in TensorFlow.js otherwise. */
  override getWeights(): Promise<NamedTensor[]> {
    this.drain();
    return this.#inner.getWeights();
  }

  /** Loads the result of `getWeights`; call it on every rank, with the same file. Same as in TensorFlow.js otherwise. */
  override setWeights(weights: NamedTensor[]): Promise<void> {
    this.drain();
    return this.#inner.setWeights(weights);
  }

  /** Applies the averages that are on their way, and releases the variables. */
  override dispose(): void {
    this.drain();
    this.#registered?.hooks.close();
    this.#registered?.updates.close();
    this.#registered = undefined;
    this.#shared.release();
    this.#inner.dispose();
  }

  // ── a step ─────────────────────────────────────────────────────────────────────────────────────────────────────

  #finish({ updates, variables }: Registration): void {
    const averages = updates.finish();
    if (averages === undefined) {
      this.#isStepKept = false;
      return;
    }
    tf.tidy(() => {
      this.#inner.applyGradients(
        variables.map(({ name, shape }, index) => ({ name, tensor: tf.tensor(averages[index].slice(), shape, 'float32') })),
      );
    });
  }

  /** Brings one variable to its state after the last step. */
  #apply(variables: readonly tf.Variable[], index: number, average: Float32Array): void {
    if (this.#isStepKept) this.#shared.restore();
    else this.#shared.keep();
    this.#isStepKept = true;
    tf.tidy(() => {
      const tensor = tf.tensor(average.slice(), variables[index].shape, 'float32');
      // The other variables keep their places in the optimiser's lists.
      const gradients = variables.map(({ name }, each) => ({ name, tensor: each === index ? tensor : null }));
      this.#inner.applyGradients(gradients as unknown as NamedTensor[]);
    });
  }

  // ── variables ──────────────────────────────────────────────────────────────────────────────────────────────────

  #register(variables: readonly tf.Variable[]): Registration {
    const known = this.#registered;
    if (known) {
      if (variables.length === known.variables.length && variables.every((variable, index) => variable === known.variables[index]))
        return known;
      const message = `ddp: this step is for ${variables.length} variables (${variables.at(0)?.name}, …), the first was for ${known.variables.length} (${known.variables.at(0)?.name}, …); distribute an optimizer for each set`;
      throw new ShoalError('usage', message);
    }
    const specs = variables.map(specOf);
    checkSpecs(specs);
    const { bucketBytes, firstBucketBytes, findUnused, timeoutMs } = this.#options;
    const call = { timeoutMs };
    const how = isScheduled(this.#group) ? 'scheduled' : 'buckets';
    const settings = { tfjs: how, optimizer: this.getClassName(), options: this.getConfig() };
    verifyRegistrationSync(this.#group, registrationText(specs, settings), call);
    for (const variable of variables) {
      const values = Float32Array.from(variable.dataSync<'float32'>());
      this.#group.broadcast(values, { ...call, root: 0 }).waitSync();
      tf.tidy(() => variable.assign(tf.tensor(values, variable.shape, 'float32')));
    }
    const updates = new LayerUpdates({
      group: this.#group,
      parameters: specs,
      exchange: { bucketBytes, firstBucketBytes, findUnused, timeoutMs, hook: this.#hook },
      layers: variables.map(({ name, size }, index) => ({ name, bytes: 4 * size, parameters: [index] })),
      apply: (index, [average]) => hooks.unrecorded(() => this.#apply(variables, index, average)),
    });
    const hooks: VariableHooks = new VariableHooks({
      tf,
      variables,
      onUse: (index) => updates.use(index),
      onGradient: (index, gradient) => updates.give(index, [elementsOf(tf.backend(), gradient)]),
    });
    this.#registered = { variables, updates, hooks };
    return this.#registered;
  }
}

/** The trainable variables: of the list, or, without one, of all that are registered, as in TensorFlow.js. */
function trainable(varList: readonly tf.Variable[] | undefined): tf.Variable[] {
  const variables = varList ?? Object.values(tf.engine().registeredVariables);
  return variables.filter((variable) => variable.trainable);
}

function specOf({ name, shape, dtype }: tf.Variable): ParameterSpec {
  if (dtype === 'float32') return { name, shape, dtype };
  throw new ShoalError('unsupported', `ddp: variable '${name}' is ${dtype}; only float32 variables are trained: make it not trainable`);
}
