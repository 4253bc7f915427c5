/** Updates of parameters of every float type. Those of 16 bits are updated in float32, as by MXNet's optimisers with `multi_precision`: each
 *  value has a *master* in float32 beside the states, which is updated, and rounded to the value.
 *
 *      gradient ─▶ float32 ─▶ update of the master and the states ─round─▶ value
 *
 *  Other changes of a value (its first one, updates of another server group) are added to its master before the next update. */
import { ShoalError } from '../../base/errors.ts';
import type { DType } from '../../memory/dtype.ts';
import type { Kernels } from '../../memory/kernels.ts';
import type { ParameterKernels, Reals } from '../../memory/parameter-kernels.ts';
import { elements } from '../protocol/value-space.ts';
import type { Optimizer } from '../optimizers/optimizer.ts';

/** The type of sums of gradients, states and masters; undefined where no optimiser changes the type. */
export function updateType(dtype: DType): 'float32' | 'float64' | undefined {
  if (dtype === 'float16' || dtype === 'bfloat16') return 'float32';
  return dtype === 'float32' || dtype === 'float64' ? dtype : undefined;
}

/** Names of the arrays of state of a parameter; the master is the last. */
export function stateNames(optimizer: Optimizer | undefined, dtype: DType): readonly string[] {
  const type = updateType(dtype);
  if (optimizer === undefined || type === undefined) return [];
  return type === dtype ? optimizer.states : [...optimizer.states, 'master'];
}

/** @throws ShoalError `unsupported`. @param what the parameter's name, for people. */
export function checkUpdated(dtype: DType, what: string): 'float32' | 'float64' {
  const type = updateType(dtype);
  if (type !== undefined) return type;
  throw new ShoalError('unsupported', `optimisers change parameters of floats; ${what} is ${dtype}`);
}

/** In place: the value, of `dtype`, and its states. The gradient and the states are of `updateType`. */
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
  const type = updateType(dtype) ?? dtype;
  const reals = (bytes: Uint8Array): Reals => elements(type, bytes) as Reals;
  if (type === dtype) return optimizer.update(reals(value), reals(gradient), states.map(reals), step);
  const master = states[states.length - 1];
  follow(kernels, dtype, value, master);
  optimizer.update(reals(master), reals(gradient), states.slice(0, -1).map(reals), step);
  return kernels.convert(dtype, value, type, master);
}

/** Adds to the masters what has changed their values since they were rounded to them. */
function follow(kernels: Kernels, dtype: DType, value: Uint8Array, master: Uint8Array): void {
  const rounded = new Uint8Array(new ArrayBuffer(value.byteLength));
  kernels.convert(dtype, rounded, 'float32', master);
  if (Buffer.compare(rounded, value) === 0) return;
  const [now, before] = [value, rounded].map((bytes) => {
    const wide = new Float32Array(bytes.byteLength / 2);
    kernels.convert('float32', new Uint8Array(wide.buffer), dtype, bytes);
    return wide;
  });
  const masters = elements('float32', master) as Float32Array;
  for (let k = 0; k < masters.length; k++) {
    const sum = masters[k] + (now[k] - before[k]);
    if (now[k] !== before[k]) masters[k] = Number.isFinite(sum) ? sum : now[k];
  }
}

/** Index of the first NaN or infinity among elements that an optimiser changes; −1: there is none. */
export function firstNonFinite(kernels: ParameterKernels, dtype: DType, values: Uint8Array): number {
  if (updateType(dtype) === dtype) return kernels.firstNonFinite(elements(dtype, values) as Reals);
  const exponent = dtype === 'float16' ? 0x7c00 : 0x7f80;
  return (elements(dtype, values) as Uint16Array).findIndex((bits) => (bits & exponent) === exponent);
}
