/** Sums of buckets over the workers of a group, plain or of compressed gradients. It must not know the use of a sum. */
import { bytesOf } from '../../base/bytes.ts';
import type { CallOptions, ProcessGroup, TensorLike, Work } from '../../group/caller/types.ts';
import { dtypeOfArray, type DType, type TypedArray } from '../../memory/dtype.ts';
import { balancedTree, type Kernels } from '../../memory/kernels.ts';
import { Tensor } from '../../memory/tensor.ts';
import type { Bucket, BucketMember } from './buckets.ts';
import type { GradientCodec } from '../../ps/compression/codec.ts';
import { sumDevices, type Residuals } from '../../ps/values/device-values.ts';
import type { Parameter } from './parameter-table.ts';
import type { Staging, StagingTensors } from './staging-tensors.ts';
import type { Value } from '../calls/types.ts';

export interface PlannedPush {
  readonly parameter: Parameter;
  /** The elements that each device pushes. */
  readonly sources: readonly TypedArray[];
  /** A pushPull's outputs, and the elements of each. */
  readonly outs: readonly Value[];
  readonly targets: readonly TypedArray[];
}

export interface BucketSumsOptions {
  readonly group: ProcessGroup;
  readonly kernels: Kernels;
  readonly staging: StagingTensors;
  readonly residuals: Residuals;
}

export interface BucketSum {
  readonly work: Work;
  /** When the work has succeeded: the sum over workers of a member, until `giveBack`. */
  readonly sumOf: (member: BucketMember) => TypedArray;
  readonly giveBack: () => void;
}

export class BucketSums {
  readonly #options: BucketSumsOptions;

  constructor(options: BucketSumsOptions) {
    this.#options = options;
  }

  /** Sums by an all-reduce: of a parameter alone in its output, if it has one, else of a staging tensor. */
  start(bucket: Bucket, pushes: readonly PlannedPush[], call: CallOptions): BucketSum {
    const { group, kernels, staging: memory } = this.#options;
    const { dtype } = bucket;
    if (bucket.alone) {
      const { sources, outs, targets } = pushes[bucket.members[0].index];
      const target = outs.length > 0 ? inPlace(outs[0], dtype) : undefined;
      if (target !== undefined) {
        const [data] = targets;
        sumDevices(kernels, dtype, data, sources);
        return { work: group.allReduce(target, call), sumOf: () => data, giveBack: () => undefined };
      }
    }
    const staging = memory.take(dtype, bucket.count);
    for (const { index, from, count } of bucket.members) sumDevices(kernels, dtype, partOf(staging, from, count), pushes[index].sources);
    const work = group.allReduce(staging.tensor, call);
    return { work, sumOf: ({ from, count }) => partOf(staging, from, count), giveBack: () => staging.giveBack() };
  }

  /** Everyone's encodings to everyone, who decode and sum them in the order of ranks. */
  startEncoded(codec: GradientCodec, bucket: Bucket, pushes: readonly PlannedPush[], call: CallOptions): BucketSum {
    const { group, kernels, staging: memory, residuals } = this.#options;
    const places = new Map<BucketMember, { at: number; bytes: number }>();
    let ownBytes = 0;
    for (const member of bucket.members) {
      const bytes = codec.encodedBytes(member.count);
      places.set(member, { at: ownBytes, bytes });
      // Every encoding begins aligned.
      ownBytes += Math.ceil(bytes / 4) * 4;
    }
    const [own, all] = [memory.take('uint8', ownBytes), memory.take('uint8', ownBytes * group.size)];
    for (const [member, { at, bytes }] of places) {
      const { parameter, sources } = pushes[member.index];
      const sum = new Float32Array(member.count);
      sumDevices(kernels, 'float32', sum, sources);
      residuals.encode(codec, parameter.key, sum, own.tensor.data.subarray(at, at + bytes));
    }
    const sumOf = (member: BucketMember): TypedArray => {
      const { at, bytes } = places.get(member)!;
      const decoded = Array.from({ length: group.size }, (_, rank) => {
        const values = new Float32Array(member.count);
        codec.decode(values, all.tensor.data.subarray(rank * ownBytes + at, rank * ownBytes + at + bytes));
        return values;
      });
      kernels.reduce('float32', 'sum', [bytesOf(decoded[0])], decoded.map(bytesOf), balancedTree(decoded.length));
      return decoded[0];
    };
    const giveBack = (): void => {
      own.giveBack();
      all.giveBack();
    };
    return { work: group.allGather(all.tensor, own.tensor, call), sumOf, giveBack };
  }
}

/** A place in a bucket. */
export function partOf<D extends DType>({ tensor }: Staging<D>, from: number, count: number): TypedArray {
  return tensor.data.subarray(from, from + count);
}

/** A value that an all-reduce can work on as it is: an array of bits would be taken for integers. */
function inPlace(value: Value, dtype: DType): TensorLike | undefined {
  return value instanceof Tensor || dtypeOfArray(value) === dtype ? value : undefined;
}
