/** Averages buckets of gradients over a group: each by one all-reduce, or by the hook that takes its place. It must not know when a
 *  bucket is complete, nor what its average is used for. */
import type { ProcessGroup, ScheduledReduceOptions, TensorLike, Work } from '../../group/caller/types.ts';
import type { Tensor } from '../../memory/tensor.ts';
import { HookRun, type BoundHook, type GradBucket, type GradPart } from './comm-hook.ts';

/** Gradients that are averaged together; the same on all ranks. */
export interface AveragedBucket {
  readonly index: number;
  /** Name of the all-reduce. */
  readonly name: string;
  /** True for the last bucket of a step. */
  readonly isLast: boolean;
  readonly tensor: Tensor;
  readonly parts: readonly GradPart[];
}

/** A process group, or a scheduled one. */
interface Group extends Pick<ProcessGroup, 'size' | 'tensor' | 'release'> {
  allReduce(data: TensorLike, options: ScheduledReduceOptions): Work;
}

export class BucketAverages {
  /** The hook, if there is one: its buckets are of float32. */
  hook: BoundHook | undefined;
  readonly #group: Group;
  /** Tensors that the hook has allocated. */
  readonly #tensors: Tensor[] = [];
  #bytes = 0;

  constructor(group: Group, hook?: BoundHook) {
    this.#group = group;
    this.hook = hook;
  }

  /** Bytes that were given to all-reduces. */
  get bytes(): number {
    return this.#bytes;
  }

  /** Starts the average of a bucket, in place. @param options of its all-reduces; the operator is for buckets without a hook. */
  start(bucket: AveragedBucket, { op, ...options }: ScheduledReduceOptions): Work | HookRun {
    const { name, tensor } = bucket;
    if (this.hook !== undefined) return new HookRun(this.hook(this.#gradBucket(bucket, options)));
    this.#bytes += tensor.bytes;
    return this.#group.allReduce(tensor, { ...options, op, name });
  }

  /** Releases the hook's tensors. */
  close(): void {
    for (const tensor of this.#tensors) if (!tensor.released) this.#group.release(tensor);
  }

  #gradBucket({ index, name, isLast, tensor, parts }: AveragedBucket, options: ScheduledReduceOptions): GradBucket {
    const buffer = tensor as Tensor<'float32'>;
    let stage = 0;
    return {
      index: () => index,
      buffer: () => buffer.data,
      parts: () => parts,
      isLast: () => isLast,
      size: this.#group.size,
      tensor: (dtype, count) => {
        const own = this.#group.tensor(dtype, [count]);
        this.#tensors.push(own);
        return own;
      },
      allReduce: (data, { op = 'avg' } = {}) => {
        // The buffer itself is shared memory: data that is the whole buffer needs no copy.
        const given = data === buffer.data ? buffer : data;
        this.#bytes += 'bytes' in given ? given.bytes : given.byteLength;
        return this.#group.allReduce(given, { ...options, op, name: `${name}/hook-${stage++}` });
      },
    };
  }
}
