/** A training without a model: passes that only take time, and gradients of a model's sizes, averaged by a scheduled group that
 *  is tuned. For `shoal tune --scheduler`. */
import { ShoalError } from '../../base/errors.ts';
import type { Stopwatch } from '../../base/clock.ts';
import type { ProcessGroup, ScheduledGroup, SchedulingStatus, Work } from '../../group/caller/types.ts';
import type { Tensor } from '../../memory/tensor.ts';
import type { LayerTrace } from '../../scheduler/model-traces.ts';
import type { TuningOptions } from '../../scheduler/tuner/tuner.ts';

export interface ScheduleTuningOptions {
  /** Layers in the order of the forward pass. */
  readonly layers: readonly LayerTrace[];
  readonly tuning: TuningOptions & Required<Pick<TuningOptions, 'points' | 'stepsPerPoint' | 'stepsAhead'>>;
}

export type ScheduleEvent =
  | { readonly event: 'point'; readonly status: SchedulingStatus; readonly stepMs: number; readonly steps: number }
  | { readonly event: 'tuned'; readonly status: SchedulingStatus };

export interface ScheduleTuningRun {
  readonly group: ProcessGroup;
  readonly options: ScheduleTuningOptions;
  readonly stopwatch: Stopwatch;
  readonly emit: (event: ScheduleEvent) => void;
}

const pause = new Int32Array(new SharedArrayBuffer(4));

/** Runs the training and tunes it. Rank 0 emits the events. */
export async function tuneSchedule({ group, options, stopwatch, emit }: ScheduleTuningRun): Promise<void> {
  const { layers, tuning } = options;
  const { points, stepsPerPoint, stepsAhead } = tuning;
  const scheduled = await group.scheduled({ tuning });
  const training = new ReplayedTraining(scheduled, layers);
  const told = (event: ScheduleEvent): void => {
    if (group.rank === 0) emit(event);
  };
  let status = scheduled.scheduling;
  let sinceUs = stopwatch.nowUs();
  let count = 0;
  const makeStep = async (): Promise<void> => {
    training.step();
    count++;
    // A turn of the event loop delivers the messages of the comm thread.
    await new Promise(setImmediate);
    const now = scheduled.scheduling;
    if (now.sinceStep === status.sinceStep) return;
    told({ event: 'point', status, stepMs: (stopwatch.nowUs() - sinceUs) / 1000 / count, steps: count });
    status = now;
    sinceUs = stopwatch.nowUs();
    count = 0;
  };
  /** True if any rank has to go on. All ranks make equally many steps, so they agree on it. */
  const goesOn = async (): Promise<boolean> => {
    training.drain();
    const missing = Int32Array.of(status.tuning === 'converged' && count >= stepsPerPoint ? 0 : 1);
    await group.allReduce(missing);
    return missing[0] > 0;
  };
  // One measurement that does not count, the points, and the best one measured as well; then as many as it takes to tell the best apart.
  const stepsOfPoint = stepsPerPoint + 1 + stepsAhead;
  const stepsMax = 8 * (points + 1) * stepsOfPoint;
  let steps = 0;
  do {
    if (steps >= stepsMax) throw new ShoalError('system', `tuning has not ended after ${steps} steps`);
    const more = steps === 0 ? (points + 1) * stepsOfPoint : stepsOfPoint;
    for (let step = 0; step < more; step++) await makeStep();
    steps += more;
  } while (await goesOn());
  told({ event: 'point', status, stepMs: (stopwatch.nowUs() - sinceUs) / 1000 / count, steps: count });
  told({ event: 'tuned', status });
  await scheduled.destroy();
}

/** Training whose passes only take time; each layer of the next one waits for its own gradient alone. */
export class ReplayedTraining {
  readonly #group: ScheduledGroup;
  readonly #layers: readonly LayerTrace[];
  readonly #gradients: readonly Tensor<'float32'>[];
  readonly #works: (Work | undefined)[];

  constructor(group: ScheduledGroup, layers: readonly LayerTrace[]) {
    this.#group = group;
    this.#layers = layers;
    this.#gradients = layers.map(({ bytes }) => group.tensor('float32', [bytes / 4]));
    this.#works = layers.map(() => undefined);
  }

  step(): void {
    for (const [index, { forwardMs }] of this.#layers.entries()) {
      this.#works[index]?.waitSync();
      passTime(forwardMs);
    }
    for (let index = this.#layers.length - 1; index >= 0; index--) {
      const { name, backwardMs } = this.#layers[index];
      passTime(backwardMs);
      this.#works[index] = this.#group.allReduce(this.#gradients[index], { name, priority: index });
    }
  }

  drain(): void {
    for (const work of this.#works) work?.waitSync();
  }
}

/** Sleeps without CPU, as a device would compute: ranks of one machine do not take it from each other. */
function passTime(ms: number): void {
  if (ms > 0) Atomics.wait(pause, 0, 0, ms);
}
