/** The optimisers that servers apply, in MXNet's vocabulary. A new one is one entry of the table; the arithmetic is in
 *  src/memory/parameter-kernels.ts. All begin with
 *
 *      g = clip(rescale · gradient);  d = g + weightDecay · value
 *
 *      sgd        value −= learningRate · d
 *      momentum   velocity = momentum · velocity − learningRate · d
 *                 classic    value += velocity
 *                 nesterov   value += momentum · velocity − learningRate · d
 *      adam       mean = beta1 · mean + (1 − beta1) · d;  variance = beta2 · variance + (1 − beta2) · d²
 *                 value −= learningRate · √(1 − beta2ᵗ) / (1 − beta1ᵗ) · mean / (√variance + epsilon)      t: updates, with this one
 *      adagrad    history += d²;  value −= learningRate · d / (√history + epsilon)                        as MXNet 2.0
 *      ftrl       z += g − (√(n + g²) − √n) / learningRate · value;  n += g²
 *                 value = |z| ≤ lambda1 ? 0 : (sign(z) · lambda1 − z) / ((beta + √n) / learningRate + weightDecay)
 *
 *  The velocity holds the learning rate, so a new rate acts in the new part only. At a constant rate both variants are PyTorch's, whose
 *  velocity is −1/learningRate of this one. PyTorch's Adam has epsilon · √(1 − beta2ᵗ) in the place of epsilon. The weight decay of ftrl
 *  is the paper's lambda2.
 *
 *  Sources. Momentum: Sutskever et al., "On the importance of initialization and momentum in deep learning", ICML 2013. Adam: Kingma & Ba,
 *  ICLR 2015. AdaGrad: Duchi, Hazan & Singer, "Adaptive subgradient methods for online learning and stochastic optimization", JMLR 2011.
 *  FTRL: McMahan et al., "Ad click prediction: a view from the trenches", KDD 2013, algorithm 1. */
import { ShoalError } from '../../base/errors.ts';
import { anything, checkArgument, checkOptions, literal, number, type Shape } from '../../base/schema.ts';
import type { TypedArray } from '../../memory/dtype.ts';
import {
  adamRate,
  ruleParameters,
  updateRule,
  type ParameterKernels,
  type Reals,
  type RuleNumbers,
  type UpdateRule,
} from '../../memory/parameter-kernels.ts';
import type { Optimizer, OptimizerSpec } from './optimizer.ts';

type OptionName = Exclude<keyof OptimizerSpec, 'name'>;
type CompleteSpec = Required<OptimizerSpec>;

interface Option {
  readonly shape: Shape<unknown>;
  readonly fallback?: number | string;
}

interface OptimizerDefinition {
  readonly rule: UpdateRule | ((spec: CompleteSpec) => UpdateRule);
  /** Options beside those that all optimisers have. */
  readonly options: Partial<Record<OptionName, Option>>;
  readonly numbers?: (spec: CompleteSpec) => Partial<RuleNumbers>;
}

const positive = number({ above: 0 });
const notNegative = number({ min: 0 });
const fraction = number({ min: 0, below: 1 });

const commonOptions: Partial<Record<OptionName, Option>> = {
  learningRate: { shape: positive },
  rescale: { shape: number(), fallback: 1 },
  weightDecay: { shape: notNegative, fallback: 0 },
  clip: { shape: positive },
  nonFinite: { shape: literal('apply', 'refuse'), fallback: 'apply' },
};

export const optimizers: Readonly<Record<OptimizerSpec['name'], OptimizerDefinition>> = {
  sgd: { rule: 'sgd', options: {} },
  momentum: {
    rule: ({ variant }) => (variant === 'nesterov' ? 'nesterov' : 'momentum'),
    options: { momentum: { shape: fraction, fallback: 0.9 }, variant: { shape: literal('classic', 'nesterov'), fallback: 'classic' } },
    numbers: ({ momentum: mu }) => ({ mu }),
  },
  adam: {
    rule: 'adam',
    options: {
      beta1: { shape: fraction, fallback: 0.9 },
      beta2: { shape: fraction, fallback: 0.999 },
      epsilon: { shape: positive, fallback: 1e-8 },
    },
    numbers: ({ beta1: b1, beta2: b2, epsilon }) => ({ b1, b2, epsilon }),
  },
  adagrad: { rule: 'adagrad', options: { epsilon: { shape: positive, fallback: 1e-6 } }, numbers: ({ epsilon }) => ({ epsilon }) },
  ftrl: {
    rule: 'ftrl',
    options: { lambda1: { shape: notNegative, fallback: 0.01 }, beta: { shape: positive, fallback: 1 } },
    numbers: ({ lambda1: l1, beta }) => ({ l1, beta }),
  },
};

/** @throws ShoalError `usage` for an unknown name, an option that the optimiser does not have, or a value out of range. */
export function createOptimizer(spec: OptimizerSpec, kernels: ParameterKernels): Optimizer {
  if (Object.hasOwn(optimizers, spec.name)) return new KernelOptimizer(spec, kernels);
  throw new ShoalError('usage', `there is no optimizer '${spec.name}'; use one of ${Object.keys(optimizers).join(', ')}`);
}

class KernelOptimizer implements Optimizer {
  readonly spec: CompleteSpec;
  readonly states: readonly string[];
  readonly #kernels: ParameterKernels;
  readonly #rule: UpdateRule;
  readonly #parameters: Float64Array;

  constructor(given: OptimizerSpec, kernels: ParameterKernels) {
    const { rule, options, numbers } = optimizers[given.name];
    const spec = completeSpec(given, { ...commonOptions, ...options });
    this.spec = spec;
    this.#kernels = kernels;
    this.#rule = typeof rule === 'string' ? rule : rule(spec);
    this.states = updateRule(this.#rule).states;
    const { rescale, clip, weightDecay: decay, learningRate: rate } = spec;
    this.#parameters = ruleParameters(this.#rule, { rescale, clip, decay, rate, ...numbers?.(spec) });
  }

  update(value: TypedArray, gradient: TypedArray, states: readonly TypedArray[], step: number): void {
    const { learningRate, beta1, beta2 } = this.spec;
    if (this.#rule === 'adam') this.#parameters[3] = adamRate(learningRate, beta1, beta2, step);
    this.#kernels.update(this.#rule, value as Reals, gradient as Reals, states as readonly Reals[], this.#parameters);
  }
}

/** The specification with every default filled in. @throws ShoalError `usage` naming the option, and what it may be. */
function completeSpec(spec: OptimizerSpec, options: Readonly<Record<string, Option>>): CompleteSpec {
  const what = `optimizer '${spec.name}'`;
  const shapes = Object.entries(options).map(([name, { shape }]) => [name, shape] as const);
  checkOptions(
    what,
    spec,
    new Map<keyof OptimizerSpec, Shape<unknown>>([['name', anything], ...(shapes as [OptionName, Shape<unknown>][])]),
  );
  checkArgument(`${what}: learningRate`, spec.learningRate, positive);
  const complete: Record<string, unknown> = { name: spec.name };
  for (const [name, { fallback }] of Object.entries(options)) {
    const value = spec[name as OptionName] ?? fallback;
    if (value !== undefined) complete[name] = value;
  }
  return complete as unknown as CompleteSpec;
}
