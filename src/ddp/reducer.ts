/** The data-parallel reducer: averages gradients over a group's ranks, bucket by bucket, while the rest of the backward pass
 *  is still running. Arrays in, arrays out; it must not know a framework (adapters/ do), nor how an all-reduce works.
 *  Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020.
 *
 *   gradientReady(4) ─▶ bucket 0 [p4]        full ─▶ all-reduce ddp/bucket-0 ─┐
 *   gradientReady(3) ─▶ bucket 1 [p3 · · ]                                    │ in flight during
 *   gradientReady(1) ─▶ bucket 1 [p3 · p1]                                    │ the backward pass
 *   gradientReady(2) ─▶ bucket 1 [p3 p2 p1]  full ─▶ all-reduce ddp/bucket-1 ─┤
 *   gradientReady(0) ─▶ bucket 2 [p0]        full ─▶ all-reduce ddp/bucket-2 ─┤
 *   finish()         ──────────────────────────────── waits for all ◀─────────┘
 *
 *  Buckets start strictly in order, a full one waiting for those before it, so that every rank issues the same sequence of
 *  collectives whatever order its gradients arrive in. */
import { describeForeign } from '../memory/foreign-value.ts';
import { systemClock, type Clock } from '../base/clock.ts';
import { isShoalError, ShoalError } from '../base/errors.ts';
import {
  anyList,
  anyNumber,
  anyObject,
  anyText,
  callback,
  checkArgument,
  checkFields,
  checkOptions,
  describeValue,
  flag,
  noOptions,
  optionTable,
} from '../base/schema.ts';
import { readSettings, type Environment } from '../base/settings/settings.ts';
import type { ProcessGroup, Work } from '../group/caller/types.ts';
import { dtypeInfo, type DTypeViews, type TypedArray } from '../memory/dtype.ts';
import { ReduceOp } from '../memory/reduce-op.ts';
import { Tensor } from '../memory/tensor.ts';
import { assignBuckets, checkSpecs, type Bucket, type ParameterSpec } from './buckets.ts';
import { bindHook, gradBucket, HookRun, type BoundHook, type BucketPlace, type CommHook } from './hooks/comm-hook.ts';
import type { JoinHook } from './join.ts';
import { registrationText, verifyRegistration } from './registration.ts';
import { verifyReplicas } from './replicas.ts';

/** The part of a process group that the reducer uses. */
export type ReducerGroup = Pick<ProcessGroup, 'rank' | 'size' | 'tensor' | 'release' | 'allReduce' | 'broadcast' | 'allGather'> &
  Partial<Pick<ProcessGroup, 'span'>>;

/** Weights of ranks in the average.
 *  ranks    each rank alike: right when all have the same batch size
 *  samples  by the samples each announces with `begin`: right for uneven batches, and for ranks that have run out */
export type Weighting = 'ranks' | 'samples';

/** Options of a reducer: how it cuts gradients into buckets and averages them; the same on all ranks. */
export interface ReducerOptions {
  /** Limit of a bucket. Default: SHOAL_BUCKET_BYTES, 25 MiB. */
  readonly bucketBytes?: number;
  /** Limit of the first bucket. Default: SHOAL_FIRST_BUCKET_BYTES, 1 MiB. */
  readonly firstBucketBytes?: number;
  /** `false` (default): `finish` refuses a step in which a parameter got no gradient, naming it.
   *  `true`: it counts as zeros on this rank. */
  readonly findUnused?: boolean;
  /** Weights of ranks in the average. Default 'ranks'. */
  readonly weighting?: Weighting;
  /** Timeout of each collective, in milliseconds. Default: the group's. */
  readonly timeoutMs?: number;
  /** Clock that measures `stats`. Default: the system's. */
  readonly clock?: Clock;
  /** Environment that settings are read from. Default: `process.env`. */
  readonly environment?: Environment;
}

/** Cost of communication. Times are milliseconds, bytes are those of buckets. */
export interface ReducerStats {
  /** Synchronised steps. */
  readonly steps: number;
  /** All-reduces started. */
  readonly buckets: number;
  /** Bytes that this rank gave to all-reduce. */
  readonly bytes: number;
  /** Time that `finish` spent waiting: the time that communication adds to the step. */
  readonly exposedMs: number;
  /** Time from the start of the first bucket to the end of `finish`: exposed and hidden together. */
  readonly spanMs: number;
}

/** Result of a synchronised step. */
export interface StepResult {
  /** Weighting 'samples': samples of all ranks since the last step; 0 when every rank has run out. Weighting 'ranks': the group's size. */
  readonly weight: number;
}

interface BucketState extends Bucket {
  readonly index: number;
  readonly name: string;
  readonly tensor: Tensor;
  /** Gradients missing in this step. */
  missing: number;
  work: Work | HookRun | undefined;
}

interface ParameterState extends ParameterSpec {
  readonly count: number;
  readonly bucket: BucketState;
  /** The parameter's part of the bucket: accumulates gradients, then holds the average. */
  readonly gradient: TypedArray;
  /** True once the parameter has its gradient in this step. */
  ready: boolean;
  /** True while `gradient` holds values of this step or of the micro-batches before it. */
  filled: boolean;
}

const reducerOptions = optionTable<ReducerOptions>({
  bucketBytes: anyNumber,
  firstBucketBytes: anyNumber,
  findUnused: flag,
  weighting: anyText,
  timeoutMs: anyNumber,
  clock: anyObject,
  environment: anyObject,
});
const beginFields = optionTable<{ samples: number }>({ samples: anyNumber });

/** @throws ShoalError `usage` for anything but a process group. */
export function checkGroup(call: string, group: ReducerGroup): void {
  if (typeof group === 'object' && group !== null && typeof group.allReduce === 'function') return;
  throw new ShoalError('usage', `${call}: the first argument is the process group, not ${describeValue(group)}`);
}

/** Averages gradients of one set of parameters. Methods must be called in the same pattern on every rank; calls must not overlap. */
export class Reducer {
  readonly #group: ReducerGroup;
  readonly #clock: Clock;
  readonly #findUnused: boolean;
  readonly #weighting: Weighting;
  readonly #call: { readonly timeoutMs?: number };
  readonly #registration: string;
  readonly #buckets: BucketState[];
  readonly #parameters: ParameterState[];
  /** This rank's samples since the last synchronised step; after `finish`, those of all ranks. */
  readonly #samples = new Float64Array(1);
  #samplesWork: Work | undefined;
  /** Samples of the backward pass under way; NaN before `begin`. */
  #batchSamples = Number.NaN;
  #synchronise = true;
  /** True in a step that this rank takes part in only for the others, having run out of inputs. */
  #ranOut = false;
  #next = 0;
  #startedMs = Number.NaN;
  #failure: ShoalError | undefined;
  #closed = false;
  #hook: BoundHook | undefined;
  /** Tensors that the hook has allocated; released by `close`. */
  readonly #hookTensors: Tensor[] = [];
  #stats = { steps: 0, buckets: 0, bytes: 0, exposedMs: 0, spanMs: 0 };

  /** Allocates the buckets; does not communicate.
   *  @throws ShoalError `usage`, `unsupported` like `assignBuckets`; `out-of-memory` when the buckets do not fit. */
  constructor(group: ReducerGroup, parameters: readonly ParameterSpec[], options: ReducerOptions = noOptions) {
    checkGroup('Reducer', group);
    checkSpecs(parameters);
    checkOptions('Reducer', options, reducerOptions);
    const settings = readSettings(options.environment ?? process.env);
    const { bucketBytes = settings.bucketBytes, firstBucketBytes = settings.firstBucketBytes } = options;
    const { findUnused = false, weighting = 'ranks', timeoutMs, clock = systemClock } = options;
    if (weighting !== 'ranks' && weighting !== 'samples')
      throw new ShoalError('usage', `Reducer: weighting must be 'ranks' or 'samples', not ${describeValue(weighting)}`);
    this.#group = group;
    this.#clock = clock;
    this.#findUnused = findUnused;
    this.#weighting = weighting;
    this.#call = timeoutMs === undefined ? {} : { timeoutMs };
    if (weighting === 'samples') {
      for (const { name, dtype } of parameters) {
        if (dtypeInfo(dtype).bytes === 2) {
          throw new ShoalError(
            'unsupported',
            `parameter '${name}' is ${dtype}, whose range cannot hold gradients times samples; use float32 gradients or weighting 'ranks'`,
          );
        }
      }
    }
    this.#registration = registrationText(parameters, { bucketBytes, firstBucketBytes, weighting });
    const assigned = assignBuckets(parameters, { bucketBytes, firstBucketBytes });
    this.#buckets = [];
    try {
      for (const [index, bucket] of assigned.entries()) {
        const tensor = group.tensor(bucket.dtype, [bucket.count]);
        this.#buckets.push({ ...bucket, index, name: `ddp/bucket-${index}`, tensor, missing: bucket.slots.length, work: undefined });
      }
    } catch (thrown) {
      for (const { tensor } of this.#buckets) group.release(tensor);
      throw thrown;
    }
    const states = new Array<ParameterState>(parameters.length);
    for (const bucket of this.#buckets) {
      for (const { parameter, offset, count } of bucket.slots) {
        const spec = parameters[parameter];
        const gradient = bucket.tensor.data.subarray(offset, offset + count);
        states[parameter] = { ...spec, count, bucket, gradient, ready: false, filled: false };
      }
    }
    this.#parameters = states;
  }

  /** Counters since construction. */
  get stats(): ReducerStats {
    return { ...this.#stats };
  }

  /** Replaces the one all-reduce of each bucket by a hook, like torch's `register_comm_hook`. Call it once, before the first gradient, with
   *  the same hook on every rank. @throws ShoalError `usage`; `unsupported` unless gradients are float32 and weighting is 'ranks'. */
  registerCommHook<S>(state: S, hook: CommHook<S>): void {
    this.#checkUsable();
    const bound = bindHook(state, hook);
    if (this.#hook) throw new ShoalError('usage', 'registerCommHook: there is a hook already; a reducer has one');
    if (this.#stats.steps > 0 || this.#parameters.some(({ filled }) => filled))
      throw new ShoalError('usage', 'registerCommHook: call it before the first gradient');
    if (this.#weighting !== 'ranks')
      throw new ShoalError('unsupported', "registerCommHook: gradients times samples are not for hooks; use weighting 'ranks'");
    const other = this.#parameters.find(({ dtype }) => dtype !== 'float32');
    if (other)
      throw new ShoalError('unsupported', `registerCommHook: parameter '${other.name}' is ${other.dtype}; hooks are given float32`);
    this.#hook = bound;
  }

  /** Bytes and parameter names of each bucket, in the order in which they start. */
  get buckets(): {
    /** Bytes of the bucket's all-reduce, padding included. */
    readonly bytes: number;
    /** Names of the parameters in the bucket, in the order in which they lie there. */
    readonly parameters: readonly string[];
  }[] {
    return this.#buckets.map(({ bytes, slots }) => ({ bytes, parameters: slots.map(({ parameter }) => this.#parameter(parameter).name) }));
  }

  /** Collective. Checks that all ranks registered the same parameters and settings, then overwrites `arrays`, in
   *  registration order, with rank 0's values.
   *  @throws ShoalError `mismatch` on every rank, with each rank's first difference from rank 0. */
  async broadcastParameters(arrays: readonly TypedArray[]): Promise<void> {
    this.#checkUsable();
    this.#checkArrays(arrays, 'broadcastParameters');
    try {
      await verifyRegistration(this.#group, this.#registration, this.#call);
      // The buckets carry the values: one collective each instead of one per parameter, and no staging copies.
      for (const bucket of this.#buckets) {
        for (const { parameter } of bucket.slots) copyInto(this.#parameter(parameter).gradient, arrays[parameter]);
        await this.#group.broadcast(bucket.tensor, { ...this.#call, root: 0, name: `ddp/parameters-${bucket.index}` });
        for (const { parameter } of bucket.slots) copyInto(arrays[parameter], this.#parameter(parameter).gradient);
      }
    } catch (thrown) {
      throw this.#fail(thrown);
    }
  }

  /** Weighting 'samples': announces the backward pass over `samples` samples whose mean gradient follows. With 0 samples no
   *  gradients follow and this rank contributes nothing: for a rank that has run out while others have not.
   *  @throws ShoalError `usage` for anything but a non-negative integer, or with weighting 'ranks'. */
  begin(batch: { readonly samples: number }): void {
    this.#checkUsable();
    checkFields('begin', batch, beginFields);
    const { samples } = batch;
    if (this.#weighting !== 'samples')
      throw new ShoalError('usage', "ddp: begin() needs weighting: 'samples'; with weighting 'ranks' all ranks count alike");
    if (!Number.isSafeInteger(samples) || samples < 0)
      throw new ShoalError('usage', `ddp: samples is ${samples}; it must be a non-negative integer`);
    if (this.#next > 0 || this.#parameters.some(({ ready }) => ready)) {
      throw new ShoalError('usage', 'ddp: begin() in the middle of a step; call it before the first gradient, and finish() after the last');
    }
    if (this.#synchronise && !Number.isNaN(this.#batchSamples))
      throw new ShoalError('usage', 'ddp: begin() twice for one step; call finish() between steps');
    this.#batchSamples = samples;
    this.#samples[0] += samples;
  }

  /** Copies this rank's gradient of parameter `index` (adds it to those of micro-batches in `noSync`) and starts every bucket
   *  that is now complete. Parameters may come in any order; once per parameter and step, any number of times within `noSync`.
   *  @throws ShoalError `usage` for an array that does not fit the parameter, and for a second gradient. */
  gradientReady(index: number, array: TypedArray): void {
    this.#checkUsable();
    const parameter = this.#parameter(index);
    this.#checkArray(parameter, array);
    const weight = this.#gradientWeight();
    if (this.#synchronise && parameter.ready) {
      throw new ShoalError(
        'usage',
        `ddp: parameter '${parameter.name}' got a second gradient in one step; call finish() between steps, or accumulate with noSync()`,
      );
    }
    if (parameter.filled) addScaled(parameter.gradient, array, weight, parameter);
    else if (weight === 1) copyInto(parameter.gradient, array);
    else copyScaled(parameter.gradient, array, weight);
    parameter.filled = true;
    if (!this.#synchronise) return;
    parameter.ready = true;
    parameter.bucket.missing--;
    this.#startComplete();
  }

  /** Runs one or more micro-batches without communication: their gradients add up locally until the next step outside.
   *  The average is that of the sums: divide each micro-batch's loss by their number, unless weighting is 'samples'. */
  noSync<T>(micro: () => T): T {
    this.#checkUsable();
    checkArgument('noSync: the micro-batch', micro, callback);
    if (!this.#synchronise) throw new ShoalError('usage', 'ddp: noSync() inside noSync()');
    if (this.#next > 0 || this.#parameters.some(({ ready }) => ready)) {
      throw new ShoalError('usage', 'ddp: noSync() in the middle of a step; call finish() first');
    }
    this.#synchronise = false;
    const end = (): void => {
      this.#synchronise = true;
      this.#batchSamples = Number.NaN;
    };
    let result: T;
    try {
      result = micro();
    } catch (thrown) {
      end();
      throw thrown;
    }
    if (result instanceof Promise) return result.finally(end) as T;
    end();
    return result;
  }

  /** Ends the step: waits until every bucket is averaged. Then `gradient(i)` holds the average until the next gradient.
   *  @throws ShoalError `usage` naming the parameters without gradient (unless `findUnused`); the group's error when an
   *  all-reduce failed, after which the reducer refuses everything with that error. */
  async finish(): Promise<StepResult> {
    const beganMs = this.#clock.now();
    this.#complete();
    // Awaits all of them, so that no rejection is left unobserved; the first failure counts.
    for (const work of this.#inFlight()) {
      try {
        await work;
      } catch (thrown) {
        this.#fail(thrown);
      }
    }
    return this.#settle(beganMs);
  }

  /** Like `finish`, but blocks this thread. */
  finishSync(): StepResult {
    const beganMs = this.#clock.now();
    this.#complete();
    for (const work of this.#inFlight()) {
      try {
        work.waitSync();
      } catch (thrown) {
        this.#fail(thrown);
      }
    }
    return this.#settle(beganMs);
  }

  /** The averaged gradient of parameter `index`: a view of its bucket, valid from `finish` to the next `gradientReady`.
   *  16-bit floats are given as their bits. */
  gradient(index: number): TypedArray {
    return this.#parameter(index).gradient;
  }

  /** One whole step: takes all gradients, in registration order, and overwrites them with their averages. */
  async average(gradients: readonly TypedArray[]): Promise<StepResult> {
    this.#checkUsable();
    this.#checkArrays(gradients, 'average');
    for (let index = gradients.length - 1; index >= 0; index--) this.gradientReady(index, gradients[index]);
    const result = await this.finish();
    for (const [index, array] of gradients.entries()) copyInto(array, this.#parameter(index).gradient);
    return result;
  }

  /** Collective. The checksum of `arrays` (in registration order), which is the same on every rank.
   *  @throws ShoalError `mismatch` on every rank, naming the ranks that differ and the first parameter in which they do. */
  async verifyReplicas(arrays: readonly TypedArray[]): Promise<string> {
    this.#checkUsable();
    this.#checkArrays(arrays, 'verifyReplicas');
    const named = arrays.map((array, index) => ({ name: this.#parameter(index).name, array }));
    return verifyReplicas(this.#group, named, this.#call);
  }

  /** This reducer's part in `join`: in a step after this rank has run out of inputs it contributes zeros, and no samples. */
  joinHook(): JoinHook {
    return {
      mainHook: async () => {
        this.#checkUsable();
        if (this.#weighting === 'samples') this.begin({ samples: 0 });
        this.#ranOut = true;
        try {
          await this.finish();
        } finally {
          this.#ranOut = false;
        }
      },
      leftover: () => {
        const { name } = this.#parameters.find(({ filled }) => filled) ?? {};
        return name === undefined ? undefined : `gradients of noSync, as of parameter '${name}'`;
      },
    };
  }

  /** Gives the buckets back. Idempotent. */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    for (const tensor of [...this.#buckets.map((bucket) => bucket.tensor), ...this.#hookTensors]) this.#group.release(tensor);
  }

  #parameter(index: number): ParameterState {
    const found = typeof index === 'number' ? this.#parameters[index] : undefined;
    if (found) return found;
    throw new ShoalError('usage', `ddp: there is no parameter ${index}; ${this.#parameters.length} are registered`);
  }

  #checkUsable(): void {
    if (this.#failure) throw this.#failure;
    if (this.#closed) throw new ShoalError('closed', 'ddp: the reducer is closed', { rank: this.#group.rank });
  }

  /** Remembers the first failure; returns it. */
  #fail(thrown: unknown): ShoalError {
    this.#failure ??= isShoalError(thrown) ? thrown : ShoalError.from(thrown, 'system', { rank: this.#group.rank, operation: 'ddp' });
    return this.#failure;
  }

  #checkArrays(arrays: readonly TypedArray[], method: string): void {
    checkArgument(`${method}: arrays`, arrays, anyList);
    if (arrays.length !== this.#parameters.length) {
      throw new ShoalError('usage', `ddp: ${method} got ${arrays.length} arrays for ${this.#parameters.length} parameters`);
    }
    for (const [index, array] of arrays.entries()) this.#checkArray(this.#parameter(index), array);
  }

  #checkArray({ name, dtype, shape, count, gradient }: ParameterState, array: TypedArray): void {
    if (!ArrayBuffer.isView(array)) throw new ShoalError('usage', `ddp: the array of parameter '${name}' is ${describeForeign(array)}`);
    if (array.length === count && array.BYTES_PER_ELEMENT === gradient.BYTES_PER_ELEMENT && array.constructor === gradient.constructor)
      return;
    const given = `${array.constructor.name} of ${array.length}`;
    throw new ShoalError(
      'usage',
      `ddp: parameter '${name}' is ${dtype}[${shape.join(', ')}], a ${gradient.constructor.name} of ${count} elements; got a ${given}`,
    );
  }

  /** Factor by which the gradients of the backward pass under way are multiplied. */
  #gradientWeight(): number {
    if (this.#weighting === 'ranks') return 1;
    if (this.#batchSamples > 0) return this.#batchSamples;
    const what = this.#batchSamples === 0 ? 'a gradient after begin({ samples: 0 })' : 'a gradient before begin({ samples })';
    throw new ShoalError('usage', `ddp: ${what}; announce the samples of each backward pass`);
  }

  /** Starts the complete buckets at the head of the order. */
  #startComplete(): void {
    for (let bucket = this.#buckets[this.#next]; bucket?.missing === 0; bucket = this.#buckets[this.#next]) {
      if (this.#next === 0) this.#startStep();
      // Weighting by samples: gradients are already multiplied by them here, and `#settle` divides the sum by all samples.
      const op = this.#weighting === 'ranks' ? ReduceOp.Avg : ReduceOp.Sum;
      try {
        bucket.work = this.#hook
          ? this.#startHook(this.#hook, bucket)
          : this.#group.allReduce(bucket.tensor, { ...this.#call, op, name: bucket.name });
      } catch (thrown) {
        throw this.#fail(thrown);
      }
      this.#next++;
      this.#stats.buckets++;
      if (!this.#hook) this.#stats.bytes += bucket.bytes;
    }
  }

  #startHook(hook: BoundHook, { index, name, slots, tensor }: BucketState): HookRun {
    const parts = slots.map(({ parameter }) => {
      const { name: own, shape, gradient } = this.#parameter(parameter);
      return { name: own, shape, gradient: gradient as Float32Array };
    });
    const place: BucketPlace = {
      index,
      name,
      isLast: index === this.#buckets.length - 1,
      size: this.#group.size,
      buffer: tensor as Tensor<'float32'>,
      parts,
      newTensor: (dtype, shape) => {
        const own = this.#group.tensor(dtype, shape);
        this.#hookTensors.push(own);
        return own;
      },
      allReduce: (data, options) => {
        this.#stats.bytes += data instanceof Tensor ? data.bytes : data.byteLength;
        return this.#group.allReduce(data, { ...this.#call, ...options });
      },
    };
    return new HookRun(hook(gradBucket(place)));
  }

  #startStep(): void {
    this.#startedMs = this.#clock.now();
    if (this.#weighting !== 'samples') return;
    try {
      this.#samplesWork = this.#group.allReduce(this.#samples, { ...this.#call, op: ReduceOp.Sum, name: 'ddp/samples' });
    } catch (thrown) {
      throw this.#fail(thrown);
    }
  }

  /** Accounts for missing gradients, so that every bucket is started. */
  #complete(): void {
    this.#checkUsable();
    if (!this.#synchronise) throw new ShoalError('usage', 'ddp: finish() inside noSync(); call it after the last micro-batch, outside');
    const ranOut = this.#ranOut || (this.#weighting === 'samples' && this.#batchSamples === 0);
    if (this.#weighting === 'samples' && Number.isNaN(this.#batchSamples)) {
      throw new ShoalError('usage', 'ddp: finish() without begin({ samples }); a rank without samples calls begin({ samples: 0 })');
    }
    const missing = this.#parameters.filter(({ ready }) => !ready);
    if (missing.length > 0 && !this.#findUnused && !ranOut) {
      const names = missing.slice(0, 8).map(({ name }) => `'${name}'`);
      const more = missing.length > names.length ? ` and ${missing.length - names.length} more` : '';
      throw new ShoalError(
        'usage',
        `ddp: rank ${this.#group.rank} has no gradient for ${names.join(', ')}${more}; give every parameter one, or pass findUnused: true to count missing ones as zeros`,
        { rank: this.#group.rank },
      );
    }
    for (const parameter of missing) {
      if (!parameter.filled) parameter.gradient.fill(0 as never);
      parameter.ready = true;
      parameter.bucket.missing--;
    }
    this.#startComplete();
    // Without parameters there are no buckets, but the samples still have to be counted.
    if (this.#buckets.length === 0) this.#startStep();
  }

  *#inFlight(): Generator<Work | HookRun> {
    if (this.#samplesWork) yield this.#samplesWork;
    for (const { work } of this.#buckets) if (work) yield work;
  }

  /** Runs after all work is done: results, counters, and the state of a fresh step. */
  #settle(beganMs: number): StepResult {
    if (this.#failure) throw this.#failure;
    const weight = this.#weighting === 'ranks' ? this.#group.size : this.#samples[0];
    if (this.#weighting === 'samples' && weight > 0) {
      // A weight of zero samples needs no division: every rank has run out, and the sums are zeros already.
      for (const { tensor } of this.#buckets) divide(tensor.data as DTypeViews['float32' | 'float64'], weight);
    }
    const now = this.#clock.now();
    this.#stats.steps++;
    this.#stats.exposedMs += now - beganMs;
    this.#stats.spanMs += now - this.#startedMs;
    for (const parameter of this.#parameters) {
      parameter.ready = false;
      parameter.filled = false;
    }
    for (const bucket of this.#buckets) {
      bucket.missing = bucket.slots.length;
      bucket.work = undefined;
    }
    this.#samples[0] = 0;
    this.#samplesWork = undefined;
    this.#batchSamples = Number.NaN;
    this.#next = 0;
    return { weight };
  }
}

function copyInto(target: TypedArray, source: TypedArray): void {
  target.set(source as never);
}

function copyScaled(target: TypedArray, source: TypedArray, factor: number): void {
  const [t, s] = [target, source] as [Float32Array, Float32Array];
  for (let i = 0; i < t.length; i++) t[i] = s[i] * factor;
}

function addScaled(target: TypedArray, source: TypedArray, factor: number, { name, dtype }: ParameterSpec): void {
  if (dtype !== 'float32' && dtype !== 'float64') {
    throw new ShoalError(
      'unsupported',
      `ddp: parameter '${name}' is ${dtype}: micro-batches add up in float32 or float64 only; convert the gradients`,
    );
  }
  const [t, s] = [target, source] as [Float32Array, Float32Array];
  if (factor === 1) for (let i = 0; i < t.length; i++) t[i] = t[i] + s[i];
  else for (let i = 0; i < t.length; i++) t[i] = t[i] + s[i] * factor;
}

function divide(values: Float32Array | Float64Array, divisor: number): void {
  for (let i = 0; i < values.length; i++) values[i] = values[i] / divisor;
}
