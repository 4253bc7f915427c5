/** Tuning of a store's credit and partition over all its workers: worker 0 measures and decides, the others are told by blobs. A worker
 *  that tunes while others do not waits for them when it initialises the first parameter, and says so. */
import type { Clock } from '../../base/clock.ts';
import { isShoalError, ShoalError } from '../../base/errors.ts';
import { seededRandom } from '../../base/random.ts';
import { StepTuning, type PointMemory } from '../../scheduler/tuner/step-tuning.ts';
import { describeSpace, type PointChange, type SearchSpace, type TuningSpec } from '../../scheduler/tuner/tuner.ts';
import type { TypedArray } from '../../memory/dtype.ts';
import type { Backend } from '../calls/operation.ts';

export interface StoreTuningOptions {
  /** The store underneath. */
  readonly inner: Backend;
  readonly spec: TuningSpec;
  readonly clock: Clock;
  readonly timeoutMs: number;
  readonly memory: PointMemory | undefined;
  readonly onApplied: (change: PointChange) => void;
}

const changeName = 'shoal/schedule/change';
const presenceName = 'shoal/schedule/tunes';

export class StoreTuning {
  readonly #options: StoreTuningOptions;
  readonly #steps: StepTuning;
  #agreed: Promise<void> | undefined;

  constructor(options: StoreTuningOptions) {
    this.#options = options;
    const { inner, spec, clock, memory, onApplied } = options;
    this.#steps = new StepTuning({
      spec,
      leads: inner.place.rank === 0,
      clock,
      // It draws points that cover the space: any do.
      random: seededRandom(1),
      memory,
      tell: (change) => this.#tell(change),
      onApplied,
      // Parts of a store need not be alike on all workers.
      late: 'apply',
    });
  }

  /** An operation of the parameter begins. */
  begin(operation: string, key: string, bytes: number): void {
    this.#steps.begin(`${operation} ${key}`, bytes);
  }

  /** Once, with all workers. @throws ShoalError `mismatch` for a worker that does not tune. */
  agree(): Promise<void> {
    this.#agreed ??= this.#agree();
    return this.#agreed;
  }

  async #agree(): Promise<void> {
    const { inner, timeoutMs } = this.#options;
    const { rank, numWorkers } = inner.place;
    const others = Array.from({ length: numWorkers }, (_, worker) => worker).filter((worker) => worker !== rank);
    const waited = rank === 0 ? others : [0];
    const own = rangesOf(this.#options.spec.space);
    for (const worker of waited) await this.#send(worker, presenceName, own);
    for (const worker of waited) {
      try {
        this.#compare(worker, own, (await inner.ask({ type: 'receive-blob', worker, name: presenceName, timeoutMs })) as TypedArray);
      } catch (thrown) {
        if (!isShoalError(thrown) || thrown.code !== 'timeout') throw thrown;
        const alone = `worker ${rank} tunes credit and partition, and worker ${worker} has not said within ${timeoutMs} ms that it does`;
        throw new ShoalError('mismatch', `${alone}: tune on all workers, or on none`, { peer: worker, cause: thrown });
      }
    }
    if (rank === 0) return;
    // Told while this worker's thread waits for a step, it is applied in time.
    const onValues = (values: TypedArray): void => {
      const [atStep, isFinal, creditBytes, partitionBytes] = values as Float64Array;
      const point = { ...(creditBytes > 0 ? { creditBytes } : {}), ...(partitionBytes > 0 ? { partitionBytes } : {}) };
      this.#steps.receive({ atStep, point, isFinal: isFinal === 1 });
    };
    inner.set({ type: 'listen', worker: 0, name: changeName, onValues });
  }

  async #send(worker: number, name: string, values: Float64Array): Promise<void> {
    await this.#options.inner.ask({ type: 'send-blob', worker, blob: { kind: 'feature', name, dtype: 'float64', values: values.slice() } });
  }

  /** Parameters are cut by the least partition. */
  #compare(worker: number, own: Float64Array, theirs: TypedArray): void {
    if (own.every((each, index) => each === theirs[index])) return;
    const text = [own, theirs].map((each) => describeSpace(spaceOfRanges(each as Float64Array)));
    const differs = `worker ${this.#options.inner.place.rank} tunes ${text[0]}, and worker ${worker} ${text[1]}`;
    throw new ShoalError('mismatch', `${differs}: tune in the same space on all workers`, { peer: worker });
  }

  #tell({ atStep, point, isFinal }: PointChange): void {
    const values = Float64Array.of(atStep, isFinal ? 1 : 0, point.creditBytes ?? 0, point.partitionBytes ?? 0);
    for (let worker = 1; worker < this.#options.inner.place.numWorkers; worker++) {
      // A worker that cannot be told has other troubles, which the store's calls name.
      this.#send(worker, changeName, values).catch(() => undefined);
    }
  }
}

/** As it travels; zeros: it is not tuned. */
function rangesOf({ creditBytes, partitionBytes }: SearchSpace): Float64Array {
  return Float64Array.from([creditBytes, partitionBytes].flatMap((range) => [range?.least ?? 0, range?.most ?? 0]));
}

function spaceOfRanges([creditLeast, creditMost, partitionLeast, partitionMost]: Float64Array): SearchSpace {
  return {
    ...(creditMost > 0 ? { creditBytes: { least: creditLeast, most: creditMost } } : {}),
    ...(partitionMost > 0 ? { partitionBytes: { least: partitionLeast, most: partitionMost } } : {}),
  };
}
