/** Weights of ranks by the samples of their backward passes: gradients are multiplied by this rank's, and sums divided by those of all
 *  ranks. It must not know buckets. */
import { ShoalError } from '../base/errors.ts';
import type { CallOptions, ProcessGroup, Work } from '../group/caller/types.ts';
import type { TypedArray } from '../memory/dtype.ts';
import { ReduceOp } from '../memory/reduce-op.ts';

export class SampleWeights {
  /** This rank's samples since the last synchronised step; once they are summed, those of all ranks. */
  readonly #samples = new Float64Array(1);
  /** Samples of the backward pass under way; NaN before `begin`. */
  #batch = Number.NaN;

  /** Announces a backward pass. @throws ShoalError `usage` for anything but a non-negative integer. */
  begin(samples: number): void {
    if (!Number.isSafeInteger(samples) || samples < 0)
      throw new ShoalError('usage', `ddp: samples is ${samples}; it must be a non-negative integer`);
    this.#batch = samples;
    this.#samples[0] += samples;
  }

  /** True once a backward pass is announced. */
  get hasBegun(): boolean {
    return !Number.isNaN(this.#batch);
  }

  /** Samples of the backward pass under way. */
  get batch(): number {
    return this.#batch;
  }

  /** Factor of the gradients of the backward pass under way. @throws ShoalError `usage` where none are expected. */
  get factor(): number {
    if (this.#batch > 0) return this.#batch;
    const what = this.#batch === 0 ? 'a gradient after begin({ samples: 0 })' : 'a gradient before begin({ samples })';
    throw new ShoalError('usage', `ddp: ${what}; announce the samples of each backward pass`);
  }

  /** The backward pass is over. */
  end(): void {
    this.#batch = Number.NaN;
  }

  /** Sums the samples of all ranks. */
  sum(group: Pick<ProcessGroup, 'allReduce'>, call: CallOptions): Work {
    return group.allReduce(this.#samples, { ...call, op: ReduceOp.Sum, name: 'ddp/samples' });
  }

  /** Ends the step: makes averages of sums. @returns the samples of all ranks. */
  divide(sums: Iterable<TypedArray>): number {
    const [weight] = this.#samples;
    // A weight of zero samples needs no division: every rank has run out, and the sums are zeros already.
    if (weight > 0)
      for (const values of sums as Iterable<Float32Array>) for (let i = 0; i < values.length; i++) values[i] = values[i] / weight;
    this.#samples[0] = 0;
    this.end();
    return weight;
  }
}
