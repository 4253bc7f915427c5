/** The hooks that come with Shoal, by torch's names: plain averaging, 16-bit gradients, PowerSGD. */
import { must } from '../../base/assert.ts';
import { bytesOf } from '../../base/bytes.ts';
import { seededRandom } from '../../base/random.ts';
import { ShoalError } from '../../base/errors.ts';
import { anyNumber, checkOptions, count, describeValue, flag, integer, noOptions, optionTable } from '../../base/schema.ts';
import { readSettings } from '../../base/settings/settings.ts';
import { sum } from '../../base/numbers.ts';
import { createKernels } from '../../memory/kernels/create-kernels.ts';
import type { Kernels } from '../../memory/kernels.ts';
import { loadNative } from '../../memory/native.ts';
import type { Tensor } from '../../memory/tensor.ts';
import type { Work } from '../../group/caller/types.ts';
import type { CommHook, GradBucket } from './comm-hook.ts';
import { emptyColumns, multiply, multiplyTransposed, orthogonalise, outer, type Matrix } from './matrix.ts';

/** Averages the bucket, as without a hook. */
export const allReduceHook: CommHook<undefined> = function* (_, bucket) {
  yield bucket.allReduce(bucket.buffer());
};

// ── 16 bits ────────────────────────────────────────────────────────────────────────────────────────────────────────

/** State of a hook of 16-bit gradients: its tensors take half of the buckets' memory. */
export class HalfPrecisionState {
  /** The tensor of each bucket, by the bucket's buffer: two reducers may share this state. */
  readonly #tensors = new WeakMap<Float32Array, Tensor<'float16' | 'bfloat16'>>();
  readonly #kernels: Kernels = createKernels({ native: loadNative({ enabled: readSettings(process.env).native }) });

  /** The two hooks that run with this state; `fp16CompressHook` and `bf16CompressHook` are their names. */
  static readonly hooks = {
    /** The hook that is exported as `fp16CompressHook`. */
    fp16: (state, bucket) => of(HalfPrecisionState, state).#run(bucket, 'float16'),
    /** The hook that is exported as `bf16CompressHook`. */
    bf16: (state, bucket) => of(HalfPrecisionState, state).#run(bucket, 'bfloat16'),
  } satisfies Record<string, CommHook<HalfPrecisionState>>;

  *#run(bucket: GradBucket, dtype: 'float16' | 'bfloat16'): Generator<Work, void, void> {
    const buffer = bucket.buffer();
    const known = this.#tensors.get(buffer);
    const tensor = known?.dtype === dtype ? known : bucket.tensor(dtype, buffer.length);
    this.#tensors.set(buffer, tensor);
    this.#kernels.convert(dtype, bytesOf(tensor.data), 'float32', bytesOf(buffer));
    yield bucket.allReduce(tensor);
    this.#kernels.convert('float32', bytesOf(buffer), dtype, bytesOf(tensor.data));
  }
}

/** Gradients travel as float16, are summed in float32 and rounded once: half the bytes; beyond ±65,504 they are infinite. */
export const fp16CompressHook: CommHook<HalfPrecisionState> = HalfPrecisionState.hooks.fp16;

/** Gradients travel as bfloat16: half the bytes, the range of float32, 8 bits of precision. */
export const bf16CompressHook: CommHook<HalfPrecisionState> = HalfPrecisionState.hooks.bf16;

// ── PowerSGD ───────────────────────────────────────────────────────────────────────────────────────────────────────

/** Options of PowerSGD, by torch's names; the same on all ranks. */
export interface PowerSGDOptions {
  /** Rank of the two factors by which a matrix of gradients travels. Default: 1. */
  readonly matrixApproximationRank?: number;
  /** Number of steps that are averaged without approximation at first. Default: 1000, like torch's. */
  readonly startIteration?: number;
  /** Matrices are approximated only if that makes them smaller by more than this factor. Default: 2. */
  readonly minCompressionRate?: number;
  /** Adds the error of a step's approximation to the next one. Default: true. */
  readonly useErrorFeedback?: boolean;
  /** Begins each step with the factor of the one before. Default: true. */
  readonly warmStart?: boolean;
  /** Seed of the first factors. Default: 0. */
  readonly randomSeed?: number;
}

const powerOptions = optionTable<PowerSGDOptions>({
  matrixApproximationRank: integer({ min: 1 }),
  startIteration: count,
  minCompressionRate: anyNumber,
  useErrorFeedback: flag,
  warmStart: flag,
  randomSeed: count,
});

interface Approximated {
  readonly rows: number;
  readonly columns: number;
  readonly rank: number;
  readonly gradient: Float32Array;
  /** Sum of the parts that the approximations of earlier steps have left out. */
  readonly error: Float32Array;
  readonly p: Matrix;
  readonly q: Matrix;
}

interface BucketFactors {
  readonly approximated: readonly Approximated[];
  /** Gradients that travel without approximation, together in `wholes`. */
  readonly whole: readonly Float32Array[];
  readonly wholes: Tensor<'float32'>;
  readonly ps: Tensor<'float32'>;
  readonly qs: Tensor<'float32'>;
  steps: number;
}

/** State of PowerSGD: Vogels, Karimireddy & Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
 *  Optimization", NeurIPS 2019. */
export class PowerSGDState {
  readonly #options: Required<PowerSGDOptions>;
  /** The factors of each bucket, by the bucket's buffer: two reducers may share this state. */
  readonly #buckets = new WeakMap<Float32Array, BucketFactors>();
  /** Bytes that have travelled, and bytes that would have without approximation. */
  readonly #bytes = { sent: 0, whole: 0 };

  /** @throws ShoalError `usage`. */
  constructor(options: PowerSGDOptions = noOptions) {
    checkOptions('PowerSGDState', options, powerOptions);
    const { matrixApproximationRank = 1, startIteration = 1000, minCompressionRate = 2 } = options;
    const { useErrorFeedback = true, warmStart = true, randomSeed = 0 } = options;
    this.#options = { matrixApproximationRank, startIteration, minCompressionRate, useErrorFeedback, warmStart, randomSeed };
    if (!(minCompressionRate >= 1))
      throw new ShoalError('usage', `PowerSGDState: minCompressionRate is at least 1, not ${describeValue(minCompressionRate)}`);
  }

  /** Factor by which the approximation has made gradients smaller, over all steps. */
  get compressionRate(): number {
    return this.#bytes.sent === 0 ? 1 : this.#bytes.whole / this.#bytes.sent;
  }

  /** The hook that is exported as `powerSGDHook`. */
  static readonly hook: CommHook<PowerSGDState> = (state, bucket) => of(PowerSGDState, state).#run(bucket);

  *#run(bucket: GradBucket): Generator<Work, void, void> {
    const factors = this.#factorsOf(bucket);
    const buffer = bucket.buffer();
    this.#bytes.whole += buffer.byteLength;
    if (factors.steps++ < this.#options.startIteration) {
      this.#bytes.sent += buffer.byteLength;
      yield bucket.allReduce(buffer);
      return;
    }
    const { approximated, whole, wholes, ps, qs } = factors;
    this.#bytes.sent += wholes.bytes + ps.bytes + qs.bytes;
    const { useErrorFeedback, warmStart } = this.#options;
    for (const each of approximated) {
      const { gradient, error, p, q, rows, columns } = each;
      if (useErrorFeedback) for (let i = 0; i < gradient.length; i++) gradient[i] += error[i];
      // A column of zeros, left by a step without gradient, would stay zero for ever: it begins anew with random values.
      this.#fillRandom(q, bucket.index() * 1e6 + factors.steps, warmStart ? emptyColumns(q) : columnsOf(q));
      multiply({ rows, columns, values: gradient }, q, p);
    }
    gather(whole, wholes.data);
    // The first work starts with the bucket, and all ranks start both works.
    const wholeWork = wholes.count > 0 ? bucket.allReduce(wholes) : undefined;
    if (ps.count > 0) yield bucket.allReduce(ps);
    for (const { p, q, gradient, rows, columns } of approximated) {
      orthogonalise(p);
      multiplyTransposed({ rows, columns, values: gradient }, p, q);
    }
    if (qs.count > 0) yield bucket.allReduce(qs);
    for (const { p, q, gradient, error } of approximated) {
      if (useErrorFeedback) error.set(gradient);
      outer(p, q, gradient);
      if (useErrorFeedback) for (let i = 0; i < gradient.length; i++) error[i] -= gradient[i];
    }
    if (wholeWork) yield wholeWork;
    scatter(wholes.data, whole);
  }

  #factorsOf(bucket: GradBucket): BucketFactors {
    const known = this.#buckets.get(bucket.buffer());
    if (known) return known;
    const shaped = bucket.parts().map(({ shape, gradient }) => ({ gradient, ...this.#matrixOf(shape, gradient.length) }));
    const large = shaped.filter(({ rank }) => rank > 0);
    const whole = shaped.filter(({ rank }) => rank === 0).map(({ gradient }) => gradient);
    const ps = bucket.tensor('float32', sum(large.map(({ rows, rank }) => rows * rank)));
    const qs = bucket.tensor('float32', sum(large.map(({ columns, rank }) => columns * rank)));
    let [atP, atQ] = [0, 0];
    const approximated = large.map(({ gradient, rows, columns, rank }, index) => {
      const p = { rows, columns: rank, values: ps.data.subarray(atP, (atP += rows * rank)) };
      const q = { rows: columns, columns: rank, values: qs.data.subarray(atQ, (atQ += columns * rank)) };
      this.#fillRandom(q, bucket.index() * 1e6 + index, columnsOf(q));
      return { rows, columns, rank, gradient, error: new Float32Array(gradient.length), p, q };
    });
    const factors = { approximated, whole, wholes: bucket.tensor('float32', sum(whole.map(({ length }) => length))), ps, qs, steps: 0 };
    this.#buckets.set(bucket.buffer(), factors);
    return factors;
  }

  /** Shape of the gradient as a matrix, and the rank of its approximation; `rank` 0: an approximation would not be small enough. */
  #matrixOf(shape: readonly number[], count: number): { rows: number; columns: number; rank: number } {
    const { matrixApproximationRank, minCompressionRate } = this.#options;
    if (shape.length < 2 || count === 0) return { rows: count, columns: 1, rank: 0 };
    // The last dimension of a kernel or a dense layer has the outputs.
    const columns = must(shape.at(-1), () => 'it has two dimensions');
    const rows = count / columns;
    const rank = Math.min(matrixApproximationRank, rows, columns);
    return { rows, columns, rank: (rows + columns) * rank * minCompressionRate < count ? rank : 0 };
  }

  #fillRandom({ rows, columns, values }: Matrix, salt: number, which: readonly number[]): void {
    if (which.length === 0) return;
    const random = seededRandom((this.#options.randomSeed * 7919 + salt) >>> 0);
    for (let row = 0; row < rows; row++) for (const k of which) values[row * columns + k] = 2 * random.next() - 1;
  }
}

/** Matrices of gradients travel as two factors of low rank; what that leaves out is added to the next step. */
export const powerSGDHook: CommHook<PowerSGDState> = PowerSGDState.hook;

/** @throws ShoalError `usage` for a state of another hook. */
function of<S>(kind: new () => S, state: S): S {
  if (state instanceof kind) return state;
  throw new ShoalError('usage', `registerCommHook: the state of this hook is a new ${kind.name}(), not ${describeValue(state)}`);
}

function columnsOf({ columns }: Matrix): number[] {
  return Array.from({ length: columns }, (_, k) => k);
}

function gather(parts: readonly Float32Array[], whole: Float32Array): void {
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
}

function scatter(whole: Float32Array, parts: readonly Float32Array[]): void {
  let at = 0;
  for (const part of parts) part.set(whole.subarray(at, (at += part.length)));
}
