/** Turns the gradients of a model's parameters into averages over all ranks: in the reducer's buckets, or each parameter by
 *  itself, scheduled by when the next forward pass needs it. It must not know a framework.
 *
 *      buckets     gradientReady … finish: all averages are there    take: gives one
 *      scheduled   gradientReady … finish: all are on their way      take: waits for this one */
import { must } from '../../base/assert.ts';
import { ShoalError } from '../../base/errors.ts';
import type { CallOptions, ScheduledGroup, Work } from '../../group/caller/types.ts';
import { ReduceOp } from '../../memory/reduce-op.ts';
import type { Tensor } from '../../memory/tensor.ts';
import type { ParameterSpec } from '../buckets.ts';
import { BucketAverages } from '../hooks/bucket-averages.ts';
import type { BoundHook, HookRun } from '../hooks/comm-hook.ts';
import { withoutGradient } from '../gradients.ts';
import { Reducer } from '../reducer.ts';
import type { ReducerGroup, ReducerOptions } from '../reducer-options.ts';

export interface Exchange {
  /** `finish` does not wait: `take` does, for one gradient. */
  readonly isScheduled: boolean;
  /** Copies the gradient of a parameter. Call it in the order in which the backward pass produces gradients. */
  gradientReady(index: number, values: Float32Array): void;
  /** The backward pass is over. @throws ShoalError `usage` for parameters without gradient; the error that ended the group. */
  finish(): void;
  /** The average, valid until the parameter's next gradient. @throws ShoalError the error that ended the group. */
  take(index: number): Float32Array;
  close(): void;
}

export interface ExchangeOptions extends ReducerOptions {
  readonly hook?: BoundHook | undefined;
}

export function isScheduled(group: ReducerGroup | ScheduledGroup): group is ScheduledGroup {
  return 'setScheduling' in group;
}

export function exchangeOf(group: ReducerGroup | ScheduledGroup, parameters: readonly ParameterSpec[], options: ExchangeOptions): Exchange {
  return isScheduled(group) ? new ScheduledExchange(group, parameters, options) : bucketExchange(group, parameters, options);
}

function bucketExchange(group: ReducerGroup, parameters: readonly ParameterSpec[], { hook, ...options }: ExchangeOptions): Exchange {
  const reducer = new Reducer(group, parameters, options);
  if (hook) reducer.registerCommHook(undefined, (_, bucket) => hook(bucket));
  return {
    isScheduled: false,
    gradientReady: (index, values) => reducer.gradientReady(index, values),
    finish: () => void reducer.finishSync(),
    take: (index) => reducer.gradient(index) as Float32Array,
    close: () => reducer.close(),
  };
}

class ScheduledExchange implements Exchange {
  readonly isScheduled = true;
  readonly #group: ScheduledGroup;
  readonly #parameters: readonly ParameterSpec[];
  readonly #tensors: readonly Tensor<'float32'>[];
  readonly #works: (Work | HookRun | undefined)[];
  /** A bucket for each parameter: what follows the first work of its hook runs when the forward pass needs it. */
  readonly #averages: BucketAverages;
  readonly #findUnused: boolean;
  readonly #call: CallOptions;
  /** The error that ended the group; every later `take` throws it again. */
  #failure: unknown;

  constructor(group: ScheduledGroup, parameters: readonly ParameterSpec[], { findUnused = false, timeoutMs, hook }: ExchangeOptions) {
    this.#averages = new BucketAverages(group, hook);
    this.#group = group;
    this.#parameters = parameters;
    this.#tensors = parameters.map(({ shape }) => group.tensor('float32', shape));
    this.#works = parameters.map(() => undefined);
    this.#findUnused = findUnused;
    this.#call = { timeoutMs };
  }

  gradientReady(index: number, values: Float32Array): void {
    if (this.#works[index]) {
      const { name } = this.#parameters[index];
      const message = `ddp: a second gradient for '${name}' while its last average is not taken: a step before has failed; end the program, or distribute the optimizer anew`;
      throw new ShoalError('usage', message);
    }
    this.#tensors[index].data.set(values);
    this.#start(index);
  }

  finish(): void {
    const missing = this.#parameters.flatMap(({ name }, index) => (this.#works[index] ? [] : [{ name, index }]));
    if (missing.length > 0 && !this.#findUnused) {
      // This step is given up: nobody has forgotten to wait for the rest of it.
      for (const work of this.#works) void Promise.resolve(work).catch(() => undefined);
      throw withoutGradient(this.#group.rank, missing);
    }
    for (const { index } of missing) {
      this.#tensors[index].data.fill(0);
      this.#start(index);
    }
  }

  take(index: number): Float32Array {
    if (this.#failure !== undefined) throw this.#failure;
    const work = must(this.#works[index], () => 'what is taken has been given');
    try {
      work.waitSync();
    } catch (thrown) {
      this.#failure = thrown;
      throw thrown;
    }
    this.#works[index] = undefined;
    return this.#tensors[index].data;
  }

  close(): void {
    for (const tensor of this.#tensors) if (!tensor.released) this.#group.release(tensor);
    this.#averages.close();
  }

  /** Priority is the parameter's index: the next forward pass needs layers that come first before the others. */
  #start(index: number): void {
    const { name, shape } = this.#parameters[index];
    const tensor = this.#tensors[index];
    const bucket = { index, name: `ddp/${name}`, isLast: index === 0, tensor, parts: [{ name, shape, gradient: tensor.data }] };
    this.#works[index] = this.#averages.start(bucket, { ...this.#call, priority: index, op: ReduceOp.Avg });
  }
}
