/** Checks operands of kernels, for both implementations and for the step machine. Two views share memory only through one buffer,
 *  so buffers and offsets stand for addresses. */
import { ShoalError } from '../../base/errors.ts';
import { dtypeInfo, type DType } from '../dtype.ts';
import type { ReduceTree } from '../kernels.ts';
import { checkReduceOp, type CombineOp } from '../reduce-op.ts';

/** The misuse in words, or undefined. `elementBytes` is the alignment. */
function operandFault(elementBytes: number, targets: readonly Uint8Array[], sources: readonly Uint8Array[]): string | undefined {
  const { length } = targets[0] ?? { length: 0 };
  for (const operands of [targets, sources]) {
    for (const operand of operands) {
      if (operand.length !== length) return `operands differ in length: ${operand.length} and ${length} bytes`;
      if (operand.byteOffset % elementBytes !== 0)
        return `an operand at byte ${operand.byteOffset} is not aligned to ${elementBytes} bytes`;
    }
  }
  if (length % elementBytes !== 0) return `${length} bytes are not a whole number of elements of ${elementBytes} bytes`;
  return overlapFault(targets, sources);
}

/** Overlap in words, or undefined: operands may not overlap, except that a target may be exactly one of the sources. */
export function overlapFault(targets: readonly Uint8Array[], sources: readonly Uint8Array[]): string | undefined {
  // The getters of a view cost as much as all of a comparison: each is read once, not once per pair.
  const operands = [...targets, ...sources];
  const buffers = operands.map((operand) => operand.buffer);
  const starts = operands.map((operand) => operand.byteOffset);
  const ends = operands.map((operand, k) => starts[k] + operand.length);
  for (let a = 0; a < operands.length; a++) {
    for (let b = a + 1; b < operands.length; b++) {
      if (starts[a] >= ends[b] || starts[b] >= ends[a] || buffers[a] !== buffers[b] || starts[a] === ends[a] || starts[b] === ends[b])
        continue;
      if (b < targets.length) return 'two targets overlap';
      if (a >= targets.length) return 'two sources overlap';
      if (starts[a] !== starts[b] || ends[a] !== ends[b]) return 'a target overlaps a source without being exactly it';
    }
  }
  return undefined;
}

export function overlap(a: ArrayBufferView, b: ArrayBufferView): boolean {
  const end = Math.min(a.byteOffset + a.byteLength, b.byteOffset + b.byteLength);
  return a.buffer === b.buffer && Math.max(a.byteOffset, b.byteOffset) < end;
}

export function same(a: Uint8Array, b: Uint8Array): boolean {
  return a.buffer === b.buffer && a.byteOffset === b.byteOffset && a.byteLength === b.byteLength;
}

/** Greatest depth of the stack of a postfix tree; 0 when it is not an expression over `sourceCount` sources with one value. */
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
  divisor: number | undefined,
): void {
  checkReduceOp(op, dtype);
  if (targets.length === 0) throw misuse('reduce', 'there is no target');
  const fault = operandFault(dtypeInfo(dtype).bytes, targets, sources);
  if (fault !== undefined) throw misuse('reduce', fault);
  if (treeDepth(tree, sources.length) === 0)
    throw misuse('reduce', `tree [${tree.join(', ')}] is not a postfix expression over ${sources.length} sources`);
  if (divisor !== undefined) checkFactor('reduce', dtype, divisor);
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
