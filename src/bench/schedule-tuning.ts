/** A training without a model: passes that only take time, and gradients of a model's sizes, averaged by a scheduled group that is
 *  tuned. For `shoal tune --scheduler`. */
import { ShoalError } from '../base/errors.ts';
import type { Stopwatch } from '../base/stopwatch.ts';
import type { ProcessGroup, SchedulingStatus, Work } from '../group/call/types.ts';
import type { LayerTrace } from '../scheduler/model-traces.ts';
import type { TuningOptions } from '../scheduler/tuner/tuner.ts';

export interface ScheduleTuningOptions {
  /** In the order of the forward pass. */
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

/** Events come from rank 0. */
export async function tuneSchedule({ group, options, stopwatch, emit }: ScheduleTuningRun): Promise<void> {
  const { layers, tuning } = options;
  const { points, stepsPerPoint, stepsAhead } = tuning;
  const scheduled = await group.scheduled({ tuning });
  const tensors = layers.map(({ bytes }) => scheduled.tensor('float32', [bytes / 4]));
  const told = (event: ScheduleEvent): void => {
    if (group.rank === 0) emit(event);
  };
  const works: (Work | undefined)[] = layers.map(() => undefined);
  let status = scheduled.scheduling;
  let sinceUs = stopwatch.nowUs();
  let count = 0;
  const makeStep = async (): Promise<void> => {
    for (const [index, layer] of layers.entries()) {
      works[index]?.waitSync();
      passTime(layer.forwardMs);
    }
    for (let index = layers.length - 1; index >= 0; index--) {
      passTime(layers[index].backwardMs);
      works[index] = scheduled.allReduce(tensors[index], { name: layers[index].name, priority: index });
    }
    count++;
    // What the comm thread has told is heard.
    await new Promise(setImmediate);
    const now = scheduled.scheduling;
    if (now.sinceStep === status.sinceStep) return;
    told({ event: 'point', status, stepMs: (stopwatch.nowUs() - sinceUs) / 1000 / count, steps: count });
    status = now;
    sinceUs = stopwatch.nowUs();
    count = 0;
  };
  /** All ranks make equally many steps: they agree on whether any of them has to go on. */
  const goesOn = async (): Promise<boolean> => {
    for (const work of works) work?.waitSync();
    const missing = Int32Array.of(status.tuning === 'converged' && count >= stepsPerPoint ? 0 : 1);
    await group.allReduce(missing);
    return missing[0] > 0;
  };
  // One measurement that does not count, the points, and the best one measured as well; more where steps pass while a point is chosen.
  const stepsOfPoint = stepsPerPoint + 1 + stepsAhead;
  const stepsMax = 4 * (points + 1) * stepsOfPoint;
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

/** Without a CPU, as a device computes: ranks of one machine do not keep each other from it. */
function passTime(ms: number): void {
  if (ms > 0) Atomics.wait(pause, 0, 0, ms);
}
