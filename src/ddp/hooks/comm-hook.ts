/** Communication hooks, in the words of torch's `register_comm_hook`: a function that takes the place of the one all-reduce of a bucket.
 *
 *      function* (state, bucket) {           // a generator: it yields works, and goes on when they are done
 *        yield bucket.allReduce(compressed); //    the first one starts with the bucket, during the backward pass
 *        decompress(bucket.buffer());        //    then buffer() is the average
 *      }
 *
 *  The part after the first work runs when the bucket is waited for, in the order of buckets on every rank. It must not know what
 *  a bucket is part of. */
import { ShoalError } from '../../base/errors.ts';
import { describeValue } from '../../base/schema.ts';
import type { ReduceOptions, TensorLike, Work } from '../../group/caller/types.ts';
import type { DType } from '../../memory/dtype.ts';
import type { Tensor } from '../../memory/tensor.ts';

/** One parameter's part of a bucket. */
export interface GradPart {
  /** Name of the parameter, as registered. */
  readonly name: string;
  /** Shape of the parameter, as registered. */
  readonly shape: readonly number[];
  /** A view of the bucket. */
  readonly gradient: Float32Array;
}

/** A bucket of float32 gradients. */
export interface GradBucket {
  /** Index of the bucket among all, the same in every step. */
  index(): number;
  /** This rank's gradients; when the hook has ended, their average. */
  buffer(): Float32Array;
  /** The parameters in the bucket, in the order in which they lie in the buffer. */
  parts(): readonly GradPart[];
  /** True for the last bucket of a step. */
  isLast(): boolean;
  /** Number of ranks. */
  readonly size: number;
  /** New memory, all zeros, that is sent without a copy; the hook may keep it. */
  tensor<D extends DType>(dtype: D, count: number): Tensor<D>;
  /** All-reduces over all ranks, in place; default operator: `avg`. Its name and, in a scheduled group, its priority are the bucket's. */
  allReduce(data: TensorLike, options?: Pick<ReduceOptions, 'op'>): Work;
}

/** A function that takes the place of the one all-reduce of a bucket of gradients: a generator that yields works, and leaves the
 *  average in `bucket.buffer()`. The first work starts during the backward pass; the rest runs when the bucket is waited for.
 *  Hooks are the same on every rank; an error of one is thrown to the caller that waits for the step.
 *
 *      const scaled: CommHook<number> = function* (factor, bucket) {
 *        yield bucket.allReduce(bucket.buffer());
 *        bucket.buffer().forEach((value, i, all) => (all[i] = value * factor));
 *      }; */
export type CommHook<S> = (state: S, bucket: GradBucket) => Generator<Work, void, void>;

/** A hook bound to its state, for the use of a reducer. */
export type BoundHook = (bucket: GradBucket) => Generator<Work, void, void>;

/** @throws ShoalError `usage` for anything but a generator function. */
export function bindHook<S>(state: S, hook: CommHook<S>): BoundHook {
  if (typeof hook !== 'function')
    throw new ShoalError('usage', `registerCommHook: the hook is a generator function, not ${describeValue(hook)}`);
  return (bucket) => {
    const run: unknown = hook(state, bucket);
    if (typeof (run as Generator | undefined)?.next === 'function') return run as Generator<Work, void, void>;
    throw new ShoalError('usage', 'registerCommHook: the hook is a generator function (function*) that yields works');
  };
}

/** The run of a hook on one bucket. Waits for the hook's works one after the other, asynchronously or blocking. */
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

  /** Runs the hook up to its next work. An error of the hook is kept for the caller that waits; the other ranks wait for this
   *  one's part until then. */
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
