/** The plan of a replay: all processes read it here. */
import { modelTrace } from '../../src/scheduler/model-traces.ts';
import type { Contestant } from './workload.ts';

export interface ReplayPlan {
  /** Scale of the tensors' bytes. */
  readonly bytesScale: number;
  readonly rounds: number;
  /** Steps of a contestant in a round; one more before them is not counted. */
  readonly steps: number;
}

/** Milliseconds of each step, by contestant. */
export type Samples = Readonly<Record<string, readonly number[]>>;

export const contestants: readonly Contestant[] = [
  { name: '0 copies', carrier: 'tcp' },
  { name: 'with copies', carrier: 'tcp', copies: true },
  { name: 'gRPC', carrier: 'grpc' },
];

/** A layer's tensor: weights and biases together. */
export interface ReplayLayer {
  readonly name: string;
  /** Number of float32 elements. */
  readonly count: number;
  readonly forwardMs: number;
  readonly backwardMs: number;
}

export function replayLayers({ bytesScale }: ReplayPlan): readonly ReplayLayer[] {
  return modelTrace('vgg16').layers.map(({ name, bytes, forwardMs, backwardMs }) => ({
    name,
    count: Math.max(1, Math.round((bytes / 4) * bytesScale)),
    forwardMs,
    backwardMs,
  }));
}

/** All steps in the order in which all processes take them. */
export function* schedule({
  rounds,
  steps,
}: ReplayPlan): Generator<{ readonly contestant: number; readonly stepId: number; readonly counts: boolean }> {
  let stepId = 0;
  for (let round = 0; round < rounds; round++) {
    // Order there and back, so that the after-effects of a contestant do not always meet the same one.
    const order = contestants.keys();
    for (const contestant of round % 2 === 0 ? order : [...order].toReversed())
      for (let step = 0; step <= steps; step++) yield { contestant, stepId: stepId++, counts: step > 0 };
  }
}
