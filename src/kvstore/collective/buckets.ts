/** The parameters of a call that travel together. A pure function of facts that all workers share: the same
 *  buckets everywhere.
 *
 *    small   packed, in the order of the keys, one bucket after the other per dtype
 *    large   alone, so that it can stay where it is */
import { getOrMake } from '../../base/collections/lists.ts';
import { dtypeInfo, type DType } from '../../memory/dtype.ts';

export interface BucketMember {
  /** The position in the list of parameters. */
  readonly index: number;
  /** First element in the bucket. */
  readonly from: number;
  readonly count: number;
}

export interface Bucket {
  readonly dtype: DType;
  readonly members: readonly BucketMember[];
  readonly count: number;
  readonly bytes: number;
  /** One parameter that is at least `aloneBytes`. */
  readonly alone: boolean;
}

export interface BucketOptions {
  readonly bucketBytes: number;
  readonly aloneBytes: number;
}

export function planBuckets(
  parameters: readonly { readonly dtype: DType; readonly count: number }[],
  { bucketBytes, aloneBytes }: BucketOptions,
): Bucket[] {
  const buckets: Bucket[] = [];
  const open = new Map<DType, { members: BucketMember[]; count: number }>();
  const close = (dtype: DType): void => {
    const bucket = open.get(dtype);
    if (bucket === undefined) return;
    open.delete(dtype);
    buckets.push({ dtype, ...bucket, bytes: bucket.count * dtypeInfo(dtype).bytes, alone: false });
  };
  for (const [index, { dtype, count }] of parameters.entries()) {
    const { bytes: elementBytes } = dtypeInfo(dtype);
    const bytes = count * elementBytes;
    if (bytes >= aloneBytes) {
      buckets.push({ dtype, members: [{ index, from: 0, count }], count, bytes, alone: true });
      continue;
    }
    if ((open.get(dtype)?.count ?? 0) * elementBytes + bytes > bucketBytes) close(dtype);
    const bucket = getOrMake(open, dtype, () => ({ members: [], count: 0 }));
    bucket.members.push({ index, from: bucket.count, count });
    bucket.count += count;
  }
  for (const dtype of [...open.keys()]) close(dtype);
  return buckets;
}
