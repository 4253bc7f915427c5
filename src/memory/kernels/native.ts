/** Kernels in the addon: checks here, loops there. */
import { dtypeInfo, type DType } from '../dtype.ts';
import type { Kernels, ReduceTree } from '../kernels.ts';
import type { Native } from '../native.ts';
import { reduceOpCode, type CombineOp } from '../reduce-op.ts';
import { checkConvert, checkCopy, checkReduce, checkScale } from './check.ts';

export class NativeKernels implements Kernels {
  readonly #native: Native;

  constructor(native: Native) {
    this.#native = native;
  }

  reduce(
    dtype: DType,
    op: CombineOp,
    targets: readonly Uint8Array[],
    sources: readonly Uint8Array[],
    tree: ReduceTree,
    divisor?: number,
  ): void {
    checkReduce(dtype, op, targets, sources, tree, divisor);
    this.#native.reduce(dtypeInfo(dtype).code, reduceOpCode(op), targets, sources, tree, divisor ?? NaN);
  }

  scale(dtype: DType, target: Uint8Array, source: Uint8Array, factor: number): void {
    checkScale(dtype, target, source, factor);
    this.#native.scale(dtypeInfo(dtype).code, target, source, factor);
  }

  convert(targetType: DType, target: Uint8Array, sourceType: DType, source: Uint8Array): void {
    checkConvert(targetType, target, sourceType, source);
    this.#native.convert(dtypeInfo(targetType).code, target, dtypeInfo(sourceType).code, source);
  }

  copy(target: Uint8Array, source: Uint8Array): void {
    checkCopy(target, source);
    this.#native.copy(target, source);
  }
}
