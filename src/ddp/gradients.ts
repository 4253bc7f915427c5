/** Arrays of gradients: whether they fit their parameters, and how they add up. */
import { listed } from '../base/collections/lists.ts';
import { ShoalError } from '../base/errors.ts';
import { anyList, checkArgument } from '../base/schema.ts';
import type { TypedArray } from '../memory/dtype.ts';
import { describeForeign } from '../memory/foreign-value.ts';
import type { ParameterSpec } from './buckets.ts';

/** A parameter, and the memory that holds its gradient. */
export interface GradientPlace extends ParameterSpec {
  /** The parameter's part of a bucket: accumulates gradients, then holds the average. */
  readonly gradient: TypedArray;
}

/** The error of a step in which parameters got no gradient. */
export function withoutGradient(rank: number, missing: readonly Pick<ParameterSpec, 'name'>[]): ShoalError {
  const names = listed(missing.map(({ name }) => `'${name}'`));
  const text = `ddp: rank ${rank} has no gradient for ${names}; give every parameter one, or pass findUnused: true to count missing ones as zeros`;
  return new ShoalError('usage', text, { rank });
}

/** @throws ShoalError `usage` for anything but a fitting array for each parameter. */
export function checkArrays(arrays: readonly TypedArray[], places: readonly GradientPlace[], method: string): void {
  checkArgument(`${method}: arrays`, arrays, anyList);
  if (arrays.length !== places.length)
    throw new ShoalError('usage', `ddp: ${method} got ${arrays.length} arrays for ${places.length} parameters`);
  for (const [index, array] of arrays.entries()) checkArray(places[index], array);
}

/** @throws ShoalError `usage` for anything but an array of the parameter's kind and length. */
export function checkArray({ name, dtype, shape, gradient }: GradientPlace, array: TypedArray): void {
  if (!ArrayBuffer.isView(array)) throw new ShoalError('usage', `ddp: the array of parameter '${name}' is ${describeForeign(array)}`);
  const { length: count, constructor: kind } = gradient;
  if (array.length === count && array.BYTES_PER_ELEMENT === gradient.BYTES_PER_ELEMENT && array.constructor === kind) return;
  const wanted = `${dtype}[${shape.join(', ')}], a ${kind.name} of ${count} elements`;
  throw new ShoalError('usage', `ddp: parameter '${name}' is ${wanted}; got a ${array.constructor.name} of ${array.length}`);
}

export function copyInto(target: TypedArray, source: TypedArray): void {
  target.set(source as never);
}

/** Stores a gradient times a factor. */
export function storeScaled({ gradient }: GradientPlace, source: TypedArray, factor: number): void {
  if (factor === 1) {
    copyInto(gradient, source);
    return;
  }
  const [t, s] = [gradient, source] as [Float32Array, Float32Array];
  for (let i = 0; i < t.length; i++) t[i] = s[i] * factor;
}

/** Adds a gradient times a factor to the one that is there. @throws ShoalError `unsupported` for 16-bit floats. */
export function addScaled({ gradient, name, dtype }: GradientPlace, source: TypedArray, factor: number): void {
  if (dtype !== 'float32' && dtype !== 'float64') {
    const message = `ddp: parameter '${name}' is ${dtype}: micro-batches add up in float32 or float64 only; convert the gradients`;
    throw new ShoalError('unsupported', message);
  }
  const [t, s] = [gradient, source] as [Float32Array, Float32Array];
  if (factor === 1) for (let i = 0; i < t.length; i++) t[i] = t[i] + s[i];
  else for (let i = 0; i < t.length; i++) t[i] = t[i] + s[i] * factor;
}
