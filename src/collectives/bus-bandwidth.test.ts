/** The bound is a bound: no plan of any algorithm is faster by the cost model, and some come close to it. */
import { describe, expect, it } from 'vitest';
import { costOf, type CostModel } from '../plan/cost.ts';
import { collectives, type PlanRequest } from '../plan/ir.ts';
import { grid, oneHost, rankCount, separateHosts, type Topology } from '../plan/topology.ts';
import { buildPlan, whyUnsupported } from './build.ts';
import { busBound, busFactor } from './bus-bandwidth.ts';
import { algorithms } from './registry.ts';

const elementBytes = 4;
const link = 1e-9;
const copy = 2e-10;

function requestOf(collective: PlanRequest['collective'], topology: Topology, part: number): PlanRequest {
  const n = rankCount(topology);
  const even = Array.from({ length: n }, () => part);
  const common = { collective, topology, elementBytes, count: part * n };
  if (collective === 'all-to-all') return { ...common, count: part * n * n, splits: even.map(() => even) };
  if (collective === 'all-reduce') return { ...common, pieceCount: Math.ceil((part * n) / 64) };
  if (collective === 'broadcast' || collective === 'reduce') return { ...common, root: 0 };
  return { ...common, counts: even, ...(collective === 'gather' || collective === 'scatter' ? { root: 0 } : {}) };
}

const topologies: [string, Topology][] = [
  ['one host', oneHost(4)],
  ['separate hosts', separateHosts(4)],
  ['hosts of two', grid(3, 2)],
  ['uneven hosts', { hosts: [[0, 1, 2], [3], [4, 5]] }],
];

describe.each(topologies)('%s', (_, topology) => {
  const hosts = topology.hosts.map((ranks) => ranks.length);
  const n = rankCount(topology);
  // All other rates are zero, so that only those of the bound take time.
  const free = { networkLatency: 0, networkOverhead: 0, hostLatency: 0, selfByte: 0, reduceByte: 0 };
  const model: CostModel = { ...free, networkByte: link, hostByte: hosts.length === 1 ? copy : 0 };

  it.each(collectives.filter((each) => each !== 'barrier'))('%s is not faster than its bound', (collective) => {
    const bound = busBound(collective, hosts, { link, copy })!;
    const request = requestOf(collective, topology, 3000);
    const shares = algorithms
      .filter((algorithm) => whyUnsupported(algorithm, request) === undefined)
      .map(({ name }) => {
        const plan = buildPlan(name, request);
        const bytes = (request.count * elementBytes) / (collective === 'all-to-all' ? n : 1);
        return { name, share: ((bytes / costOf(plan, elementBytes, model).seconds) * busFactor(collective, n)) / bound };
      });
    for (const { name, share } of shares) expect([name, share <= 1.0001]).toEqual([name, true]);
    expect(Math.max(...shares.map(({ share }) => share))).toBeGreaterThan(0.3);
  });
});

it('there is no bound when nothing was measured, nothing moves, or there is one rank', () => {
  expect(busBound('all-reduce', [2, 2], { copy })).toBeUndefined();
  expect(busBound('all-reduce', [4], { link })).toBeUndefined();
  expect(busBound('barrier', [2, 2], { link, copy })).toBeUndefined();
  expect(busBound('all-reduce', [1], { link, copy })).toBeUndefined();
});
