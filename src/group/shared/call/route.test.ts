/** The path of a call is a table of call and group; and all ranks read the same line of it. */
import { describe, expect, it } from 'vitest';
import fc from 'fast-check';
import { systemClock } from '../../../base/clock.ts';
import { assumedRates } from '../../../collectives/network-path.ts';
import { reduceOps, type ReduceOp } from '../../../memory/reduce-op.ts';
import { createStepMachine } from '../../../memory/step-machine/create-step-machine.ts';
import { oneHost, separateHosts, type Topology } from '../../../plan/topology.ts';
import { networkPathSpec } from '../../network-path/network-path.ts';
import type { CollectiveCall } from './contract.ts';
import { Planner } from './planner.ts';
import { route, type GroupFacts } from './route.ts';

const bytesMax = 32 * 1024;
const machine = createStepMachine({ clock: systemClock });

function planner(topology: Topology, rank: number): Planner {
  const loadStore = topology.hosts.flat().map(() => topology.hosts.length === 1);
  return new Planner({ machine, overrides: [], order: 'canonical', rank, topology, loadStore });
}

/** What the main thread of a rank knows, by the kind of its group. */
const groups = {
  'four ranks of one host': (rank: number): GroupFacts => ({ planner: planner(oneHost(4), rank), hostBytesMax: bytesMax }),
  'four hosts': (rank: number): GroupFacts => {
    const networkPath = networkPathSpec(4, bytesMax, assumedRates(4));
    const plans = planner(separateHosts(4), rank);
    plans.openNetworkPath(networkPath);
    return { planner: plans, networkBytesMax: networkPath.bytesMax };
  },
  'a group without a fast path': (rank: number): GroupFacts => ({ planner: planner(oneHost(4), rank) }),
} as const;
type Group = keyof typeof groups;

const splitCall: CollectiveCall = { kind: 'all-to-all', dtype: 'int32', count: 4, parts: { sends: [1, 1, 1, 1], receives: [1, 1, 1, 1] } };

const pathOf = (call: CollectiveCall, group: Group, rank = 0): string => route(call, groups[group](rank)).path;

const floats = (count: number, more: Partial<CollectiveCall> = {}): CollectiveCall => ({
  kind: 'all-reduce',
  dtype: 'float32',
  op: 'sum',
  count,
  ...more,
});

describe('the path of a call', () => {
  it.each<[what: string, call: CollectiveCall, host: string, network: string]>([
    ['a small all-reduce', floats(2), 'host', 'network'],
    ['a barrier', { kind: 'barrier', dtype: 'uint8', count: 0 }, 'host', 'network'],
    ['a small broadcast', { kind: 'broadcast', dtype: 'float32', count: 16, root: 1 }, 'host', 'network'],
    ['an empty all-reduce', floats(0), 'host', 'network'],
    ['the largest small all-reduce', floats(bytesMax / 4), 'host', 'network'],
    ['a large all-reduce, which can run on private arrays', floats(bytesMax), 'host', 'engine'],
    ['a large broadcast', { kind: 'broadcast', dtype: 'float32', count: bytesMax, root: 0 }, 'engine', 'engine'],
    ['products of a factor, which the engine scales', floats(2, { op: 'premul', factor: 2 }), 'engine', 'engine'],
    ['an all-to-all of which each rank knows its part', { ...splitCall }, 'engine', 'engine'],
  ])('%s', (_, call, host, network) => {
    expect(pathOf(call, 'four ranks of one host')).toBe(host);
    expect(pathOf(call, 'four hosts')).toBe(network);
    expect(pathOf(call, 'a group without a fast path')).toBe('engine');
  });

  it('is the same on every rank', () => {
    const calls = fc.record({
      kind: fc.constantFrom<CollectiveCall['kind']>('all-reduce', 'broadcast', 'reduce', 'all-gather', 'reduce-scatter', 'all-to-all'),
      dtype: fc.constantFrom<CollectiveCall['dtype']>('float32', 'float64', 'int32', 'bfloat16', 'uint8'),
      op: fc.constantFrom<ReduceOp>(...reduceOps.filter((op) => op !== 'premul')),
      count: fc.nat({ max: 5000 }).map((count) => 16 * count),
      root: fc.nat({ max: 3 }),
    });
    const group = fc.constantFrom<Group>('four ranks of one host', 'four hosts');
    fc.assert(
      fc.property(calls, group, ({ kind, dtype, op, count, root }, name) => {
        const reduces = kind === 'all-reduce' || kind === 'reduce' || kind === 'reduce-scatter';
        const rooted = kind === 'broadcast' || kind === 'reduce';
        const call = { kind, dtype, count, ...(reduces && { op }), ...(rooted && { root }) };
        expect(new Set([0, 1, 2, 3].map((rank) => pathOf(call, name, rank))).size).toBe(1);
      }),
      { numRuns: 60 },
    );
  });
});
