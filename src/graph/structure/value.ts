/** Values flow along edges while a step runs. The graph looks at dtype and shape only: tensors of Shoal, of TensorFlow.js and arrays of
 *  jax-js are values as they are. Who makes a value keeps it unchanged until the step has ended. */
import { isCount } from '../../base/bytes.ts';
import { dimensionsMax } from '../../memory/tensor.ts';
import type { Shape } from './shape.ts';

/** A tensor while a step runs. */
export interface Value {
  /** One of `GraphDType`. */
  readonly dtype: string;
  /** Elements along each axis, the outermost first. */
  readonly shape: readonly number[];
  /** The elements, or an object that brings them. */
  readonly data?: unknown;
}

/** A value with its elements, row-major. */
export interface DenseValue extends Value {
  readonly data: ArrayLike<number> | ArrayLike<bigint> | readonly string[];
}

/** Is this the dtype and the shape that the graph was built with? */
export function fits(value: Value, dtype: string, shape: Shape): boolean {
  if (value.dtype !== dtype) return false;
  if (shape === 'unknown') return true;
  if (shape.length !== value.shape.length) return false;
  for (let axis = 0; axis < shape.length; axis++) if (shape[axis] !== null && shape[axis] !== value.shape[axis]) return false;
  return true;
}

export function isValue(given: unknown): given is Value {
  if (typeof given !== 'object' || given === null) return false;
  const { dtype, shape } = given as Partial<Value>;
  if (typeof dtype !== 'string' || !Array.isArray(shape) || shape.length > dimensionsMax) return false;
  return shape.every(isCount);
}

export function formatValue({ dtype, shape }: Value): string {
  return `${dtype}[${shape.join(', ')}]`;
}
