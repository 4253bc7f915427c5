/** Trainings on virtual time, compared with calculated values. */
import { describe, expect, it } from 'vitest';
import { modelNames, modelTrace, type LayerTrace } from '../../scheduler/model-traces.ts';
import { replay, type ReplayOptions } from './training.ts';

const exact = { jitter: 0, overheadUs: 0, workers: 3 } as const;
/** At this rate a byte takes a microsecond. */
const gbitPerSecond = 8e-3;

function layer(name: string, bytes: number, computeMs: number): LayerTrace {
  return { name, bytes, forwardMs: computeMs, backwardMs: computeMs };
}

describe('a replayed training', () => {
  // The contrived example of the documents: 26 and 18 units, here milliseconds.
  const layers = [layer('0', 3000, 2), layer('1', 6000, 2), layer('2', 3000, 2)];

  it('takes as long as its example on paper', () => {
    const example = { ...exact, layers, gbitPerSecond, exchange: 'parameter-server' } as const;
    expect(replay({ ...example, order: 'fifo' }).stepMs).toBeCloseTo(26, 6);
    const scheduled = replay({ ...example, order: 'scheduled', partitionBytes: 1000, creditBytes: 1000 });
    expect(scheduled.stepMs).toBeCloseTo(18, 6);
    expect(scheduled).toMatchObject({ computeMs: 12, networkMs: 12, boundMs: 17 });
  });

  it('is bounded by its passes and by its bytes, and never slower than without scheduling', () => {
    for (const name of modelNames) {
      const { layers: trace } = modelTrace(name);
      for (const exchange of ['parameter-server', 'all-reduce'] as const) {
        for (const rate of [10, 100]) {
          const options: ReplayOptions = { layers: trace, workers: 4, exchange, gbitPerSecond: rate, order: 'fifo', steps: 3 };
          const fifo = replay(options);
          const scheduled = replay({ ...options, order: 'scheduled' });
          expect(scheduled.boundMs).toBeGreaterThanOrEqual(Math.max(scheduled.computeMs, scheduled.networkMs));
          expect(scheduled.stepMs).toBeGreaterThan(0.97 * scheduled.boundMs);
          expect(scheduled.stepMs).toBeLessThan(1.02 * fifo.stepMs);
          expect(replay(options)).toEqual(fifo);
        }
      }
    }
  });

  it('waits for the port of one server where tensors are whole, and not where they are on all', () => {
    const giant = { ...exact, layers: [layer('0', 6000, 2)], gbitPerSecond, exchange: 'parameter-server', order: 'fifo' } as const;
    // The tensor's bytes there and back, and both passes.
    expect(replay(giant)).toMatchObject({ stepMs: 16, networkMs: 6 });
    // One port carries all three workers' bytes there; then back, to one worker after the other.
    const whole = replay({ ...giant, placement: 'whole' });
    expect(whole.networkMs).toBe(18);
    expect(whole.stepMs).toBeGreaterThanOrEqual(2 + 18 + 6 + 2);
    expect(whole.stepMs).toBeLessThanOrEqual(2 + 18 + 18 + 2);
    // A single worker waits for nobody.
    expect(replay({ ...giant, workers: 1, placement: 'whole' }).stepMs).toBe(16);
  });

  it('ends a message later by what it costs, and uses the wire for others meanwhile', () => {
    const options = { ...exact, layers, gbitPerSecond, exchange: 'all-reduce', order: 'scheduled', overheadUs: 1000 } as const;
    const one = replay({ ...options, partitionBytes: 1000, creditBytes: 1000 });
    const two = replay({ ...options, partitionBytes: 1000, creditBytes: 2000 });
    expect(two.stepMs).toBeLessThan(one.stepMs);
  });

  it.each<[string, Partial<ReplayOptions>]>([
    ['no layers', { layers: [] }],
    ['no workers', { workers: 0 }],
    ['no network', { gbitPerSecond: 0 }],
  ])('of %s is refused', (_, wrong) => {
    const options = { ...exact, layers, gbitPerSecond, exchange: 'all-reduce', order: 'fifo', ...wrong } as const;
    expect(() => replay(options)).toThrow(expect.objectContaining({ code: 'usage' }));
  });
});

it('models have the parameters of their papers', () => {
  const parameters = modelNames.map((name) => [name, modelTrace(name).layers.reduce((sum, { bytes }) => sum + bytes / 4, 0)]);
  expect(parameters).toEqual([
    ['vgg16', 138_357_544],
    ['resnet50', 25_557_032],
    ['transformer', 214_220_936],
    ['alexnet', 61_100_840],
    ['mobilenet', 4_231_976],
    ['gpt2', 124_439_808],
  ]);
});
