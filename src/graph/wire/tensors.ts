/** Values as rendezvous' tensors: what is written straight from the sender's memory into the receiver's. */
import { checkTensorValue, type TensorDType, type TensorValue } from '../../rendezvous/value/tensor-value.ts';
import { Reference } from '../execute/variable-store.ts';
import { elementsOf } from '../structure/elements.ts';
import type { Value } from '../structure/value.ts';

/** The elements are not copied. @throws ShoalError `unsupported` when they cannot be read at once, `usage` when they are not what the value says. */
export function tensorOf(given: Value): TensorValue {
  const value = given instanceof Reference ? given.read() : given;
  const { dtype, shape } = value;
  const data = dtype === 'string' ? (value.data as readonly string[]) : elementsOf(value);
  return checkTensorValue({ dtype: dtype as TensorDType, shape, data });
}
