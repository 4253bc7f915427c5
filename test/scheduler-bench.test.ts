/** The scheduler's benchmark in its smallest form: the same tasks start in the same order in every round. */
import { expect, it } from 'vitest';
import { replayAll } from '../bench/scheduler/replay.ts';
import { benchCore } from '../bench/scheduler/run.ts';
import { systemClock } from '../src/base/clock.ts';

it('times tasks, parts and full queues', () => {
  const options = { tasks: 200, clock: systemClock };
  const rows = benchCore({ ...options, rounds: 2 });
  expect(rows.map(({ name }) => name)).toEqual(['tasks', 'parts', 'queued']);
  expect(rows.every(({ medianNsPerTask }) => medianNsPerTask > 0)).toBe(true);
  expect(benchCore({ ...options, rounds: 1 }).map(({ checksum }) => checksum)).toEqual(rows.map(({ checksum }) => checksum));
});

it('replayed trainings gain what is published in its order: VGG16, the Transformer, ResNet50', () => {
  const { best, worst } = replayAll({ workers: [8], rates: [10, 25], steps: 3 });
  expect(best.vgg16).toBeGreaterThan(1.8);
  expect(best.vgg16).toBeGreaterThan(best.transformer);
  expect(best.transformer).toBeGreaterThan(best.resnet50);
  expect(best.resnet50).toBeGreaterThan(1.05);
  // Nor is any of the six models slower than without.
  expect(Object.keys(worst)).toHaveLength(6);
  for (const speedup of Object.values(worst)) expect(speedup).toBeGreaterThan(0.98);
});
