/** Reduction operators and the dtypes that they are defined on. */
import { ShoalError } from '../base/errors.ts';
import { dtypeInfo, type DType } from './dtype.ts';

/** Operators of all-reduce, reduce and reduce-scatter.
 *
 *  Sum      floats: canonical association; integers wrap; bool: or
 *  Avg      Sum, then one division by the number of ranks; floats only
 *  Product  bool: and
 *  Min/Max  a NaN anywhere gives NaN; −0 < +0
 *  Bit…     integers and bool
 *  Premul   Sum of inputs each multiplied by a factor given with the call; floats only */
export const ReduceOp = {
  /** Sum; on bool: or. */
  Sum: 'sum',
  /** Sum divided by the number of ranks; floats only. */
  Avg: 'avg',
  /** Product; on bool: and. */
  Product: 'product',
  /** Minimum; a NaN anywhere gives NaN. */
  Min: 'min',
  /** Maximum; a NaN anywhere gives NaN. */
  Max: 'max',
  /** Bitwise and; integers and bool. */
  BitAnd: 'bit-and',
  /** Bitwise or; integers and bool. */
  BitOr: 'bit-or',
  /** Bitwise exclusive or; integers and bool. */
  BitXor: 'bit-xor',
  /** Sum of inputs each multiplied by its rank's `factor`; floats only. */
  Premul: 'premul',
} as const;

/** One of the operators, by its name. */
export type ReduceOp = (typeof ReduceOp)[keyof typeof ReduceOp];

/** Operators on whether elements are other than 0, by MPI's names, on every dtype; results are 1 and 0. `land`: all are; `lor`: at least
 *  one is; `lxor`: an odd number of them are. */
export type LogicalOp = 'land' | 'lor' | 'lxor';

export function isLogicalOp(op: unknown): op is LogicalOp {
  return op === 'land' || op === 'lor' || op === 'lxor';
}

/** Operators with which the kernels combine pairs of elements; Avg and Premul are Sum plus a scaling. */
export type CombineOp = Exclude<ReduceOp, 'avg' | 'premul'>;

/** Operators by code, as in the addon and on the wire: append only. */
export const reduceOps: readonly ReduceOp[] = ['sum', 'product', 'min', 'max', 'bit-and', 'bit-or', 'bit-xor', 'avg', 'premul'];

export function reduceOpCode(op: ReduceOp): number {
  return reduceOps.indexOf(op);
}

/** The pairwise operator under a reduction. */
export function combineOpOf(op: ReduceOp): CombineOp {
  return op === 'avg' || op === 'premul' ? 'sum' : op;
}

/** @throws ShoalError `unsupported` when the operator is unknown or not defined on the dtype. */
export function checkReduceOp(op: ReduceOp, dtype: DType): void {
  if (!reduceOps.includes(op)) {
    throw new ShoalError('unsupported', `reduce op '${op}' is not supported; use one of ${reduceOps.join(', ')}`);
  }
  const { kind } = dtypeInfo(dtype);
  if (op.startsWith('bit-') && kind === 'float') {
    throw new ShoalError('unsupported', `reduce op '${op}' is not defined on ${dtype}; it needs an integer dtype or bool`);
  }
  if ((op === 'avg' || op === 'premul') && kind !== 'float') {
    throw new ShoalError('unsupported', `reduce op '${op}' is not defined on ${dtype}; it needs a float dtype, or use sum and divide`);
  }
}
