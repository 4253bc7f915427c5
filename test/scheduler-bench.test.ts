/** The scheduler's benchmark in its smallest form: the same tasks start in the same order in every round. */
import { expect, it } from 'vitest';
import { benchCore } from '../bench/scheduler/run.ts';
import { systemClock } from '../src/base/clock.ts';

it('times tasks, parts and full queues', () => {
  const options = { tasks: 200, clock: systemClock };
  const rows = benchCore({ ...options, rounds: 2 });
  expect(rows.map(({ name }) => name)).toEqual(['tasks', 'parts', 'queued']);
  expect(rows.every(({ medianNsPerTask }) => medianNsPerTask > 0)).toBe(true);
  expect(benchCore({ ...options, rounds: 1 }).map(({ checksum }) => checksum)).toEqual(rows.map(({ checksum }) => checksum));
});
