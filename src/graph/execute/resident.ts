/** Values in the memory of a library, such as TensorFlow.js, between the kernels of one partition. The library does not know when nothing
 *  needs them any more; the step does. */
import type { TypedArray } from '../../memory/dtype.ts';
import type { Value } from '../structure/value.ts';

/** A value whose memory is given back by `dispose`. */
export abstract class Resident implements Value {
  readonly dtype: string;
  readonly shape: readonly number[];
  /** Consumers in the step that have not used it. */
  uses = 0;
  #elements: TypedArray | readonly string[] | undefined;

  constructor(dtype: string, shape: readonly number[]) {
    this.dtype = dtype;
    this.shape = shape;
  }

  /** The elements, copied out once. */
  get data(): TypedArray | readonly string[] {
    return (this.#elements ??= this.read());
  }

  abstract dispose(): void;
  protected abstract read(): TypedArray | readonly string[];
}

/** A value that outlives the library's memory. */
export function plainOf(value: Value): Value {
  if (!(value instanceof Resident)) return value;
  const { dtype, shape, data } = value;
  return { dtype, shape: [...shape], data };
}
