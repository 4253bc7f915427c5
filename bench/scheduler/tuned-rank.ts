/** One rank of bench/scheduler/tuned.ts: a training of a model's sizes whose passes only take time is tuned; then the tuned point and
 *  those of a grid are measured in rounds, in the same processes. Prints them, as JSON. */
import { initProcessGroup } from 'shoal';
import { systemClock } from '../../src/base/clock.ts';
import { ReplayedTraining } from '../../src/tools/timing/schedule-tuning.ts';
import type { LayerTrace } from '../../src/scheduler/model-traces.ts';
import type { SearchSpace } from '../../src/scheduler/tuner/tuner.ts';

interface Point {
  readonly creditBytes: number;
  readonly partitionBytes: number;
}

const { layers, space, grid, rounds, steps, stepsPerPoint } = JSON.parse(process.env.TRAINING ?? '') as {
  layers: LayerTrace[];
  space: SearchSpace;
  grid: Point[];
  rounds: number;
  steps: number;
  stepsPerPoint: number;
};
const group = await initProcessGroup();

/** Tunes. Ranks agree on the end, so that all make the same steps. */
async function tune(): Promise<Point> {
  const scheduled = await group.scheduled({ tuning: { space, points: 15, stepsPerPoint, stepsAhead: 10 } });
  const training = new ReplayedTraining(scheduled, layers);
  const missing = new Int32Array(1);
  do {
    for (let step = 0; step < stepsPerPoint; step++) {
      training.step();
      await new Promise(setImmediate);
    }
    training.drain();
    missing[0] = scheduled.scheduling.tuning === 'converged' ? 0 : 1;
    await group.allReduce(missing);
  } while (missing[0] > 0);
  const { creditBytes, partitionBytes } = scheduled.scheduling;
  await scheduled.destroy();
  return { creditBytes, partitionBytes };
}

const tuned = await tune();
const scheduled = await group.scheduled({ tuning: false });
const training = new ReplayedTraining(scheduled, layers);
const points = [tuned, ...grid];
const turns: number[][] = points.map(() => []);
for (let round = 0; round <= rounds; round++) {
  // Another point comes first in each round.
  for (let turn = 0; turn < points.length; turn++) {
    const index = (turn + round) % points.length;
    scheduled.setScheduling(points[index]);
    // This step does not count: its first pass waits for gradients of the point before.
    training.step();
    await group.barrier();
    const from = systemClock.now();
    for (let step = 0; step < steps; step++) training.step();
    training.drain();
    const stepMs = (systemClock.now() - from) / steps;
    await group.barrier();
    // The first round warms up.
    if (round > 0) turns[index].push(stepMs);
  }
}
if (group.rank === 0) console.log(JSON.stringify({ points, turns }));
await scheduled.destroy();
await group.destroy();
