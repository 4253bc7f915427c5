/** The benchmark of metrics in its smallest form. */
import { expect, it } from 'vitest';
import { benchMetrics } from '../../bench/metrics/run.ts';

it('times calls with and without metrics, and a page', { timeout: 120_000 }, async () => {
  const { rows, pageMs } = await benchMetrics({ ranks: 2, pairs: 1, rounds: 2 });
  expect(rows.map(({ bytes }) => bytes)).toEqual([8, 2 ** 20]);
  for (const { offUs, onUs, ratio, control } of rows)
    for (const value of [offUs, onUs, ratio.median, control.median]) expect(value).toBeGreaterThan(0);
  expect(pageMs).toBeGreaterThan(0);
});
