/** Kernels in JavaScript: the twin of the addon's, bit for bit. One per thread; it owns its scratch memory. */
import type { DType } from '../dtype.ts';
import type { Kernels, ReduceTree } from '../kernels.ts';
import type { CombineOp } from '../reduce-op.ts';
import { checkConvert, checkCopy, checkReduce, checkScale } from './check.ts';
import { convertJs } from './js-convert.ts';
import { reduceJs, scaleJs } from './js-reduce.ts';
import { Scratch } from './js-scratch.ts';

export class JsKernels implements Kernels {
  readonly #scratch = new Scratch();

  reduce(
    dtype: DType,
    op: CombineOp,
    targets: readonly Uint8Array[],
    sources: readonly Uint8Array[],
    tree: ReduceTree,
    divisor?: number,
  ): void {
    checkReduce(dtype, op, targets, sources, tree, divisor);
    reduceJs(this.#scratch, dtype, op, targets, sources, tree, divisor);
  }

  scale(dtype: DType, target: Uint8Array, source: Uint8Array, factor: number): void {
    checkScale(dtype, target, source, factor);
    scaleJs(this.#scratch, dtype, target, source, factor);
  }

  convert(targetType: DType, target: Uint8Array, sourceType: DType, source: Uint8Array): void {
    checkConvert(targetType, target, sourceType, source);
    convertJs(this.#scratch, targetType, target, sourceType, source);
  }

  copy(target: Uint8Array, source: Uint8Array): void {
    checkCopy(target, source);
    target.set(source);
  }
}
