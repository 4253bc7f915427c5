/** Picks the kernels: the addon's when it is there, else their twin in JavaScript, which gives the same bits. Both check their operands. */
import { dtypeInfo } from '../dtype.ts';
import type { Kernels } from '../kernels.ts';
import type { Native } from '../native.ts';
import { reduceOpCode } from '../reduce-op.ts';
import { checkConvert, checkCopy, checkReduce, checkScale } from './check.ts';
import { convertJs } from './js-convert.ts';
import { reduceJs, scaleJs } from './js-reduce.ts';
import { Scratch } from './js-scratch.ts';

/** One per thread: the twin owns its scratch memory. */
export function createKernels({ native }: { readonly native?: Native | undefined } = {}): Kernels {
  const scratch = new Scratch();
  return {
    reduce(dtype, op, targets, sources, tree, divisor) {
      checkReduce(dtype, op, targets, sources, tree, divisor);
      if (native === undefined) reduceJs(scratch, dtype, op, targets, sources, tree, divisor);
      else native.reduce(dtypeInfo(dtype).code, reduceOpCode(op), targets, sources, tree, divisor ?? NaN);
    },
    scale(dtype, target, source, factor) {
      checkScale(dtype, target, source, factor);
      if (native === undefined) scaleJs(scratch, dtype, target, source, factor);
      else native.scale(dtypeInfo(dtype).code, target, source, factor);
    },
    convert(targetType, target, sourceType, source) {
      checkConvert(targetType, target, sourceType, source);
      if (native === undefined) convertJs(scratch, targetType, target, sourceType, source);
      else native.convert(dtypeInfo(targetType).code, target, dtypeInfo(sourceType).code, source);
    },
    copy(target, source) {
      checkCopy(target, source);
      if (native === undefined) target.set(source);
      else native.copy(target, source);
    },
  };
}
