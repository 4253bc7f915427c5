/** What one optimiser adds to what all have: its options, its states and its parameters for the kernels. From a definition
 *  and a specification an `Optimizer` is made. The arithmetic is in src/memory/parameter-kernels.ts. */
import { ShoalError } from '../../base/errors.ts';
import { nearestName } from '../../base/settings/nearest-name.ts';
import type { TypedArray } from '../../memory/dtype.ts';
import type { ParameterKernels, Reals, UpdateRule } from '../../memory/parameter-kernels.ts';
import type { Optimizer, OptimizerSpec } from './optimizer.ts';

/** Which values an option may have, in words and as a test. */
export interface OptionRange {
  readonly words: string;
  readonly holds: (value: unknown) => boolean;
}

export interface OptimizerOption {
  /** Undefined: must be given, or is absent. */
  readonly fallback?: number | string;
  readonly required?: true;
  readonly range: OptionRange;
}

type OptionName = Exclude<keyof OptimizerSpec, 'name'>;
/** A specification with every default filled in. */
export type CompleteSpec = Readonly<Record<string, number | string | undefined>>;

export interface OptimizerDefinition {
  readonly name: OptimizerSpec['name'];
  /** Beside those that all optimisers have. */
  readonly options: Partial<Record<OptionName, OptimizerOption>>;
  readonly states: readonly string[];
  rule(spec: CompleteSpec): UpdateRule;
  /** The kernel's parameters from [4] on. */
  parameters(spec: CompleteSpec): readonly number[];
  /** The learning rate of an update; default: the specification's. */
  rateAt?(spec: CompleteSpec, step: number): number;
}

const isNumber = (value: unknown): value is number => typeof value === 'number' && Number.isFinite(value);

export const finite: OptionRange = { words: 'a finite number', holds: isNumber };
export const positive: OptionRange = { words: 'a number above 0', holds: (value) => isNumber(value) && value > 0 };
export const notNegative: OptionRange = { words: 'a number from 0', holds: (value) => isNumber(value) && value >= 0 };
export const fraction: OptionRange = {
  words: 'a number from 0 and below 1',
  holds: (value) => isNumber(value) && value >= 0 && value < 1,
};
export const oneOf = (...choices: readonly string[]): OptionRange => ({
  words: `one of ${choices.map((choice) => `'${choice}'`).join(', ')}`,
  holds: (value) => typeof value === 'string' && choices.includes(value),
});

const commonOptions: Partial<Record<OptionName, OptimizerOption>> = {
  learningRate: { required: true, range: positive },
  rescale: { fallback: 1, range: finite },
  weightDecay: { fallback: 0, range: notNegative },
  clip: { range: positive },
  nonFinite: { fallback: 'apply', range: oneOf('apply', 'refuse') },
};

/** @throws ShoalError `usage` naming the option, what it is and what it may be. */
export function completeSpec(definition: OptimizerDefinition, spec: OptimizerSpec): CompleteSpec {
  const options: Record<string, OptimizerOption> = { ...commonOptions, ...definition.options };
  const given: Record<string, unknown> = { ...spec };
  const refuse = (message: string): ShoalError => new ShoalError('usage', `optimizer '${definition.name}': ${message}`);
  for (const name of Object.keys(given)) {
    if (name === 'name' || given[name] === undefined || Object.hasOwn(options, name)) continue;
    const near = nearestName(name, ['name', ...Object.keys(options)]);
    const hint = near === undefined ? `it has ${Object.keys(options).join(', ')}` : `did you mean '${near}'?`;
    throw refuse(`there is no option '${name}'; ${hint}`);
  }
  const complete: Record<string, number | string> = { name: definition.name };
  for (const [name, { fallback, required, range }] of Object.entries(options)) {
    const value = given[name] ?? fallback;
    if (value === undefined && required !== true) continue;
    if (!range.holds(value)) throw refuse(`${name} is ${JSON.stringify(value) ?? 'not given'}; it must be ${range.words}`);
    complete[name] = value as number | string;
  }
  return complete;
}

/** An optimiser whose work is done by the kernels. */
export class KernelOptimizer implements Optimizer {
  readonly spec: OptimizerSpec;
  readonly states: readonly string[];
  readonly #definition: OptimizerDefinition;
  readonly #complete: CompleteSpec;
  readonly #kernels: ParameterKernels;
  readonly #rule: UpdateRule;
  readonly #parameters: Float64Array;

  /** @throws ShoalError `usage` for a specification that cannot be. */
  constructor(definition: OptimizerDefinition, spec: OptimizerSpec, kernels: ParameterKernels) {
    const complete = completeSpec(definition, spec);
    this.spec = complete as unknown as OptimizerSpec;
    this.states = definition.states;
    this.#definition = definition;
    this.#complete = complete;
    this.#kernels = kernels;
    this.#rule = definition.rule(complete);
    const common = [complete.rescale, complete.clip ?? Infinity, complete.weightDecay, complete.learningRate];
    this.#parameters = Float64Array.from([...common, ...definition.parameters(complete)], Number);
  }

  update(value: TypedArray, gradient: TypedArray, states: readonly TypedArray[], step: number): void {
    const rate = this.#definition.rateAt?.(this.#complete, step);
    if (rate !== undefined) this.#parameters[3] = rate;
    this.#kernels.update(this.#rule, value as Reals, gradient as Reals, states as readonly Reals[], this.#parameters);
  }
}
