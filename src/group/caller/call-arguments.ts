/** Checks of plain arguments. All throw `usage` before anything is done. */
import { ShoalError } from '../../base/errors.ts';
import { sum } from '../../base/numbers.ts';
import { anyList, checkArgument, describeValue } from '../../base/schema.ts';
import { algorithms } from '../../collectives/registry.ts';
import { checkReduceOp, ReduceOp } from '../../memory/reduce-op.ts';
import { collectiveLibraries } from '../../call/collective-libraries.ts';
import { partOf, type Operand } from './call-buffers.ts';
import type { Place } from '../../call/contract.ts';
import type { CollectiveData, CountsOptions, ReduceOptions } from './types.ts';

/** @param method that the call needs of the group. @throws ShoalError `usage` for anything but a process group. */
export function checkGroup<Group extends object>(call: string, group: Group, method: keyof Group): void {
  if (typeof group === 'object' && group !== null && typeof group[method] === 'function') return;
  throw new ShoalError('usage', `${call}: the first argument is the process group, not ${describeValue(group)}`);
}

export function rootOf({ root = 0 }: { root?: number }, size: number): number {
  if (Number.isInteger(root) && root >= 0 && root < size) return root;
  throw new ShoalError('usage', `root ${root} is not a rank of this group; use 0…${size - 1}`);
}

export function checkTimeout(timeoutMs: number): number {
  if (timeoutMs > 0) return timeoutMs;
  throw new ShoalError('usage', `timeoutMs must be positive, not ${timeoutMs}`);
}

export function checkTag(tag: number): number {
  if (Number.isInteger(tag) && tag >= 0 && tag <= 0xffff) return tag;
  throw new ShoalError('usage', `tag ${tag} must be an integer of 0…65535`);
}

/** @param taken the ranks of lists before this one. @throws ShoalError `usage` unless these are distinct ranks of a group of so many. */
export function checkRanks(call: string, ranks: readonly number[], size: number, taken = new Set<number>()): void {
  checkArgument(`${call}: ranks`, ranks, anyList);
  for (const rank of ranks) {
    if (!Number.isInteger(rank) || rank < 0 || rank >= size)
      throw new ShoalError('usage', `${call}: ${String(rank)} is not a rank of 0…${size - 1}`);
    if (taken.has(rank)) throw new ShoalError('usage', `${call}: rank ${rank} is listed twice`);
    taken.add(rank);
  }
  if (ranks.length === 0) throw new ShoalError('usage', `${call}: a group needs one rank at least`);
}

/** The operator and factor of a call that reduces. Default: their sum. */
export function reductionOf(
  { dtype }: Operand,
  { op = ReduceOp.Sum, factor, postscale }: ReduceOptions,
): { op: ReduceOp; factor?: number } {
  checkReduceOp(op, dtype);
  if (postscale !== undefined)
    throw new ShoalError('unsupported', 'postscale is an option of single calls, not of batches and scheduled groups');
  if ((op === ReduceOp.Premul) !== (factor !== undefined))
    throw new ShoalError('usage', "reduce op 'premul' and the option factor go together");
  return factor === undefined ? { op } : { op, factor };
}

export function checkSameDtype(operation: string, a: Operand, b: Operand): void {
  if (a.dtype !== b.dtype) throw new ShoalError('usage', `${operation}: input is ${a.dtype}, output is ${b.dtype}; they must be the same`);
}

export function checkSameCount(operation: string, input: Operand, output: Operand): void {
  if (input.count === output.count) return;
  const message = `${operation}: the input has ${input.count} elements, the output ${output.count}; without splits they must have equally many`;
  throw new ShoalError('usage', message);
}

/** An argument that the root has, and nobody else. */
export function checkRootOnly(role: string, value: CollectiveData | null, root: number, rank: number): void {
  if ((value !== null) === (rank === root)) return;
  throw new ShoalError(
    'usage',
    rank === root
      ? `${role} is missing on the root (rank ${root})`
      : `${role} must be null on rank ${rank}: only the root (rank ${root}) has it`,
  );
}

/** Elements per rank against this rank's part, and the whole where this rank has it. @returns the elements of the whole. */
export function checkCounts(
  { rank, size }: Place,
  operation: string,
  counts: readonly number[],
  part: Operand,
  whole: Operand | undefined,
): number {
  if (counts.length !== size || !counts.every((count) => Number.isSafeInteger(count) && count >= 0))
    throw new ShoalError('usage', `${operation}: counts [${counts.join(', ')}] must be ${size} non-negative integers, one per rank`);
  if (counts[rank] !== part.count) {
    throw new ShoalError('usage', `${operation}: this rank's part has ${part.count} elements, counts say ${counts[rank]} for rank ${rank}`);
  }
  const total = counts.reduce((sum, count) => sum + count, 0);
  if (!whole) return total;
  checkSameDtype(operation, part, whole);
  if (whole.count !== total)
    throw new ShoalError('usage', `${operation}: the whole has ${whole.count} elements, the parts of ${size} ranks have ${total}`);
  return total;
}

/** A copy of the counts for calls to keep: the caller's list may change when the call has returned. */
export function keptCounts({ counts }: CountsOptions): readonly number[] | undefined {
  return counts && [...counts];
}

/** This rank's part of the whole, where it lies. */
export function ownPart({ rank, size }: Place, whole: Operand, { counts = even(whole.count / size, size) }: CountsOptions): Operand {
  return partOf(whole, sum(counts.slice(0, rank)), counts[rank]);
}

/** The same count for every rank. */
export function even(count: number, size: number): number[] {
  return new Array<number>(size).fill(count);
}

/** The splits of one argument, checked; default: the same for every rank. @throws ShoalError `usage`. */
export function splitsOf(
  role: 'inputSplits' | 'outputSplits',
  splits: readonly number[] | undefined,
  value: Operand,
  size: number,
): readonly number[] {
  if (splits === undefined) {
    if (value.count % size !== 0)
      throw new ShoalError('usage', `allToAll: ${value.count} elements do not divide by ${size} ranks; give ${role}`);
    return even(value.count / size, size);
  }
  const total = splits.reduce((sum, count) => sum + count, 0);
  if (splits.length !== size || !splits.every((count) => Number.isSafeInteger(count) && count >= 0) || total !== value.count) {
    const message = `allToAll: ${role} [${splits.join(', ')}] must be ${size} non-negative integers that sum to ${value.count}`;
    throw new ShoalError('usage', message);
  }
  // Ranks read it after the call has returned.
  return [...splits];
}

/** The place of a rank on its host. */
export function localPlace(hosts: readonly (readonly number[])[], rank: number): { localRank: number; localSize: number } {
  const host = hosts.find((ranks) => ranks.includes(rank)) ?? [rank];
  return { localRank: host.indexOf(rank), localSize: host.length };
}

/** An algorithm's or a library's name, or `auto`. */
export function checkBackend(backend: string): void {
  const known = ['auto', ...Object.keys(collectiveLibraries), ...algorithms.map((algorithm) => algorithm.name)];
  if (!known.includes(backend)) throw new ShoalError('usage', `unknown backend '${backend}'; use ${known.join(', ')}`);
}
