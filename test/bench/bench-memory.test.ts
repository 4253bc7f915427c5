/** The memory benchmark in its smallest form: every contestant computes the same result. */
import { expect, it } from 'vitest';
import { benchReduce, benchRunCost } from '../../bench/memory/reduce.ts';
import { systemClock } from '../../src/base/clock.ts';

it('measures every contestant on the same sums', () => {
  const rows = benchReduce({ sizes: [4096], sourceCounts: [2, 3], rounds: 2, bytesPerRound: 4096, clock: systemClock });
  const sums = rows.filter((row) => row.contestant !== 'copy');
  // Vector k holds k: 1 + 2 and 1 + 2 + 3, over 1024 elements.
  expect(sums.map((row) => row.checksum)).toEqual(sums.map((row) => (row.sources === 2 ? 3 : 6) * 1024));
  expect(sums.filter((row) => row.contestant === 'js').length).toBe(2);
  expect(rows.every((row) => row.medianGBps > 0 && row.shareOfCopy > 0)).toBe(true);
});

it('measures the cost of a run', () => {
  const rows = benchRunCost({ rounds: 1, repeats: 10, clock: systemClock });
  expect(rows.length).toBeGreaterThanOrEqual(3);
  expect(rows.every((row) => row.medianNs > 0)).toBe(true);
});
