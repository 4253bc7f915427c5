/** Collectives that are made of others, each as one work.
 *
 *      an op of the program's own       all-gather, gather or all-to-all ─▶ fold of all ranks' parts
 *      scan, exscan                     all-gather ─▶ fold of the parts of ranks 0…r, or 0…r−1
 *      land, lor, lxor                  whether ≠ 0, as bool ─▶ the same collective with a bitwise op ─▶ 1 or 0
 *      postscale                        the same collective ─▶ × factor
 *      maxLoc, minLoc                   all-gather of values and of indices ─▶ the extreme, and the smallest index of those that have it
 *
 *  A fold takes the parts in rank order, so that its bits are the same on all ranks, whatever the sizes and algorithms. It must not know
 *  which way calls take. */
import { messageOf, ShoalError } from '../../base/errors.ts';
import { checkOptions, type OptionTable } from '../../base/schema.ts';
import { JoinedWork } from '../../comm/caller/joined-work.ts';
import type { SettlingWork } from '../../comm/caller/work.ts';
import { dtypeInfo, viewOf, type DType, type TypedArray } from '../../memory/dtype.ts';
import type { Kernels } from '../../memory/kernels.ts';
import { checkReduceOp, combineOpOf, isLogicalOp, ReduceOp, type CombineOp, type LogicalOp } from '../../memory/reduce-op.ts';
import type { Tensor } from '../../memory/tensor.ts';
import { even, rootOf } from '../caller/call-arguments.ts';
import { bytesOf as bytesOfHost, onHost, operand, type Operand } from '../caller/call-buffers.ts';
import type { CallChecks } from '../caller/call-checks.ts';
import type { CheckedCall } from '../caller/call-dispatch.ts';
import { callOptions, reduceOptions, reduceScatterOptions, reduceToRootOptions } from '../caller/call-options.ts';
import type { AnyReduceOp, CallOptions, CollectiveData, CountsOptions, ReduceOptions, RootOptions, UserReduceOp } from '../caller/types.ts';
import type { BatchGroup } from './batch.ts';

/** The group as composed calls see it. */
export interface ComposingGroup extends BatchGroup {
  readonly rank: number;
  readonly checks: CallChecks;
  readonly kernels: Kernels;
}

const optionsOf = {
  allReduce: reduceOptions,
  reduce: reduceToRootOptions,
  reduceScatter: reduceScatterOptions,
  scan: reduceOptions,
  exscan: reduceOptions,
};
export type ReducingCall = keyof typeof optionsOf;
export type ReducingOptions = ReduceOptions<AnyReduceOp> & Placement;
type Placement = RootOptions & CountsOptions;

/** Plans have all that is asked for. */
export function isPlanned<Options extends ReduceOptions<AnyReduceOp>>(options: Options): options is Options & ReduceOptions {
  return typeof options?.op !== 'object' && !isLogicalOp(options?.op) && options?.postscale === undefined;
}

/** @throws ShoalError `usage` for options that are none of the method's. */
export function checkComposed(method: string, options: object): void {
  checkOptions(method, options, optionsOf[method as ReducingCall] as OptionTable<object>);
}

/** A call that reduces, whose arguments have been checked. */
interface Reducing {
  readonly group: ComposingGroup;
  readonly method: ReducingCall;
  readonly to: Operand;
  readonly from: Operand;
}

const bitwise = { land: ReduceOp.BitAnd, lor: ReduceOp.BitOr, lxor: ReduceOp.BitXor } as const;

/** @param target of this rank's result: the same as `source` where the call is in place. */
export function startReducing(
  group: ComposingGroup,
  method: ReducingCall,
  target: CollectiveData,
  source: CollectiveData,
  options: ReducingOptions,
): SettlingWork {
  checkComposed(method, options);
  const { op = ReduceOp.Sum, factor, postscale, ...rest } = options;
  const isInPlace = source === target;
  const from = operand(source, `the ${isInPlace ? 'data' : 'input'} of ${method}`);
  const to = operand(target, `the ${isInPlace ? 'data' : 'output'} of ${method}`);
  if (factor !== undefined && op !== ReduceOp.Premul)
    throw new ShoalError('usage', `${method}: the option factor goes with the op premul only`);
  const call = { group, method, to, from };
  if (postscale !== undefined) return scaled(call, options, postscale);
  if (isLogicalOp(op)) return throughBool(call, op, rest);
  if (typeof op === 'object') return folded(call, op, rest);
  const { checks } = group;
  const planned = { ...rest, op, ...(factor === undefined ? {} : { factor }) };
  if (method === 'reduceScatter') return group.startCollective(checks.reduceScatter(target, source, planned));
  if (method === 'allReduce' || method === 'reduce') return group.startCollective(checks[method](target, planned));
  checkReduceOp(op, from.dtype);
  const combined = combineOpOf(op);
  if (combined !== op)
    throw new ShoalError('unsupported', `${method}: op '${op}' is not defined on prefixes; use sum, or an op of your own`);
  return folded(call, combined, rest);
}

/** Whether elements are other than 0, as bool: a byte of each travels. */
function throughBool({ group, method, to, from }: Reducing, op: LogicalOp, options: CallOptions & Placement): SettlingWork {
  const { kernels } = group;
  const source = group.tensor('bool', [from.count]);
  const target = method === 'reduceScatter' ? group.tensor('bool', [to.count]) : source;
  const start = (): SettlingWork[] => {
    kernels.convert('bool', bytesOf(source), from.dtype, bytesOf(from.value));
    return [startReducing(group, method, target, source, { ...options, name: nameOf(op, options), op: bitwise[op] })];
  };
  return composed(group, [source, target], start, () => {
    if (hasResult(group, method, options)) kernels.convert(to.dtype, bytesOf(to.value), 'bool', bytesOf(target));
  });
}

/** The result times a factor. */
function scaled({ group, method, to, from }: Reducing, options: ReducingOptions, by: number): SettlingWork {
  if (dtypeInfo(to.dtype).kind !== 'float')
    throw new ShoalError('unsupported', `${method}: postscale needs a float dtype, not ${to.dtype}`);
  const inner = { ...options, postscale: undefined, name: nameOf(`postscale ${by}`, options) };
  const start = (): SettlingWork[] => [startReducing(group, method, to.value, from.value, inner)];
  return composed(group, [], start, () => {
    if (hasResult(group, method, options)) group.kernels.scale(to.dtype, bytesOf(to.value), bytesOf(to.value), by);
  });
}

/** The call changes this rank's data. */
function hasResult({ rank, size }: ComposingGroup, method: ReducingCall, options: Placement): boolean {
  return method === 'reduce' ? rootOf(options, size) === rank : method !== 'exscan' || rank > 0;
}

function folded({ group, method, to, from }: Reducing, op: CombineOp | UserReduceOp, given: CallOptions & Placement): SettlingWork {
  const { root, counts, ...options } = given;
  const { rank, size, checks } = group;
  const hasParts = method !== 'reduce' || rootOf({ root }, size) === rank;
  const parts = group.tensor(from.dtype, [hasParts ? to.count * size : 0]);
  const call = { ...options, name: nameOf(`${method} ${typeof op === 'object' ? op.name : op}`, options) };
  const checked = (): CheckedCall => {
    if (method === 'reduce') return checks.gather(hasParts ? parts : null, from.value, { ...call, root });
    if (method !== 'reduceScatter') return checks.allGather(parts, from.value, call);
    const splits = { inputSplits: counts ?? even(to.count, size), outputSplits: even(to.count, size) };
    return checks.allToAll(parts, from.value, { ...call, ...splits });
  };
  const start = (): SettlingWork[] => [group.startCollective(checked())];
  return composed(group, [parts], start, () => {
    const count = method === 'scan' ? rank + 1 : method === 'exscan' ? rank : size;
    if (!hasParts) return;
    try {
      fold(group.kernels, op, to, partsOf(parts, to.count).slice(0, count));
    } catch (cause) {
      throw new ShoalError('usage', `rank ${rank}, ${call.name}: the operator has thrown: ${messageOf(cause)}`, { rank, cause });
    }
  });
}

/** Values in place: those of the rank that has the extreme; indices in place: that rank's. */
export function startLocating(
  group: ComposingGroup,
  method: 'maxLoc' | 'minLoc',
  values: CollectiveData,
  indices: CollectiveData,
  options: CallOptions,
): SettlingWork {
  checkOptions(method, options, callOptions);
  const { size, checks, kernels } = group;
  const [value, index] = [operand(values, `the values of ${method}`), operand(indices, `the indices of ${method}`)];
  if (value.count !== index.count || !['int', 'uint'].includes(dtypeInfo(index.dtype).kind)) {
    const given = `${index.count} of ${index.dtype} for ${value.count} values`;
    throw new ShoalError('usage', `${method}: each value has an index, an integer, not ${given}`);
  }
  const { dtype, count } = value;
  const [all, allIndices] = [group.tensor(dtype, [count * size]), group.tensor(index.dtype, [count * size])];
  const call = { ...options, name: nameOf(method, options) };
  const start = (): SettlingWork[] =>
    [checks.allGather(all, values, call), checks.allGather(allIndices, indices, call)].map((each) => group.startCollective(each));
  return composed(group, [all, allIndices], start, () => {
    const parts = partsOf(all, count);
    fold(kernels, method === 'maxLoc' ? 'max' : 'min', value, parts);
    const extreme = comparable(kernels, dtype, bytesOf(values));
    const found = elementsOf(index.dtype, bytesOf(indices));
    const isFound = new Uint8Array(count);
    partsOf(allIndices, count).forEach((bytes, rank) => {
      const candidates = comparable(kernels, dtype, parts[rank]);
      const theirs = elementsOf(index.dtype, bytes);
      for (let k = 0; k < count; k++) {
        // NaN is the same as NaN, and −0 is not 0: as Min and Max have it.
        if (!Object.is(candidates[k], extreme[k]) || (isFound[k] === 1 && theirs[k] >= found[k])) continue;
        found[k] = theirs[k];
        isFound[k] = 1;
      }
    });
  });
}

/** @param finish runs when all of them have succeeded; a throw is the error of the whole. */
function composed(group: ComposingGroup, tensors: readonly Tensor[], start: () => SettlingWork[], finish: () => void): SettlingWork {
  const end = (error?: ShoalError): ShoalError | undefined => {
    try {
      if (!error) finish();
    } catch (thrown) {
      return ShoalError.from(thrown, 'usage');
    } finally {
      for (const tensor of new Set(tensors)) group.release(tensor);
    }
    return undefined;
  };
  try {
    return new JoinedWork(start(), () => group.now(), end);
  } catch (thrown) {
    const error = ShoalError.from(thrown);
    end(error);
    throw error;
  }
}

/** Sets the target to the reduction of the parts, from the first to the last. */
function fold(kernels: Kernels, op: CombineOp | UserReduceOp, { dtype, value }: Operand, parts: readonly Uint8Array[]): void {
  const target = bytesOf(value);
  if (parts.length === 0) return;
  if (typeof op === 'string')
    return kernels.reduce(
      dtype,
      op,
      [target],
      parts,
      parts.flatMap((_, k) => (k === 0 ? [0] : [k, -1])),
    );
  const [accumulator, ...others] = parts.map((part) => elementsOf(dtype, part));
  for (const other of others) op.reduce(accumulator, other);
  target.set(parts[0]);
}

/** Takes part in the contract: a rank that calls something else does not match. */
function nameOf(call: string, { name }: CallOptions): string {
  return name === undefined ? call : `${call} ${name}`;
}

function partsOf(whole: Tensor, count: number): Uint8Array[] {
  const bytes = count * dtypeInfo(whole.dtype).bytes;
  return Array.from({ length: bytes === 0 ? 0 : whole.bytes / bytes }, (_, k) => bytesOf(whole).subarray(k * bytes, (k + 1) * bytes));
}

type Elements = TypedArray & { [index: number]: number | bigint };

function elementsOf(dtype: DType, bytes: Uint8Array): Elements {
  return viewOf(dtype, bytes.buffer, bytes.byteOffset, bytes.byteLength / dtypeInfo(dtype).bytes);
}

/** Values that compare like the elements: doubles, which hold those of all other dtypes. */
function comparable(kernels: Kernels, dtype: DType, bytes: Uint8Array): ArrayLike<number | bigint> {
  if (dtype === 'int64') return elementsOf(dtype, bytes);
  const values = new Float64Array(bytes.byteLength / dtypeInfo(dtype).bytes);
  kernels.convert('float64', bytesOf(values), dtype, bytes);
  return values;
}

function bytesOf(value: CollectiveData): Uint8Array {
  return bytesOfHost(onHost(value));
}
