/** The optimisers, by name. A new one is its own file and one line here. */
import { ShoalError } from '../../base/errors.ts';
import type { ParameterKernels } from '../../memory/parameter-kernels.ts';
import { adagrad } from './adagrad.ts';
import { adam } from './adam.ts';
import { KernelOptimizer, type OptimizerDefinition } from './definition.ts';
import { ftrl } from './ftrl.ts';
import { momentum } from './momentum.ts';
import type { Optimizer, OptimizerSpec } from './optimizer.ts';
import { sgd } from './sgd.ts';

export const optimizers: readonly OptimizerDefinition[] = [sgd, momentum, adam, adagrad, ftrl];

/** @throws ShoalError `usage` for an unknown name, an option that the optimiser does not have, or a value out of range. */
export function createOptimizer(spec: OptimizerSpec, kernels: ParameterKernels): Optimizer {
  const definition = optimizers.find(({ name }) => name === spec.name);
  if (definition !== undefined) return new KernelOptimizer(definition, spec, kernels);
  const known = optimizers.map(({ name }) => name).join(', ');
  throw new ShoalError('usage', `there is no optimizer '${spec.name}'; use one of ${known}`);
}
