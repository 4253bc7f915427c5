/** The movements of programs, compared with those that the cost model, which reads plans by itself, finds in the same plans. */
import { describe, expect, it } from 'vitest';
import { algorithms } from './registry.ts';
import { buildPlan, whyUnsupported } from './build.ts';
import { costOf } from '../plan/cost.ts';
import { collectives, type PlanRequest } from '../plan/ir.ts';
import { movementsOf } from './movement.ts';
import { grid, hostOfRanks, oneHost, rankCount, separateHosts, type Topology } from '../plan/topology.ts';

const elementBytes = 4;
const topologies: [string, Topology][] = [
  ['one host', oneHost(4)],
  ['separate hosts', separateHosts(5)],
  ['hosts of two', grid(3, 2)],
];

function requestOf(collective: PlanRequest['collective'], topology: Topology): PlanRequest {
  const n = rankCount(topology);
  const even = Array.from({ length: n }, () => 30);
  const common = { collective, topology, elementBytes, count: 30 * n };
  if (collective === 'barrier') return { ...common, count: 0 };
  if (collective === 'all-to-all') return { ...common, count: 30 * n * n, splits: even.map(() => even) };
  if (collective === 'all-reduce' || collective === 'broadcast' || collective === 'reduce')
    return { ...common, ...(collective === 'all-reduce' ? {} : { root: 1 }) };
  return { ...common, counts: even, ...(collective === 'gather' || collective === 'scatter' ? { root: 1 } : {}) };
}

describe.each(topologies)('%s', (_, topology) => {
  const hostOf = hostOfRanks(topology);
  const cases = collectives.flatMap((collective) =>
    algorithms
      .filter((algorithm) => whyUnsupported(algorithm, requestOf(collective, topology)) === undefined)
      .map(({ name }) => ({ collective, name })),
  );

  it.each(cases)('$name $collective moves what it costs', ({ collective, name }) => {
    const plan = buildPlan(name, requestOf(collective, topology));
    const cost = costOf(plan, elementBytes);
    const movements = plan.programs.map((program) =>
      movementsOf(program, { elementBytes, loadStore: hostOf.map((host) => host === hostOf[program.rank]) }),
    );
    const all = movements.flat();
    const isHost = ({ from, to }: { from: number; to: number }): boolean => hostOf[from] === hostOf[to];
    const bytes = (which: typeof all): number => which.reduce((sum, each) => sum + each.bytes, 0);
    for (const [rank, { networkBytesOut, networkBytesIn, hostBytes }] of cost.ranks.entries()) {
      expect(bytes(all.filter((each) => each.from === rank && !isHost(each)))).toBe(networkBytesOut);
      expect(bytes(all.filter((each) => each.to === rank && !isHost(each)))).toBe(networkBytesIn);
      expect(bytes(movements[rank].filter(isHost))).toBe(hostBytes);
    }
    expect(all.every(({ from, to, bytes: moved, transfers }) => from !== to && moved > 0 && transfers > 0)).toBe(true);
  });
});

it('mailbox contents go to all ranks that share no memory, and are not counted again where they are read', () => {
  const plan = buildPlan('mailbox', { collective: 'all-reduce', topology: oneHost(3), elementBytes, count: 2 });
  const movements = plan.programs.flatMap((program) => movementsOf(program, { elementBytes, loadStore: [false, false, false] }));
  const pairs = [0, 1, 2].flatMap((from) => [0, 1, 2].filter((to) => to !== from).map((to) => ({ from, to, bytes: 8, transfers: 1 })));
  expect(movements).toEqual(pairs);
});
