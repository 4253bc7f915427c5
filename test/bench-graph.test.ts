/** The benchmark of partitioning in its smallest form: it fuses something, at every size. */
import { expect, it } from 'vitest';
import { benchPartition } from '../bench/graph/partition.ts';
import { systemClock } from '../src/base/clock.ts';

it('partitions and fuses graphs of growing size', () => {
  const rows = benchPartition({ sizes: [100, 400], rounds: 1, clock: systemClock });
  expect(rows.map(({ nodes }) => nodes >= 100)).toEqual([true, true]);
  for (const row of rows) {
    expect(row.groups).toBeGreaterThan(0);
    expect(row.transfers).toBeGreaterThan(2 * row.groups);
  }
  expect(rows[1].transfers).toBeGreaterThan(rows[0].transfers);
});
