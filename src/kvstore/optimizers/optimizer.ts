/** Server-side optimisers: how a complete gradient changes a parameter. One file each, listed in registry.ts. */
import type { TypedArray } from '../../memory/dtype.ts';

export interface OptimizerSpec {
  readonly name: 'sgd' | 'momentum' | 'adam' | 'adagrad' | 'ftrl';
  readonly learningRate: number;
  /** Gradients are multiplied by it first, for instance by 1/(batch × workers). Default 1. */
  readonly rescale?: number;
  /** L2 penalty added to the gradient. Default 0. */
  readonly weightDecay?: number;
  /** Gradients are clipped to ±this after rescaling. Default: not. */
  readonly clip?: number;
  /** What to do with a gradient that holds NaN or infinity. Default `apply`. */
  readonly nonFinite?: 'apply' | 'refuse';
  /** `momentum`: default 0.9. */
  readonly momentum?: number;
  /** `momentum`: Nesterov's. Default `classic`. */
  readonly variant?: 'classic' | 'nesterov';
  /** `adam`: defaults 0.9, 0.999, 1e-8. `adagrad`: epsilon 1e-6. */
  readonly beta1?: number;
  readonly beta2?: number;
  readonly epsilon?: number;
  /** `ftrl`: defaults lambda1 0.01, beta 1. */
  readonly lambda1?: number;
  readonly beta?: number;
}

export interface Optimizer {
  readonly spec: OptimizerSpec;
  /** Names of the arrays of state, each of the value's length and dtype; they name tensors of checkpoints. */
  readonly states: readonly string[];
  /** In place: `value` and `states[i]`, same dtype (float32 or float64) and length as `gradient`. `step` counts updates of
   *  these elements, from 1. Elements are independent: any cut of the arrays gives the same bits.
   *  `gradient` is not changed. */
  update(value: TypedArray, gradient: TypedArray, states: readonly TypedArray[], step: number): void;
}
