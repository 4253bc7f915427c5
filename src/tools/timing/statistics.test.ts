import { expect, it } from 'vitest';
import { statisticsOf } from './statistics.ts';

it('orders samples and leaves them as they are', () => {
  const samples = [5, 1, 4, 2, 3];
  expect(statisticsOf(samples)).toEqual({ min: 1, median: 3, p99: 5, max: 5, mean: 3 });
  expect(samples).toEqual([5, 1, 4, 2, 3]);
});

it('takes the 99th of a hundred', () => {
  const samples = Array.from({ length: 200 }, (_, i) => i + 1);
  expect(statisticsOf(samples)).toMatchObject({ median: 101, p99: 198, max: 200 });
  expect(statisticsOf([7])).toEqual({ min: 7, median: 7, p99: 7, max: 7, mean: 7 });
});
