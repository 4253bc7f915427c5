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
import type { Clock } from '../base/clock.ts';
import { ShoalError } from '../base/errors.ts';
import { anyNumber, callback, checkArgument, checkFields, noOptions, optionTable } from '../base/schema.ts';
import { checkGroup } from '../group/caller/call-arguments.ts';
import type { CallOptions, Work } from '../group/caller/types.ts';
import { dtypeInfo, type TypedArray } from '../memory/dtype.ts';
import { ReduceOp } from '../memory/reduce-op.ts';
import { assignBuckets, checkSpecs, type Bucket, type ParameterSpec } from './buckets.ts';
import { addScaled, checkArray, checkArrays, copyInto, storeScaled, withoutGradient, type GradientPlace } from './gradients.ts';
import { BucketAverages, type AveragedBucket } from './hooks/bucket-averages.ts';
import { bindHook, type CommHook, type GradPart, type HookRun } from './hooks/comm-hook.ts';
import type { JoinHook } from './join.ts';
import { settledOptions, type ReducerGroup, type ReducerOptions, type ReducerStats, type StepResult } from './reducer-options.ts';
import { registrationText, verifyRegistration } from './registration.ts';
import { verifyReplicas } from './replicas.ts';
import { SampleWeights } from './sample-weights.ts';

interface BucketState extends Bucket, AveragedBucket {
  /** Gradients missing in this step. */
  missing: number;
  work: Work | HookRun | undefined;
}

interface ParameterState extends GradientPlace {
  readonly bucket: BucketState;
  /** True once the parameter has its gradient in this step. */
  ready: boolean;
  /** True while `gradient` holds values of this step or of the micro-batches before it. */
  filled: boolean;
}

const beginFields = optionTable<{ samples: number }>({ samples: anyNumber });

/** Averages gradients of one set of parameters. Methods must be called in the same pattern on every rank; calls must not overlap. */
export class Reducer {
  readonly #group: ReducerGroup;
  readonly #clock: Clock;
  readonly #findUnused: boolean;
  readonly #call: CallOptions;
  readonly #registration: string;
  readonly #buckets: BucketState[] = [];
  readonly #parameters: ParameterState[];
  readonly #averages: BucketAverages;
  /** The weights of ranks, unless each counts alike. */
  readonly #samples: SampleWeights | undefined;
  #samplesWork: Work | undefined;
  #synchronise = true;
  /** True in a step that this rank takes part in only for the others, having run out of inputs. */
  #ranOut = false;
  #next = 0;
  #startedMs = Number.NaN;
  #failure: ShoalError | undefined;
  #closed = false;
  #stats = { steps: 0, buckets: 0, exposedMs: 0, spanMs: 0 };

  /** Allocates the buckets; does not communicate.
   *  @throws ShoalError `usage`, `unsupported` like `assignBuckets`; `out-of-memory` when the buckets do not fit. */
  constructor(group: ReducerGroup, parameters: readonly ParameterSpec[], options: ReducerOptions = noOptions) {
    checkGroup('Reducer', group, 'allReduce');
    checkSpecs(parameters);
    const { bucketBytes, firstBucketBytes, findUnused, weighting, clock } = settledOptions(options);
    this.#group = group;
    this.#clock = clock;
    this.#findUnused = findUnused;
    this.#call = { timeoutMs: options.timeoutMs };
    this.#averages = new BucketAverages(group);
    this.#samples = weighting === 'samples' ? new SampleWeights() : undefined;
    const half = this.#samples && parameters.find(({ dtype }) => dtypeInfo(dtype).bytes === 2);
    if (half) {
      const message = `parameter '${half.name}' is ${half.dtype}, whose range cannot hold gradients times samples; use float32 gradients or weighting 'ranks'`;
      throw new ShoalError('unsupported', message);
    }
    this.#registration = registrationText(parameters, { bucketBytes, firstBucketBytes, weighting });
    const assigned = assignBuckets(parameters, { bucketBytes, firstBucketBytes });
    const states = new Array<ParameterState>(parameters.length);
    try {
      for (const [index, bucket] of assigned.entries()) {
        const tensor = group.tensor(bucket.dtype, [bucket.count]);
        const parts: GradPart[] = [];
        const isLast = index === assigned.length - 1;
        const missing = bucket.slots.length;
        const state: BucketState = { ...bucket, index, name: `ddp/bucket-${index}`, isLast, tensor, parts, missing, work: undefined };
        this.#buckets.push(state);
        for (const { parameter, offset, count } of bucket.slots) {
          const { name, shape, dtype } = parameters[parameter];
          const gradient = tensor.data.subarray(offset, offset + count);
          states[parameter] = { name, shape, dtype, bucket: state, gradient, ready: false, filled: false };
          parts.push({ name, shape, gradient: gradient as Float32Array });
        }
      }
    } catch (thrown) {
      for (const { tensor } of this.#buckets) group.release(tensor);
      throw thrown;
    }
    this.#parameters = states;
  }

  /** Counters since construction. */
  get stats(): ReducerStats {
    return { ...this.#stats, bytes: this.#averages.bytes };
  }

  /** Replaces the one all-reduce of each bucket by a hook, like torch's `register_comm_hook`. Call it once, before the first gradient, with
   *  the same hook on every rank. @throws ShoalError `usage`; `unsupported` unless gradients are float32 and weighting is 'ranks'. */
  registerCommHook<S>(state: S, hook: CommHook<S>): void {
    this.#checkUsable();
    const bound = bindHook(state, hook);
    if (this.#averages.hook) throw new ShoalError('usage', 'registerCommHook: there is a hook already; a reducer has one');
    if (this.#stats.steps > 0 || this.#parameters.some(({ filled }) => filled))
      throw new ShoalError('usage', 'registerCommHook: call it before the first gradient');
    if (this.#samples)
      throw new ShoalError('unsupported', "registerCommHook: gradients times samples are not for hooks; use weighting 'ranks'");
    const other = this.#parameters.find(({ dtype }) => dtype !== 'float32');
    if (other)
      throw new ShoalError('unsupported', `registerCommHook: parameter '${other.name}' is ${other.dtype}; hooks are given float32`);
    this.#averages.hook = bound;
  }

  /** Bytes and parameter names of each bucket, in the order in which they start. */
  get buckets(): {
    /** Bytes of the bucket's all-reduce, padding included. */
    readonly bytes: number;
    /** Names of the parameters in the bucket, in the order in which they lie there. */
    readonly parameters: readonly string[];
  }[] {
    return this.#buckets.map(({ bytes, parts }) => ({ bytes, parameters: parts.map(({ name }) => name) }));
  }

  /** Collective. Checks that all ranks registered the same parameters and settings, then overwrites `arrays`, in
   *  registration order, with rank 0's values.
   *  @throws ShoalError `mismatch` on every rank, with each rank's first difference from rank 0. */
  async broadcastParameters(arrays: readonly TypedArray[]): Promise<void> {
    this.#checkUsable();
    checkArrays(arrays, this.#parameters, 'broadcastParameters');
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
    if (!this.#samples)
      throw new ShoalError('usage', "ddp: begin() needs weighting: 'samples'; with weighting 'ranks' all ranks count alike");
    if (this.#isMidStep) {
      throw new ShoalError('usage', 'ddp: begin() in the middle of a step; call it before the first gradient, and finish() after the last');
    }
    if (this.#synchronise && this.#samples.hasBegun)
      throw new ShoalError('usage', 'ddp: begin() twice for one step; call finish() between steps');
    this.#samples.begin(batch.samples);
  }

  /** Copies this rank's gradient of parameter `index` (adds it to those of micro-batches in `noSync`) and starts every bucket
   *  that is now complete. Parameters may come in any order; once per parameter and step, any number of times within `noSync`.
   *  @throws ShoalError `usage` for an array that does not fit the parameter, and for a second gradient. */
  gradientReady(index: number, array: TypedArray): void {
    this.#checkUsable();
    const parameter = this.#parameter(index);
    checkArray(parameter, array);
    const weight = this.#samples?.factor ?? 1;
    if (this.#synchronise && parameter.ready) {
      const message = `ddp: parameter '${parameter.name}' got a second gradient in one step; call finish() between steps, or accumulate with noSync()`;
      throw new ShoalError('usage', message);
    }
    if (parameter.filled) addScaled(parameter, array, weight);
    else storeScaled(parameter, array, weight);
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
    if (this.#isMidStep) throw new ShoalError('usage', 'ddp: noSync() in the middle of a step; call finish() first');
    this.#synchronise = false;
    const end = (): void => {
      this.#synchronise = true;
      this.#samples?.end();
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
    checkArrays(gradients, this.#parameters, 'average');
    for (let index = gradients.length - 1; index >= 0; index--) this.gradientReady(index, gradients[index]);
    const result = await this.finish();
    for (const [index, array] of gradients.entries()) copyInto(array, this.#parameter(index).gradient);
    return result;
  }

  /** Collective. The checksum of `arrays` (in registration order), which is the same on every rank.
   *  @throws ShoalError `mismatch` on every rank, naming the ranks that differ and the first parameter in which they do. */
  async verifyReplicas(arrays: readonly TypedArray[]): Promise<string> {
    this.#checkUsable();
    checkArrays(arrays, this.#parameters, 'verifyReplicas');
    const named = arrays.map((array, index) => ({ name: this.#parameter(index).name, array }));
    return verifyReplicas(this.#group, named, this.#call);
  }

  /** This reducer's part in `join`: in a step after this rank has run out of inputs it contributes zeros, and no samples. */
  joinHook(): JoinHook {
    return {
      mainHook: async () => {
        this.#checkUsable();
        if (this.#samples) this.begin({ samples: 0 });
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
    for (const { tensor } of this.#buckets) this.#group.release(tensor);
    this.#averages.close();
  }

  #parameter(index: number): ParameterState {
    const found = typeof index === 'number' ? this.#parameters[index] : undefined;
    if (found) return found;
    throw new ShoalError('usage', `ddp: there is no parameter ${index}; ${this.#parameters.length} are registered`);
  }

  /** True between the first gradient of a step and its end. */
  get #isMidStep(): boolean {
    return this.#next > 0 || this.#parameters.some(({ ready }) => ready);
  }

  #checkUsable(): void {
    if (this.#failure) throw this.#failure;
    if (this.#closed) throw new ShoalError('closed', 'ddp: the reducer is closed', { rank: this.#group.rank });
  }

  /** Remembers the first failure; returns it. */
  #fail(thrown: unknown): ShoalError {
    this.#failure ??= ShoalError.from(thrown, 'system', { rank: this.#group.rank, operation: 'ddp' });
    return this.#failure;
  }

  /** Starts the complete buckets at the head of the order. */
  #startComplete(): void {
    for (let bucket = this.#buckets[this.#next]; bucket?.missing === 0; bucket = this.#buckets[this.#next]) {
      if (this.#next === 0) this.#startStep();
      try {
        // Sums are divided by the samples of all ranks at the end: gradients are multiplied by this rank's already.
        bucket.work = this.#averages.start(bucket, { ...this.#call, op: this.#samples ? ReduceOp.Sum : ReduceOp.Avg });
      } catch (thrown) {
        throw this.#fail(thrown);
      }
      this.#next++;
      this.#stats.buckets++;
    }
  }

  #startStep(): void {
    this.#startedMs = this.#clock.now();
    try {
      this.#samplesWork = this.#samples?.sum(this.#group, this.#call);
    } catch (thrown) {
      throw this.#fail(thrown);
    }
  }

  /** Accounts for missing gradients, so that every bucket is started. */
  #complete(): void {
    this.#checkUsable();
    if (!this.#synchronise) throw new ShoalError('usage', 'ddp: finish() inside noSync(); call it after the last micro-batch, outside');
    const ranOut = this.#ranOut || this.#samples?.batch === 0;
    if (this.#samples?.hasBegun === false)
      throw new ShoalError('usage', 'ddp: finish() without begin({ samples }); a rank without samples calls begin({ samples: 0 })');
    const missing = this.#parameters.filter(({ ready }) => !ready);
    if (missing.length > 0 && !this.#findUnused && !ranOut) throw withoutGradient(this.#group.rank, missing);
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
    const weight = this.#samples?.divide(this.#buckets.map(({ tensor }) => tensor.data)) ?? this.#group.size;
    const now = this.#clock.now();
    this.#stats.steps++;
    this.#group.step?.();
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
    this.#samplesWork = undefined;
    this.#next = 0;
    return { weight };
  }
}
