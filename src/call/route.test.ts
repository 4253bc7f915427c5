/** The way of a call is a table of call and group; and all ranks read the same line of it. */
import { describe, expect, it } from 'vitest';
import fc from 'fast-check';
import { systemClock } from '../base/clock.ts';
import { assumedRates } from '../collectives/network-path.ts';
import { reduceOps, type ReduceOp } from '../memory/reduce-op.ts';
import { createStepMachine } from '../memory/step-machine/create-step-machine.ts';
import { oneHost, separateHosts, type Topology } from '../plan/topology.ts';
import { networkPathSpec } from './network-path.ts';
import type { CollectiveCall } from './contract.ts';
import type { Planner } from './planner.ts';
import { plannerOf } from './testing/planner-of.ts';
import { noOptions } from '../base/schema.ts';
import { mayRepeat, packOf, route, type GroupFacts } from './route.ts';

const bytesMax = 32 * 1024;
const machine = createStepMachine({ clock: systemClock });

function planner(topology: Topology, rank: number): Planner {
  const loadStore = topology.hosts.flat().map(() => topology.hosts.length === 1);
  return plannerOf({ machine, rank, topology, loadStore });
}

/** The facts that a rank knows, by the kind of its group. */
const groups = {
  'four ranks of one host': (rank: number): GroupFacts => ({ planner: planner(oneHost(4), rank), hostBytesMax: bytesMax }),
  'four hosts': (rank: number): GroupFacts => {
    const networkPath = networkPathSpec(4, bytesMax, assumedRates(4));
    const plans = planner(separateHosts(4), rank);
    plans.openNetworkPath(networkPath);
    return { planner: plans, networkBytesMax: networkPath.bytesMax };
  },
  'a group without a fast path': (rank: number): GroupFacts => ({ planner: planner(oneHost(4), rank) }),
  'a group of Open MPI': (rank: number): GroupFacts => ({ planner: planner(oneHost(4), rank), usesLibrary: true, hostBytesMax: bytesMax }),
} as const;
type Group = keyof typeof groups;

const splitCall: CollectiveCall = { kind: 'all-to-all', dtype: 'int32', count: 4, parts: { sends: [1, 1, 1, 1], receives: [1, 1, 1, 1] } };

const pathOf = (call: CollectiveCall, group: Group, { rank = 0, isOnDevice = false } = {}): string =>
  route(call, groups[group](rank), { isOnDevice }).path;

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
  ])('%s', (_, call, host, network) => {
    expect(pathOf(call, 'four ranks of one host')).toBe(host);
    expect(pathOf(call, 'four hosts')).toBe(network);
    expect(pathOf(call, 'a group without a fast path')).toBe('engine');
    expect(pathOf(call, 'a group of Open MPI')).toBe('library');
    for (const group of Object.keys(groups) as Group[]) expect(pathOf(call, group, { isOnDevice: true })).toBe('device');
  });

  it('of an all-to-all of which each rank knows its part leads to an exchange, whatever the group', () => {
    for (const group of ['four ranks of one host', 'four hosts', 'a group without a fast path', 'a group of Open MPI'] as const)
      expect(pathOf(splitCall, group)).toBe('exchange');
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
        expect(new Set([0, 1, 2, 3].map((rank) => pathOf(call, name, { rank }))).size).toBe(1);
      }),
      { numRuns: 60 },
    );
  });
});

describe('calls of a batch', () => {
  it.each<[what: string, call: CollectiveCall, other: CollectiveCall, together: boolean]>([
    ['small ones that differ in size alone', floats(4), floats(8192), true],
    ['a larger one', floats(4), floats(8193), false],
    ['an empty one', floats(4), floats(0), false],
    ['other elements', floats(4), floats(4, { dtype: 'float64' }), false],
    ['another operator', floats(4), floats(4, { op: 'max' }), false],
    ['another collective', floats(4), { kind: 'broadcast', dtype: 'float32', count: 4, root: 0 }, false],
    [
      'another root',
      { kind: 'broadcast', dtype: 'int8', count: 4, root: 0 },
      { kind: 'broadcast', dtype: 'int8', count: 4, root: 1 },
      false,
    ],
    ['a factor of their own', floats(4, { op: 'premul', factor: 2 }), floats(4, { op: 'premul', factor: 2 }), false],
    ['lists of counts', floats(4, { counts: [1, 3] }), floats(4, { counts: [1, 3] }), false],
  ])('travel as one: %s', (_, call, other, together) => {
    const [a, b] = [packOf(call), packOf(other)];
    expect(a !== undefined && a === b).toBe(together);
  });
});

describe('a call is repeated', () => {
  it.each<[what: string, options: object, repeats: boolean]>([
    ['without options', noOptions, true],
    ['with no option', {}, true],
    ['with an operator', { op: 'sum' }, true],
    ['with a root', { root: 1 }, true],
    ['with options that are undefined', { op: 'sum', name: undefined, timeoutMs: undefined }, true],
    ['not with a name', { op: 'sum', name: 'a' }, false],
    ['not with a limit', { timeoutMs: 5 }, false],
    ['not with an unknown option, which is to be refused', { operator: 'sum' }, false],
    ['not with what is no object of options', [], false],
  ])('%s', (_, options, repeats) => {
    expect(mayRepeat(options)).toBe(repeats);
  });
});
