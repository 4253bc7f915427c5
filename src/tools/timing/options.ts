/** The options of a benchmark as plain data: the same on every rank, given to the ranks as JSON. Command lines are parsed into it
 *  elsewhere; the vocabulary is that of nccl-tests. */
import { messageOf, ShoalError } from '../../base/errors.ts';
import { formatBytes, parseBytes } from '../../base/settings/quantity.ts';
import { dtypeOfArray, dtypes, viewOf, type DType } from '../../memory/dtype.ts';
import { checkReduceOp, type ReduceOp } from '../../memory/reduce-op.ts';
import { reduces, type CollectiveName } from './collective.ts';

/** The size of a row, and its number of iterations. */
export interface SizePoint {
  /** Requested bytes; collectives with parts per rank round down to whole, aligned parts. */
  readonly bytes: number;
  readonly iterations: number;
  readonly warmup: number;
}

/** Elements, and the operator on them. */
export interface Kind {
  readonly dtype: DType;
  readonly op: ReduceOp;
}

export interface BenchOptions extends Kind {
  readonly collective: CollectiveName;
  readonly sizes: readonly SizePoint[];
  /** All that are measured, one after the other, instead of `dtype` and `op`. */
  readonly kinds?: readonly Kind[];
  readonly root: number;
  /** Rounds of verification after the timed iterations; 0: none. */
  readonly checks: number;
  /** `shared`: tensors of the group; `private`: plain typed arrays, which are staged. */
  readonly memory: 'shared' | 'private';
  /** `each`: every rank writes its input before each call, outside the time measured; `once`: before the first. */
  readonly touch: 'each' | 'once';
  /** Way to wait for calls: `await work`, or `work.waitSync()`. */
  readonly wait: 'async' | 'sync';
  /** Number of operations in flight at the same time. */
  readonly parallel: number;
  /** Operations per sample, on as many tensors; the reported time is a sample's divided by it. */
  readonly buckets: number;
  /** Number of buckets that are checked. Default: all. */
  readonly checkedBuckets?: number;
  /** Only the in-place half of a row, where the collective has one. Default: both halves. */
  readonly onlyInPlace?: true;
  /** Also the calls with computation beside them, as OSU's non-blocking collectives have it. */
  readonly overlap?: true;
  /** Backend for `initProcessGroup`. */
  readonly backend: string;
  /** `kept`: the report holds every sample of every rank. */
  readonly samples: 'kept' | 'dropped';
}

/** The requested range of sizes; printed in the header as nccl-tests does. */
export interface SizeRange {
  readonly minBytes: number;
  readonly maxBytes: number;
  readonly stepBytes: number;
  /** Factor between sizes; 1: steps of `stepBytes`. */
  readonly stepFactor: number;
}

/** Most sizes: ranks get them in an argument, which Linux bounds to 128 KiB. */
const sizePointsMax = 1000;

/** @throws ShoalError `usage`. */
export function sizesOf(range: SizeRange, counts: { readonly iterations: number; readonly warmup: number }): SizePoint[] {
  const { minBytes, maxBytes, stepBytes, stepFactor } = range;
  if (minBytes > maxBytes) throw new ShoalError('usage', `--minbytes ${formatBytes(minBytes)} exceeds --maxbytes ${formatBytes(maxBytes)}`);
  if (stepFactor > 1 && minBytes === 0) throw new ShoalError('usage', '--stepfactor multiplies, so that --minbytes 0 never grows');
  if (stepFactor <= 1 && stepBytes === 0) throw new ShoalError('usage', '--stepbytes must be positive');
  const points: SizePoint[] = [];
  for (let bytes = minBytes; bytes <= maxBytes; bytes = stepFactor > 1 ? bytes * stepFactor : bytes + stepBytes) {
    if (points.length === sizePointsMax)
      throw new ShoalError('usage', `more than ${sizePointsMax} sizes; use --stepfactor or a larger step`);
    points.push({ bytes, ...counts });
  }
  return points;
}

/** Reads `8:2000:400,1KiB:2000,25MiB`: sizes, each with its iterations and its warm-up iterations unless the defaults are meant.
 *  @throws ShoalError `usage`. */
export function parseSizes(text: string, counts: { readonly iterations: number; readonly warmup: number }): SizePoint[] {
  const items = text.split(',');
  if (items.length > sizePointsMax)
    throw new ShoalError('usage', `--sizes has ${items.length} sizes; at most ${sizePointsMax} can be measured`);
  return items.map((item) => {
    const [size, iterations = String(counts.iterations), warmup = String(counts.warmup), ...more] = item.split(':');
    const bytes = parseBytes(size);
    const valid = bytes !== undefined && /^[1-9]\d{0,8}$/.test(iterations) && /^\d{1,9}$/.test(warmup) && more.length === 0;
    if (!valid) throw new ShoalError('usage', `'${item}' is not a size with iterations; write 1KiB, 1KiB:2000 or 1KiB:2000:100`);
    return { bytes, iterations: Number(iterations), warmup: Number(warmup) };
  });
}

/** nccl-tests' names of dtypes and operators that have another name here. */
const typeNames: Readonly<Partial<Record<DType, string>>> = { float32: 'float', float64: 'double', float16: 'half' };
const opNames: Readonly<Partial<Record<ReduceOp, string>>> = { product: 'prod', 'bit-and': 'band', 'bit-or': 'bor', 'bit-xor': 'bxor' };

/** Name of a dtype as tables print it: `float`, `half`, `int32`. */
export function typeNameOf(dtype: DType): string {
  return typeNames[dtype] ?? dtype;
}

/** Name of an operator as tables print it: `sum`, `prod`. */
export function opNameOf(op: ReduceOp): string {
  return opNames[op] ?? op;
}

/** Reads a dtype in either vocabulary. @throws ShoalError `usage` listing the known ones. */
export function parseDtype(text: string): DType {
  const found = dtypes.find(({ name }) => name === text || typeNameOf(name) === text);
  if (found !== undefined) return found.name;
  throw new ShoalError('usage', `--datatype ${text} is not known; use ${dtypes.map(({ name }) => typeNameOf(name)).join(', ')}`);
}

/** Operators that inputs can be made for; `premul` would need a factor. */
export const measuredOps: readonly ReduceOp[] = ['sum', 'product', 'min', 'max', 'avg', 'bit-and', 'bit-or', 'bit-xor'];

/** Reads an operator in either vocabulary. @throws ShoalError `usage` listing the known ones. */
export function parseOp(text: string): ReduceOp {
  const found = measuredOps.find((op) => op === text || opNameOf(op) === text);
  if (found !== undefined) return found;
  throw new ShoalError('usage', `--op ${text} cannot be measured; use ${measuredOps.map(opNameOf).join(', ')}`);
}

/** Reads dtype and operator, each possibly `all`: every pair that is defined, operators only where the collective reduces; of private
 *  memory the dtypes with a typed array of their own.
 *  @throws ShoalError `usage` for a pair that is not defined. */
export function parseKinds(
  { collective, memory }: Pick<BenchOptions, 'collective' | 'memory'>,
  { datatype, op }: { datatype: string; op: string },
): Kind[] {
  const types = datatype === 'all' ? dtypes.map(({ name }) => name) : [parseDtype(datatype)];
  const ops = op === 'all' ? measuredOps.slice(0, reduces(collective) ? undefined : 1) : [parseOp(op)];
  if (datatype !== 'all' && op !== 'all') checkOp(collective, ops[0], types[0]);
  const kinds = types.flatMap((dtype) => ops.map((each) => ({ dtype, op: each })));
  return kinds.filter((kind) => isDefined(collective, kind) && (datatype !== 'all' || memory === 'shared' || hasOwnArray(kind.dtype)));
}

/** Whether plain arrays of this dtype say so: those of 16-bit floats and booleans are of integers. */
export function hasOwnArray(dtype: DType): boolean {
  return dtypeOfArray(viewOf(dtype, new ArrayBuffer(8), 0, 1)) === dtype;
}

function isDefined(collective: CollectiveName, { dtype, op }: Kind): boolean {
  try {
    checkOp(collective, op, dtype);
    return true;
  } catch {
    return false;
  }
}

/** @throws ShoalError `usage` when the collective would reduce elements with an operator that is not defined on them. */
export function checkOp(collective: CollectiveName, op: ReduceOp, dtype: DType): void {
  if (!reduces(collective)) return;
  try {
    checkReduceOp(op, dtype);
  } catch (thrown) {
    throw new ShoalError('usage', `--op ${opNameOf(op)} with --datatype ${typeNameOf(dtype)}: ${messageOf(thrown)}`, { cause: thrown });
  }
}
