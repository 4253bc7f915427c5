/** What flows along edges while a step runs. The graph looks at dtype and shape only: tensors of Shoal, of TensorFlow.js and arrays of
 *  jax-js are values as they are. Who makes a value keeps it unchanged until the step has ended. */

export interface Value {
  readonly dtype: string;
  readonly shape: readonly number[];
}

export function isValue(given: unknown): given is Value {
  if (typeof given !== 'object' || given === null) return false;
  const { dtype, shape } = given as Partial<Value>;
  return typeof dtype === 'string' && Array.isArray(shape) && shape.every((each) => Number.isSafeInteger(each) && (each as number) >= 0);
}
