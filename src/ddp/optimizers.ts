/** Optimisers on arrays, in torch's vocabulary. Each treats every element by itself, so that updating a part of the parameters gives the
 *  same bits as updating all. State is made with the optimiser, and its arrays stay the same ones: checkpoints load into them. */
import { describeForeign } from '../memory/foreign-value.ts';
import { ShoalError } from '../base/errors.ts';
import {
  anyList,
  anyText,
  checkArgument,
  checkOptions,
  describeValue,
  flag,
  isPlainObject,
  list,
  noOptions,
  number,
  optionTable,
  type OptionTable,
} from '../base/schema.ts';
import { readSettings } from '../base/settings/settings.ts';
import { loadNative } from '../memory/native.ts';
import { adamRate, ruleParameters, type ParameterKernels } from '../memory/parameter-kernels.ts';
import { createParameterKernels } from '../memory/parameter-kernels/create-parameter-kernels.ts';

/** An array that an optimiser updates, in place. */
export interface OptimizerParameter {
  /** Unique among the optimiser's parameters; names of state begin with it. */
  readonly name: string;
  /** The values, updated in place. */
  readonly data: Float32Array | Float64Array;
}

/** Updates parameters by gradients. One that a `ZeroRedundancyOptimizer` shards must treat each parameter alone. */
export interface Optimizer {
  /** Updates all parameters, in place. @param gradients in the order of the parameters, each of its parameter's length. */
  step(gradients: readonly (Float32Array | Float64Array)[]): void;
  /** Everything that steps depend on beside parameters and gradients; each name begins with the parameter's. Loading writes into
   *  these arrays. */
  readonly state: Readonly<Record<string, Float32Array | Float64Array>>;
}

/** A class such as `SGD` or `Adam`, of which `ZeroRedundancyOptimizer` makes one for each rank's own parameters. */
export type OptimizerClass<Options> = new (parameters: readonly OptimizerParameter[], options?: Options) => Optimizer;

/** Hyperparameters by torch's names; numbers are finite and not negative. */
export interface SGDOptions {
  /** Learning rate. Default 0.001. */
  readonly lr?: number;
  /** Factor of the previous step's update; 0 keeps none. Default 0. */
  readonly momentum?: number;
  /** Factor of the parameter that is added to the gradient. Default 0. */
  readonly weightDecay?: number;
  /** True: Nesterov's momentum. Default false. */
  readonly nesterov?: boolean;
}

/** Hyperparameters by torch's names; numbers are finite and not negative, betas below 1. */
export interface AdamOptions {
  /** Learning rate. Default 0.001. */
  readonly lr?: number;
  /** Decay of the first and the second moment. Default [0.9, 0.999]. */
  readonly betas?: readonly [number, number];
  /** Added to the root of the second moment. Default 1e-8. */
  readonly eps?: number;
  /** Factor of the parameter's decay. Default 0. */
  readonly weightDecay?: number;
  /** True: decay is taken from the parameter itself (AdamW); false: added to the gradient. Default false. */
  readonly decoupled?: boolean;
}

export type Floats = Float32Array | Float64Array;

const fromZero = number({ min: 0 });
const beta = number({ min: 0, below: 1 });
const sgdOptions = optionTable<SGDOptions>({ lr: fromZero, momentum: fromZero, weightDecay: fromZero, nesterov: flag });
const adamOptions = optionTable<AdamOptions>({
  lr: fromZero,
  betas: list(beta, { min: 2, max: 2 }),
  eps: fromZero,
  weightDecay: fromZero,
  decoupled: flag,
});

/** Stochastic gradient descent with momentum: Sutskever et al., ICML 2013, as torch.optim.SGD has it without dampening. */
export class SGD implements Optimizer {
  /** Learning rate; may change between steps. */
  lr: number;
  readonly state: Record<string, Float32Array | Float64Array> = {};
  readonly #parameters: readonly OptimizerParameter[];
  readonly #options: Required<SGDOptions>;
  readonly #kernels = parameterKernels();
  readonly #buffers: (Float32Array | Float64Array)[] = [];

  constructor(parameters: readonly OptimizerParameter[], options: SGDOptions = noOptions) {
    this.#parameters = checkedParameters('SGD', parameters, options, sgdOptions);
    const { lr = 1e-3, momentum = 0, weightDecay = 0, nesterov = false } = options;
    if (nesterov && momentum === 0) throw new ShoalError('usage', 'SGD: nesterov needs a momentum');
    this.lr = lr;
    this.#options = { lr, momentum, weightDecay, nesterov };
    if (momentum === 0) return;
    for (const { name, data } of parameters) this.#buffers.push((this.state[`${name}.momentum_buffer`] = zerosLike(data)));
  }

  /** Updates all parameters by `lr · (gradient + weightDecay · parameter)`, or by the momentum of that; in the order of the parameters.
   *  @throws ShoalError `usage` naming the parameter whose gradient does not fit; then nothing has changed. */
  step(gradients: readonly (Float32Array | Float64Array)[]): void {
    checkGradients('SGD', gradients, this.#parameters);
    const { momentum: mu, weightDecay, nesterov } = this.#options;
    const { lr: rate } = this;
    for (const [index, { data }] of this.#parameters.entries()) {
      const gradient = likeData(gradients[index], data);
      const buffer = this.#buffers[index];
      if (buffer === undefined) {
        this.#kernels.update('sgd', data, gradient, [], ruleParameters('sgd', { rate, decay: weightDecay }));
        continue;
      }
      // At a rate of −1 the kernel's velocity is torch's buffer, and what it adds to zeros is the step.
      const decayed = gradient.slice();
      const step = zerosLike(data);
      if (weightDecay !== 0) this.#kernels.update('sgd', decayed, data, [], ruleParameters('sgd', { rate: -weightDecay }));
      const rule = nesterov ? 'nesterov' : 'momentum';
      this.#kernels.update(rule, step, decayed, [buffer], ruleParameters(rule, { rate: -1, mu }));
      this.#kernels.update('sgd', data, step, [], ruleParameters('sgd', { rate }));
    }
  }
}

/** Adam: Kingma and Ba, ICLR 2015; decoupled: Loshchilov and Hutter, ICLR 2019. */
export class Adam implements Optimizer {
  /** Learning rate; may change between steps. */
  lr: number;
  readonly state: Record<string, Float32Array | Float64Array> = {};
  readonly #parameters: readonly OptimizerParameter[];
  readonly #options: Required<AdamOptions>;
  readonly #kernels = parameterKernels();
  readonly #moments: { readonly first: Floats; readonly second: Floats; readonly steps: Float64Array }[];

  constructor(parameters: readonly OptimizerParameter[], options: AdamOptions = noOptions) {
    this.#parameters = checkedParameters('Adam', parameters, options, adamOptions);
    const { lr = 1e-3, betas = [0.9, 0.999], eps = 1e-8, weightDecay = 0, decoupled = false } = options;
    this.lr = lr;
    this.#options = { lr, betas: [...betas] as [number, number], eps, weightDecay, decoupled };
    this.#moments = parameters.map(({ name, data }) => {
      const moments = { first: zerosLike(data), second: zerosLike(data), steps: new Float64Array(1) };
      Object.assign(this.state, {
        [`${name}.exp_avg`]: moments.first,
        [`${name}.exp_avg_sq`]: moments.second,
        [`${name}.step`]: moments.steps,
      });
      return moments;
    });
  }

  /** Updates all parameters by their bias-corrected moments; in the order of the parameters. @throws ShoalError `usage` naming the
   *  parameter whose gradient does not fit; then nothing has changed. */
  step(gradients: readonly (Float32Array | Float64Array)[]): void {
    checkGradients('Adam', gradients, this.#parameters);
    const { betas, eps, weightDecay, decoupled } = this.#options;
    const [b1, b2] = betas;
    const { lr } = this;
    for (const [index, { data }] of this.#parameters.entries()) {
      const { first, second, steps } = this.#moments[index];
      const step = ++steps[0];
      if (decoupled) for (let i = 0; i < data.length; i++) data[i] *= 1 - lr * weightDecay;
      // The kernel does not correct its epsilon for the bias of the second moment, so `eps` is multiplied by that root.
      const root = Math.sqrt(1 - b2 ** step);
      const numbers = { decay: decoupled ? 0 : weightDecay, rate: adamRate(lr, b1, b2, step), b1, b2, epsilon: eps * root };
      this.#kernels.update('adam', data, likeData(gradients[index], data), [first, second], ruleParameters('adam', numbers));
    }
  }
}

/** @throws ShoalError `usage` for anything but a list of named arrays of floats. */
export function checkParameters(call: string, parameters: readonly OptimizerParameter[]): void {
  checkArgument(`${call}: parameters`, parameters, anyList);
  const names = new Set<string>();
  for (const each of parameters) {
    if (!isPlainObject(each)) throw new ShoalError('usage', `${call}: a parameter has a name and data; ${describeValue(each)} has not`);
    const { name, data } = each;
    checkArgument(`${call}: the name of a parameter`, name, anyText);
    if (names.has(name)) throw new ShoalError('usage', `${call}: two parameters are called '${name}'`);
    names.add(name);
    if (!isFloats(data)) {
      const message = `${call}: the data of '${name}' must be a Float32Array or a Float64Array, not ${describeForeign(data)}`;
      throw new ShoalError('usage', message);
    }
  }
}

/** @throws ShoalError `usage` naming the parameter whose gradient does not fit. */
export function checkGradients(call: string, gradients: readonly Floats[], parameters: readonly OptimizerParameter[]): void {
  checkArgument(`${call}: gradients`, gradients, anyList);
  if (gradients.length !== parameters.length)
    throw new ShoalError('usage', `${call}: ${gradients.length} gradients for ${parameters.length} parameters`);
  for (const [index, { name, data }] of parameters.entries()) {
    const gradient = gradients[index];
    if (!isFloats(gradient) || gradient.length !== data.length) {
      const message = `${call}: the gradient of '${name}' must be an array of ${data.length} floats, not ${describeForeign(gradient)}`;
      throw new ShoalError('usage', message);
    }
  }
}

function checkedParameters<Options extends object>(
  call: string,
  parameters: readonly OptimizerParameter[],
  options: Options,
  known: OptionTable<Options>,
): readonly OptimizerParameter[] {
  checkParameters(call, parameters);
  checkOptions(call, options, known);
  return [...parameters];
}

function isFloats(value: unknown): value is Float32Array | Float64Array {
  return value instanceof Float32Array || value instanceof Float64Array;
}

function parameterKernels(): ParameterKernels {
  return createParameterKernels({ native: loadNative({ enabled: readSettings(process.env).native }) });
}

/** Zeros of the same kind and number. */
function zerosLike(data: Floats): Floats {
  return data instanceof Float32Array ? new Float32Array(data.length) : new Float64Array(data.length);
}

/** Converts the gradient to the parameter's kind of floats: kernels take one kind at a time. */
function likeData(gradient: Float32Array | Float64Array, data: Float32Array | Float64Array): Float32Array | Float64Array {
  if (data instanceof Float32Array) return gradient instanceof Float32Array ? gradient : Float32Array.from(gradient);
  return gradient instanceof Float64Array ? gradient : Float64Array.from(gradient);
}
