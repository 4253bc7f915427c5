/** Server-side optimisers: how a complete gradient changes a parameter. registry.ts has them. */
import type { TypedArray } from '../../memory/dtype.ts';

/** The optimiser that servers apply, with its hyperparameters, as MXNet has them. An option that the optimiser does not have, and a
 *  value out of its range, are `usage`.
 *
 *      await kv.setOptimizer({ name: 'adam', learningRate: 1e-3, rescale: 1 / kv.workersPerGroup }); */
export interface OptimizerSpec {
  /** The rule: `sgd` (none but the common options), `momentum` (classic or Nesterov's), `adam`, `adagrad`, or `ftrl` (sparse linear
   *  models). */
  readonly name: 'sgd' | 'momentum' | 'adam' | 'adagrad' | 'ftrl';
  /** Above 0; what the gradient's step is multiplied by. */
  readonly learningRate: number;
  /** Gradients are multiplied by it first, for instance by 1/(batch × workers). Default 1. */
  readonly rescale?: number;
  /** L2 penalty added to the gradient. Default 0. */
  readonly weightDecay?: number;
  /** Gradients are clipped to ±this after rescaling. Default: not. */
  readonly clip?: number;
  /** The treatment of a gradient that holds NaN or infinity. Default `apply`. */
  readonly nonFinite?: 'apply' | 'refuse';
  /** `momentum`: default 0.9. */
  readonly momentum?: number;
  /** `momentum`: Nesterov's. Default `classic`. */
  readonly variant?: 'classic' | 'nesterov';
  /** `adam`: how much of the running mean of gradients stays at each step, 0 to below 1. Default 0.9. */
  readonly beta1?: number;
  /** `adam`: how much of the running mean of squared gradients stays at each step, 0 to below 1. Default 0.999. */
  readonly beta2?: number;
  /** `adam`, `adagrad`: added to the root of the squared gradients, so that nothing is divided by 0. Default 1e-8 for `adam`, 1e-6 for
   *  `adagrad`. */
  readonly epsilon?: number;
  /** `ftrl`: L1 penalty; weights whose evidence is below it are 0. Default 0.01. */
  readonly lambda1?: number;
  /** `ftrl`: smooths the learning rate of each coordinate, above 0. Default 1. */
  readonly beta?: number;
}

export interface Optimizer {
  readonly spec: OptimizerSpec;
  /** Names of the arrays of state, each with as many elements as the value; they name tensors of checkpoints. */
  readonly states: readonly string[];
  /** In place: `value` and `states[i]`, same dtype (float32 or float64) and length as `gradient`. `step` counts updates of
   *  these elements, from 1. Elements are independent: any cut of the arrays gives the same bits.
   *  `gradient` is not changed. */
  update(value: TypedArray, gradient: TypedArray, states: readonly TypedArray[], step: number): void;
}
