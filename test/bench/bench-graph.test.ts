/** Benchmarks of graphs in their smallest form: partitioning fuses something, at every size; the simulation of workers gives
 *  calculated values. */
import { describe, expect, it } from 'vitest';
import { benchPartition } from '../../bench/graph/partition.ts';
import { arrows, simulateWorkers, type Traffic } from '../../bench/graph/server-simulation.ts';
import { systemClock } from '../../src/base/clock.ts';

it('partitions and fuses graphs of growing size', () => {
  const rows = benchPartition({ sizes: [100, 400], rounds: 1, clock: systemClock });
  expect(rows.map(({ nodes }) => nodes >= 100)).toEqual([true, true]);
  for (const row of rows) {
    expect(row.groups).toBeGreaterThan(0);
    expect(row.transfers).toBeGreaterThan(2 * row.groups);
  }
  expect(rows[1].transfers).toBeGreaterThan(rows[0].transfers);
});

describe('simulated workers', () => {
  const costs = { request: { worker: 0.001, server: 0.002 }, rest: { worker: 0.05, server: 0.004 } };
  const traffic = (requests: number, servers = 1): Traffic =>
    arrows.map(() => Array.from({ length: servers }, () => ({ requests, tensors: 10, bytes: 0 })));

  it('of one and one server, a step takes what both do, and four times the latency', () => {
    const { stepMs } = simulateWorkers(1, traffic(10), costs, 3);
    expect(stepMs).toBeCloseTo(4 * 10 * (1 + 2) + 50 + 4 + 4 * 0.05, 6);
  });

  it('many wait for the server, which is never idle', () => {
    const { stepMs, busiestServer } = simulateWorkers(50, traffic(10), costs, 6);
    expect(busiestServer).toBeGreaterThan(0.97);
    expect(stepMs / (50 * (4 * 10 * 2 + 4))).toBeCloseTo(1, 1);
  });

  it('fewer requests are as much less work', () => {
    const [many, few] = [traffic(10), traffic(1)].map((each) => simulateWorkers(50, each, costs, 6).stepMs);
    expect(many / few).toBeCloseTo((4 * 10 * 2 + 4) / (4 * 2 + 4), 0);
  });
});
