/** What operands of kernels must satisfy, for both implementations and for the step machine.
 *  Two views share memory only through one buffer, so buffers and offsets say what addresses would. */
import { ShoalError } from '../../base/errors.ts';
import { dtypeInfo, type DType } from '../dtype.ts';
import type { ReduceTree } from '../kernels.ts';
import { checkReduceOp, type CombineOp } from '../reduce-op.ts';

/** The misuse in words, or undefined. `elementBytes` is the alignment. */
export function operandFault(elementBytes: number, targets: readonly Uint8Array[], sources: readonly Uint8Array[]): string | undefined {
  const { byteLength } = targets[0] ?? { byteLength: 0 };
  for (const operands of [targets, sources]) {
    for (const operand of operands) {
      if (operand.byteLength !== byteLength) return `operands differ in length: ${operand.byteLength} and ${byteLength} bytes`;
      if (operand.byteOffset % elementBytes !== 0)
        return `an operand at byte ${operand.byteOffset} is not aligned to ${elementBytes} bytes`;
    }
  }
  if (byteLength % elementBytes !== 0) return `${byteLength} bytes are not a whole number of elements of ${elementBytes} bytes`;
  return overlapFault(targets, sources);
}

/** Operands may not overlap, except that a target may be exactly one of the sources. */
export function overlapFault(targets: readonly Uint8Array[], sources: readonly Uint8Array[]): string | undefined {
  for (let t = 0; t < targets.length; t++) {
    for (let other = t + 1; other < targets.length; other++) {
      if (overlap(targets[t], targets[other])) return 'two targets overlap';
    }
    for (const source of sources) {
      if (overlap(targets[t], source) && !same(targets[t], source)) return 'a target overlaps a source without being exactly it';
    }
  }
  for (let s = 0; s < sources.length; s++) {
    for (let other = s + 1; other < sources.length; other++) {
      if (overlap(sources[s], sources[other])) return 'two sources overlap';
    }
  }
  return undefined;
}

export function overlap(a: Uint8Array, b: Uint8Array): boolean {
  return (
    a.buffer === b.buffer &&
    a.byteLength > 0 &&
    b.byteLength > 0 &&
    a.byteOffset < b.byteOffset + b.byteLength &&
    b.byteOffset < a.byteOffset + a.byteLength
  );
}

export function same(a: Uint8Array, b: Uint8Array): boolean {
  return a.buffer === b.buffer && a.byteOffset === b.byteOffset && a.byteLength === b.byteLength;
}

/** How deep the stack of a postfix tree gets; 0 when it is not an expression over `sourceCount` sources with one value. */
export function treeDepth(tree: ReduceTree, sourceCount: number): number {
  let height = 0;
  let depth = 0;
  for (const node of tree) {
    if (node === -1) {
      if (height < 2) return 0;
      height--;
    } else {
      if (!Number.isInteger(node) || node < 0 || node >= sourceCount) return 0;
      height++;
      if (height > depth) depth = height;
    }
  }
  return height === 1 ? depth : 0;
}

/** @throws ShoalError `unsupported` when op is not defined on dtype, `usage` for everything else that is wrong. */
export function checkReduce(
  dtype: DType,
  op: CombineOp,
  targets: readonly Uint8Array[],
  sources: readonly Uint8Array[],
  tree: ReduceTree,
  scale: number | undefined,
): void {
  checkReduceOp(op, dtype);
  if (targets.length === 0) throw misuse('reduce', 'there is no target');
  const fault = operandFault(dtypeInfo(dtype).bytes, targets, sources);
  if (fault !== undefined) throw misuse('reduce', fault);
  if (treeDepth(tree, sources.length) === 0)
    throw misuse('reduce', `tree [${tree.join(', ')}] is not a postfix expression over ${sources.length} sources`);
  if (scale !== undefined) checkFactor('reduce', dtype, scale);
}

export function checkScale(dtype: DType, target: Uint8Array, source: Uint8Array, factor: number): void {
  const fault = operandFault(dtypeInfo(dtype).bytes, [target], [source]);
  if (fault !== undefined) throw misuse('scale', fault);
  checkFactor('scale', dtype, factor);
}

export function checkConvert(targetType: DType, target: Uint8Array, sourceType: DType, source: Uint8Array): void {
  const { bytes: targetBytes } = dtypeInfo(targetType);
  const { bytes: sourceBytes } = dtypeInfo(sourceType);
  const fault = operandFault(targetBytes, [target], []) ?? operandFault(sourceBytes, [source], []) ?? overlapFault([target], [source]);
  if (fault !== undefined) throw misuse('convert', fault);
  const [targetCount, sourceCount] = [target.byteLength / targetBytes, source.byteLength / sourceBytes];
  if (targetCount !== sourceCount)
    throw misuse('convert', `${sourceCount} ${sourceType} elements do not become ${targetCount} ${targetType} elements`);
}

export function checkCopy(target: Uint8Array, source: Uint8Array): void {
  const fault = operandFault(1, [target], [source]);
  if (fault !== undefined) throw misuse('copy', fault);
}

function checkFactor(operation: string, dtype: DType, factor: number): void {
  if (dtypeInfo(dtype).kind !== 'float')
    throw new ShoalError('unsupported', `${operation}: a factor is not defined on ${dtype}; it needs a float dtype`);
  if (Number.isNaN(factor)) throw misuse(operation, 'the factor is NaN');
}

function misuse(operation: string, fault: string): ShoalError {
  return new ShoalError('usage', `${operation}: ${fault}`, { operation });
}
