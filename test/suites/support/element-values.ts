/** Numbers in tensors of any dtype, and reductions of them that are computed here. */
import type { ProcessGroup } from '../../../src/group/caller/types.ts';
import { numberAt, setNumber, wrapTo } from '../../../src/group/testing/conformance-values.ts';
import { checkReduceOp, reduceOps, type ReduceOp } from '../../../src/memory/reduce-op.ts';
import { dtypes, type DType } from '../../../src/memory/dtype.ts';
import type { Tensor } from '../../../src/memory/tensor.ts';

export const dtypeNames: readonly DType[] = dtypes.map(({ name }) => name);

/** A tensor with these small numbers, which its dtype holds exactly. */
export function tensorOf(group: ProcessGroup, dtype: DType, numbers: readonly number[]): Tensor {
  const tensor = group.tensor(dtype, [numbers.length]);
  numbers.forEach((number, i) => setNumber(tensor, i, number));
  return tensor;
}

export function numbersOf(tensor: Tensor): number[] {
  return Array.from({ length: tensor.data.length }, (_, i) => numberAt(tensor, i));
}

/** The operators, but Premul, that are defined on the dtype. */
export function opsOf(dtype: DType): ReduceOp[] {
  return reduceOps.filter((op) => {
    if (op === 'premul') return false;
    try {
      checkReduceOp(op, dtype);
      return true;
    } catch {
      return false;
    }
  });
}

const combine: Readonly<Record<Exclude<ReduceOp, 'avg' | 'premul'>, (a: number, b: number) => number>> = {
  sum: (a, b) => a + b,
  product: (a, b) => a * b,
  min: (a, b) => Math.min(a, b),
  max: (a, b) => Math.max(a, b),
  'bit-and': (a, b) => a & b,
  'bit-or': (a, b) => a | b,
  'bit-xor': (a, b) => a ^ b,
};

/** The numbers of all ranks as the operator reduces them in this dtype. */
export function reduced(op: ReduceOp, dtype: DType, numbers: readonly number[]): number {
  if (dtype === 'bool' && op === 'sum') return Math.max(...numbers);
  if (op === 'avg' || op === 'premul') return numbers.reduce(combine.sum) / (op === 'avg' ? numbers.length : 1);
  return wrapTo(dtype, numbers.reduce(combine[op]));
}
