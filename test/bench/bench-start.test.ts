/** The benchmark of the start in its smallest form: every contestant starts and ends well. The files that ranks load are checked
 *  in built-package.test.ts. */
import { expect, it } from 'vitest';
import { benchStart, contestants, rankBytes } from '../../bench/start/run.ts';

it('every contestant starts and ends', { timeout: 120_000 }, () => {
  const rows = benchStart(contestants(2), 1);
  expect(rows.length).toBeGreaterThanOrEqual(5);
  expect(rows[0].ratio).toBe(1);
  for (const { medianMs } of rows) expect(medianMs).toBeGreaterThan(0);
  expect(rankBytes(2)).toBeGreaterThan(2 ** 20);
});
