/** Communication hooks, in the words of torch's `register_comm_hook`: what is done with a bucket of gradients instead of one all-reduce.
 *
 *      function* (state, bucket) {           // a generator: it yields works, and goes on when they are done
 *        yield bucket.allReduce(compressed); //    the first one starts with the bucket, during the backward pass
 *        decompress(bucket.buffer());        //    then buffer() is the average
 *      }
 *
 *  What follows the first work runs when the bucket is waited for, in the order of buckets on every rank. It must not know what a
 *  bucket is part of. */
import { ShoalError } from '../../base/errors.ts';
import { describeValue } from '../../base/settings/options.ts';
import type { ReduceOptions, TensorLike, Work } from '../../group/call/types.ts';
import type { DType } from '../../memory/dtype.ts';
import type { Tensor } from '../../memory/tensor.ts';

/** One parameter's part of a bucket. */
export interface GradPart {
  /** The parameter's, as registered. */
  readonly name: string;
  /** The parameter's, as registered. */
  readonly shape: readonly number[];
  /** A view of the bucket. */
  readonly gradient: Float32Array;
}

/** A bucket of float32 gradients. */
export interface GradBucket {
  /** Of the bucket among all, the same in every step. */
  index(): number;
  /** This rank's gradients; when the hook has ended, their average. */
  buffer(): Float32Array;
  /** By parameter, in the order in which they lie in the buffer. */
  parts(): readonly GradPart[];
  /** The last bucket of a step. */
  isLast(): boolean;
  /** Ranks. */
  readonly size: number;
  /** Memory that is sent without a copy, for the hook to keep; zeros. */
  tensor<D extends DType>(dtype: D, count: number): Tensor<D>;
  /** Over all ranks, in place; default operator: `avg`. Named and, in a scheduled group, prioritised as the bucket is. */
  allReduce(data: TensorLike, options?: Pick<ReduceOptions, 'op'>): Work;
}

/** What is done with a bucket of gradients instead of one all-reduce: a generator that yields works, and leaves the average in
 *  `bucket.buffer()`. The first work starts during the backward pass; what follows it runs when the bucket is waited for. Hooks are the
 *  same on every rank; what one throws is thrown to who waits for the step.
 *
 *      const scaled: CommHook<number> = function* (factor, bucket) {
 *        yield bucket.allReduce(bucket.buffer());
 *        bucket.buffer().forEach((value, i, all) => (all[i] = value * factor));
 *      }; */
export type CommHook<S> = (state: S, bucket: GradBucket) => Generator<Work, void, void>;

/** A hook with its state, as a reducer has it. */
export type BoundHook = (bucket: GradBucket) => Generator<Work, void, void>;

/** @throws ShoalError `usage` for what is no generator function. */
export function bindHook<S>(state: S, hook: CommHook<S>): BoundHook {
  if (typeof hook !== 'function')
    throw new ShoalError('usage', `registerCommHook: the hook is a generator function, not ${describeValue(hook)}`);
  return (bucket) => {
    const run: unknown = hook(state, bucket);
    if (typeof (run as Generator | undefined)?.next === 'function') return run as Generator<Work, void, void>;
    throw new ShoalError('usage', 'registerCommHook: the hook is a generator function (function*) that yields works');
  };
}

/** A hook at work on one bucket. Waits for its works one after the other, either way. */
export class HookRun implements PromiseLike<void> {
  readonly #run: Generator<Work, void, void>;
  #work: Work | undefined;
  #error: unknown;
  #failed = false;

  /** Starts the first work. */
  constructor(run: Generator<Work, void, void>) {
    this.#run = run;
    this.#advance();
  }

  waitSync(): void {
    while (this.#work) {
      this.#work.waitSync();
      this.#advance();
    }
    if (this.#failed) throw this.#error;
  }

  then<R = void, E = never>(
    onFulfilled?: ((value: void) => R | PromiseLike<R>) | null,
    onRejected?: ((reason: unknown) => E | PromiseLike<E>) | null,
  ): Promise<R | E> {
    return this.#wait().then(onFulfilled, onRejected);
  }

  async #wait(): Promise<void> {
    while (this.#work) {
      await this.#work;
      this.#advance();
    }
    if (this.#failed) throw this.#error;
  }

  /** What the hook throws is thrown to who waits: the other ranks wait for this one's part until then. */
  #advance(): void {
    this.#work = undefined;
    try {
      const { done, value } = this.#run.next();
      if (done === true) return;
      if (typeof (value as Work | undefined)?.waitSync !== 'function')
        throw new ShoalError('usage', `a communication hook yields works, not ${describeValue(value)}`);
      this.#work = value;
    } catch (thrown) {
      this.#failed = true;
      this.#error = thrown;
    }
  }
}

/** What bucket and stage an all-reduce is of, on all ranks. */
export interface BucketPlace {
  readonly index: number;
  readonly name: string;
  readonly isLast: boolean;
  readonly size: number;
  readonly buffer: Tensor<'float32'>;
  readonly parts: readonly GradPart[];
  newTensor<D extends DType>(dtype: D, shape: readonly number[]): Tensor<D>;
  allReduce(data: TensorLike, options: ReduceOptions): Work;
}

/** A bucket for the hook of one step. */
export function gradBucket(place: BucketPlace): GradBucket {
  let stage = 0;
  return {
    index: () => place.index,
    buffer: () => place.buffer.data,
    parts: () => place.parts,
    isLast: () => place.isLast,
    size: place.size,
    tensor: (dtype, count) => place.newTensor(dtype, [count]),
    // The buffer itself is shared memory: a view of it that is the whole needs no copy.
    allReduce: (data, { op = 'avg' } = {}) =>
      place.allReduce(data === place.buffer.data ? place.buffer : data, { op, name: `${place.name}/hook-${stage++}` }),
  };
}
