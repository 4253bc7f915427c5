/** Updates of parameters of every float type. Those of 16 bits are updated in float32, as by MXNet's optimisers with `multi_precision`:
 *  each value has a *master* in float32 beside the states, which is updated, and rounded to the value.
 *
 *      gradient ─▶ float32 ─▶ update of the master and the states ─round─▶ value
 *
 *  Other changes of a value (its first one, updates of another server group) are added to its master before the next update. */
import { ShoalError } from '../../base/errors.ts';
import { dtypeInfo, type DType } from '../../memory/dtype.ts';
import type { Kernels } from '../../memory/kernels.ts';
import type { ParameterKernels, Reals } from '../../memory/parameter-kernels.ts';
import { firstNonFiniteHalf, followValues } from '../../memory/parameter-kernels/half-values.ts';
import { elements } from '../protocol/value-space.ts';
import type { Optimizer } from '../optimizers/optimizer.ts';

/** The type of sums of gradients, of states and masters. */
export function stateType(dtype: DType): DType {
  return dtype === 'float16' || dtype === 'bfloat16' ? 'float32' : dtype;
}

/** Names of the arrays of state of a parameter; the master is the last. */
export function stateNames(optimizer: Optimizer | undefined, dtype: DType): readonly string[] {
  if (optimizer === undefined || dtypeInfo(dtype).kind !== 'float') return [];
  return stateType(dtype) === dtype ? optimizer.states : [...optimizer.states, 'master'];
}

/** @throws ShoalError `unsupported`. @param what the parameter's name, for people. */
export function checkUpdated(dtype: DType, what: string): void {
  if (dtypeInfo(dtype).kind !== 'float') throw new ShoalError('unsupported', `optimisers change parameters of floats; ${what} is ${dtype}`);
}

/** In place: the value, of `dtype`, and its states. The gradient and the states are of `stateType`. */
export function updateValue(
  kernels: Kernels,
  optimizer: Optimizer,
  update: {
    readonly dtype: DType;
    readonly value: Uint8Array;
    readonly gradient: Uint8Array;
    readonly states: readonly Uint8Array[];
    readonly step: number;
  },
): void {
  const { dtype, value, gradient, states, step } = update;
  const type = stateType(dtype);
  const reals = (bytes: Uint8Array): Reals => elements(type, bytes) as Reals;
  if (type === dtype) return optimizer.update(reals(value), reals(gradient), states.map(reals), step);
  const master = states[states.length - 1];
  followValues(kernels, dtype, value, master);
  optimizer.update(reals(master), reals(gradient), states.slice(0, -1).map(reals), step);
  return kernels.convert(dtype, value, type, master);
}

/** Index of the first NaN or infinity; −1: there is none. */
export function firstNonFinite(kernels: ParameterKernels, dtype: DType, values: Uint8Array): number {
  if (dtypeInfo(dtype).kind !== 'float') return -1;
  return stateType(dtype) === dtype ? kernels.firstNonFinite(elements(dtype, values) as Reals) : firstNonFiniteHalf(dtype, values);
}
