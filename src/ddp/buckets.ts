/** Assignment of parameters to gradient buckets: a pure function of what every rank knows. It must not know groups or memory.
 *
 *  Backward passes produce gradients roughly in reverse order of registration, so buckets are filled in that order and the
 *  first one is small: its all-reduce starts early. As in PyTorch DDP (Li et al., VLDB 2020, §3.2.3), except that a bucket
 *  never exceeds its limit unless it holds a single parameter.
 *
 *   registered   p0 ───── p1 ── p2 ── p3 ─────── p4
 *   bucket 0     [p4]                              ≤ firstBucketBytes
 *   bucket 1     [p3 · pad · p2 · pad · p1]        ≤ bucketBytes
 *   bucket 2     [p0]                              larger than a bucket: alone */
import { assert } from '../base/assert.ts';
import { ShoalError } from '../base/errors.ts';
import { anyList, anyObject, anyText, checkArgument, checkFields, integer, optionTable } from '../base/schema.ts';
import { dtypeInfo, type DType } from '../memory/dtype.ts';
import { countOf } from '../memory/tensor.ts';

/** Parameters start at multiples of this many bytes, so that no two share a cache line and kernels see aligned operands. */
export const parameterAlignment = 64;

/** One parameter as registered: every rank registers the same ones in the same order. */
export interface ParameterSpec {
  /** Unique; appears in errors. */
  readonly name: string;
  /** Dimensions; only their product matters to the bucket, and all ranks compare them. */
  readonly shape: readonly number[];
  /** A float dtype. */
  readonly dtype: DType;
}

/** Position of a parameter's gradient in its bucket. */
export interface BucketSlot {
  /** Index of the parameter in registration order. */
  readonly parameter: number;
  /** Index of the parameter's first element in the bucket. */
  readonly offset: number;
  /** Elements of the parameter. */
  readonly count: number;
}

/** Gradients that are averaged by one all-reduce, side by side. */
export interface Bucket {
  /** Dtype of all gradients in the bucket. */
  readonly dtype: DType;
  /** Elements in all, padding between slots included. */
  readonly count: number;
  /** Bytes in all, padding included. */
  readonly bytes: number;
  /** The gradients, in the order in which they are expected: reverse registration. */
  readonly slots: readonly BucketSlot[];
}

/** Limits of the sizes of buckets; a single parameter that is larger has a bucket alone. */
export interface BucketLimits {
  /** Bytes of the first bucket of each dtype. */
  readonly firstBucketBytes: number;
  /** Bytes of every other bucket. */
  readonly bucketBytes: number;
}

const bucketLimits = optionTable<BucketLimits>({ firstBucketBytes: integer({ min: 1 }), bucketBytes: integer({ min: 1 }) });

interface OpenBucket {
  readonly limit: number;
  count: number;
  slots: BucketSlot[];
}

/** Assigns parameters to buckets, in the order in which these are to be started: that of their last expected gradients. Every
 *  parameter is in exactly one bucket; a bucket has one dtype; only a single parameter may exceed its limit.
 *  @throws ShoalError `usage` for duplicate names, invalid shapes and limits; `unsupported` for a dtype that is not a float. */
export function assignBuckets(parameters: readonly ParameterSpec[], limits: BucketLimits): Bucket[] {
  checkFields('assignBuckets', limits, bucketLimits);
  checkSpecs(parameters);
  const buckets: Bucket[] = [];
  const open = new Map<DType, OpenBucket>();
  const begun = new Set<DType>();
  const close = (dtype: DType, { count, slots }: OpenBucket): void => {
    buckets.push({ dtype, count, bytes: count * dtypeInfo(dtype).bytes, slots });
    open.delete(dtype);
  };
  for (let parameter = parameters.length - 1; parameter >= 0; parameter--) {
    const { dtype, shape } = parameters[parameter];
    const count = countOf(shape);
    const { bytes: elementBytes } = dtypeInfo(dtype);
    const aligned = parameterAlignment / elementBytes;
    const current = open.get(dtype);
    if (current) {
      const offset = Math.ceil(current.count / aligned) * aligned;
      if ((offset + count) * elementBytes <= current.limit) {
        current.slots.push({ parameter, offset, count });
        current.count = offset + count;
        continue;
      }
      close(dtype, current);
    }
    const limit = begun.has(dtype) ? limits.bucketBytes : limits.firstBucketBytes;
    begun.add(dtype);
    open.set(dtype, { limit, count, slots: [{ parameter, offset: 0, count }] });
  }
  for (const [dtype, bucket] of [...open]) close(dtype, bucket);
  const lastExpected = ({ slots }: Bucket): number => slots[slots.length - 1].parameter;
  buckets.sort((a, b) => lastExpected(b) - lastExpected(a));
  assert(buckets.reduce((sum, { slots }) => sum + slots.length, 0) === parameters.length, () => 'every parameter has one slot');
  return buckets;
}

/** @throws ShoalError `usage`, `unsupported` like `assignBuckets`. */
export function checkSpecs(parameters: readonly ParameterSpec[]): void {
  checkArgument('parameters', parameters, anyList);
  const names = new Set<string>();
  for (const parameter of parameters) {
    checkArgument('a parameter', parameter, anyObject);
    const { name, dtype, shape } = parameter;
    checkArgument('the name of a parameter', name, anyText);
    if (names.has(name)) throw new ShoalError('usage', `parameter '${name}' is registered twice; give every parameter its own name`);
    names.add(name);
    countOf(shape);
    if (dtypeInfo(dtype).kind !== 'float') {
      const message = `parameter '${name}' is ${dtype}: only float gradients can be averaged; leave it out of the parameters`;
      throw new ShoalError('unsupported', message);
    }
  }
}

/** Deals items out to ranks, in their order, each to the rank with the fewest bytes, like torch. @returns the rank of each item. */
export function dealtOut(bytes: readonly number[], size: number): number[] {
  const loads = new Float64Array(size);
  return bytes.map((each) => {
    const rank = loads.indexOf(Math.min(...loads));
    loads[rank] += each;
    return rank;
  });
}
