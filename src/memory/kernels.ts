/** Kernels: the arithmetic on elements. Two implementations, `native` (the addon) and `js` (its twin), give the same bits for
 *  every dtype and operator, NaN payloads excepted. They must not know ranks, plans or where memory came from.
 *
 *  All operands are byte views aligned to the element size. Operands of one call must not overlap, except that a target may be
 *  exactly (same address, same length) one of the sources; anything else is refused with `usage`. */
import type { DType } from './dtype.ts';
import type { CombineOp } from './reduce-op.ts';

/** Evaluation order of a reduction over sources 0…n−1, in postfix: `i ≥ 0` pushes source i, `−1` combines the top two.
 *  The left operand is the one pushed first. `[0, 1, -1, 2, -1]` is (s0 ⊕ s1) ⊕ s2. */
export type ReduceTree = readonly number[];

export interface Kernels {
  /** Sets every target[k] to the reduction of sources[…][k] along `tree`; all targets receive the same bits. `float16` and
   *  `bfloat16` are accumulated in float32 over the whole tree and rounded once (to nearest even). `divisor`, floats only: the
   *  result is divided by it (in float32 for 16-bit floats) before rounding and storing. */
  reduce(
    dtype: DType,
    op: CombineOp,
    targets: readonly Uint8Array[],
    sources: readonly Uint8Array[],
    tree: ReduceTree,
    divisor?: number,
  ): void;
  /** Sets target[k] to source[k] × factor. Float dtypes. */
  scale(dtype: DType, target: Uint8Array, source: Uint8Array, factor: number): void;
  /** Sets target[k] to source[k] as another dtype. Floats to floats round to nearest even; floats to integers truncate and
   *  saturate, NaN gives 0; integers to narrower integers wrap; anything to bool is `≠ 0`. */
  convert(targetType: DType, target: Uint8Array, sourceType: DType, source: Uint8Array): void;
  /** Copies bytes (memcpy). */
  copy(target: Uint8Array, source: Uint8Array): void;
}

/** The balanced tree over n sources: split at the largest power of two below n, both halves alike.
 *  n = 6: ((0 1)(2 3))(4 5). It is the association of a binomial tree, of recursive doubling and of halving-doubling. */
export function balancedTree(n: number): number[] {
  const tree: number[] = [];
  const visit = (from: number, to: number): void => {
    if (to - from === 1) {
      tree.push(from);
      return;
    }
    let half = 1;
    while (half * 2 < to - from) half *= 2;
    visit(from, from + half);
    visit(from + half, to);
    tree.push(-1);
  };
  if (n > 0) visit(0, n);
  return tree;
}
