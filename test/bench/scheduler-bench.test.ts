/** The scheduler's benchmark in its smallest form: the same tasks start in the same order in every round. */
import { expect, it } from 'vitest';
import { replayAll } from '../../bench/scheduler/replay.ts';
import { benchCore } from '../../bench/scheduler/run.ts';
import { systemClock } from '../../src/base/clock.ts';
import { modelTrace } from '../../src/scheduler/model-traces.ts';
import { replay } from '../../src/tools/simulate/training.ts';

it('times tasks, parts and full queues', () => {
  const options = { tasks: 200, clock: systemClock };
  const rows = benchCore({ ...options, rounds: 2 });
  expect(rows.map(({ name }) => name)).toEqual(['tasks', 'parts', 'queued']);
  expect(rows.every(({ medianNsPerTask }) => medianNsPerTask > 0)).toBe(true);
  expect(benchCore({ ...options, rounds: 1 }).map(({ checksum }) => checksum)).toEqual(rows.map(({ checksum }) => checksum));
});

it('replayed trainings gain as published, in the same order: VGG16, the Transformer, ResNet50', () => {
  const { best, worst, rows } = replayAll({ workers: [8], rates: [10, 25], steps: 3 });
  for (const { speedup, boundSpeedup } of rows) expect(speedup).toBeLessThan(1.03 * boundSpeedup);
  expect(best.vgg16).toBeGreaterThan(1.8);
  const at25 = rows.filter(({ exchange, gbitPerSecond }) => exchange === 'parameter-server' && gbitPerSecond === 25);
  const [vgg16, transformer, resnet50] = ['vgg16', 'transformer', 'resnet50'].map(
    (model) => at25.find((row) => row.model === model)?.speedup ?? NaN,
  );
  expect(vgg16).toBeGreaterThan(transformer);
  expect(transformer).toBeGreaterThan(resnet50);
  expect(best.resnet50).toBeGreaterThan(1.05);
  // None of the six models is slower than without scheduling.
  expect(Object.keys(worst)).toHaveLength(6);
  for (const speedup of Object.values(worst)) expect(speedup).toBeGreaterThan(0.98);
});

it('against tensors that are whole on one server each, 64 workers on 8 hosts, VGG16 and the Transformer gain 1.8 and more', () => {
  for (const model of ['vgg16', 'transformer'] as const) {
    const world = { layers: modelTrace(model).layers, workers: 8, exchange: 'parameter-server', gbitPerSecond: 25, steps: 3 } as const;
    const fifo = replay({ ...world, order: 'fifo', placement: 'whole' });
    const scheduled = replay({ ...world, order: 'scheduled' });
    expect(fifo.stepMs / scheduled.stepMs).toBeGreaterThan(1.8);
  }
});
