/** Chosen algorithms serve their calls. And a rank of a large host does as much for a call as its own program takes, which grows with
 *  the number of ranks, not with its square. */
import fc from 'fast-check';
import { expect, it, vi } from 'vitest';
import type * as build from '../collectives/build.ts';
import { buildPlan } from '../collectives/build.ts';
import { createStepMachine } from '../memory/step-machine/create-step-machine.ts';
import { systemClock } from '../base/clock.ts';
import { seededRandom } from '../base/random.ts';
import { assumedRates } from '../collectives/network-path.ts';
import type { Tuning } from '../collectives/tuning-format.ts';
import { dtypeInfo, dtypes } from '../memory/dtype.ts';
import { PlanBuilder } from '../plan/builder.ts';
import { defaultCostModel } from '../plan/cost.ts';
import { mailboxBytes, type Collective } from '../plan/ir.ts';
import { grid, hostsOf, oneHost, separateHosts, type Topology } from '../plan/topology.ts';
import { networkPathSpec } from './network-path.ts';
import { signalMaxOf } from './group-spec.ts';
import type { CollectiveCall } from './contract.ts';
import type { Planner } from './planner.ts';
import { plannerOf } from './testing/planner-of.ts';

vi.mock('../collectives/build.ts', async (original) => {
  const real = await original<typeof build>();
  return { ...real, buildPlan: vi.fn<typeof real.buildPlan>(real.buildPlan) };
});

const calls: readonly CollectiveCall[] = [
  { kind: 'all-reduce', dtype: 'float32', op: 'sum', count: 2 },
  { kind: 'all-reduce', dtype: 'float32', op: 'sum', count: 2 ** 18 },
  { kind: 'all-gather', dtype: 'float32', count: 2 ** 18 },
  { kind: 'reduce-scatter', dtype: 'float32', op: 'sum', count: 2 ** 18 },
  { kind: 'broadcast', dtype: 'float32', count: 2 ** 18, root: 0 },
  { kind: 'barrier', dtype: 'uint8', count: 0 },
];

function runnerOf(ranks: number): Planner {
  return plannerOf({
    machine: createStepMachine({ native: undefined, clock: systemClock }),
    rank: 3,
    topology: oneHost(ranks),
    loadStore: Array.from({ length: ranks }, () => true),
  });
}

it('a rank builds its own program of every call, and no other', () => {
  const runner = runnerOf(64);
  for (const call of calls) expect(runner.prepare(call).hostPath).toBeDefined();
  const built = vi.mocked(buildPlan).mock.calls.map(([, , options]) => options?.onlyRank);
  expect(built).toEqual(calls.map(() => 3));
});

it.each(calls)('$kind of $count elements: what a rank is told grows with the number of ranks', (call) => {
  const verbs = (['notify', 'send', 'copy', 'reduceAll', 'enter'] as const).map((verb) => vi.spyOn(PlanBuilder.prototype, verb));
  const said = (ranks: number): number => {
    for (const verb of verbs) verb.mockClear();
    runnerOf(ranks).prepare(call);
    return verbs.reduce((sum, { mock }) => sum + mock.calls.length, 0);
  };
  expect(said(128)).toBeLessThanOrEqual(said(16) * 9);
});

/** Sizes around which algorithms change, as elements of any width meet them. */
const boundaries = [0, 1024, 4096, 8192, 16_384, 32_768, 65_536, 2 ** 17, 2 ** 18].flatMap((at) => [at - 1, at, at + 1, at + 7]);

const topologies: readonly Topology[] = [
  ...[1, 2, 3, 4, 7, 9].map(oneHost),
  ...[2, 3, 4, 8, 9, 17, 33].map(separateHosts),
  ...[grid(2, 2), grid(3, 2), grid(2, 4), hostsOf([2, 1]), hostsOf([3, 1, 2]), hostsOf([1, 8])],
];

/** Where calls differ from each other, as a function of the number of ranks. */
const anyCall = fc
  .record({
    kind: fc.constantFrom<Collective>(
      'all-reduce',
      'broadcast',
      'reduce',
      'all-gather',
      'gather',
      'scatter',
      'reduce-scatter',
      'all-to-all',
    ),
    dtype: fc.constantFrom(...dtypes.map(({ name }) => name)),
    bytes: fc.constantFrom(...boundaries.filter((bytes) => bytes >= 0)),
    premul: fc.boolean(),
    parts: fc.constantFrom('even', 'one has all', 'any'),
    seed: fc.nat(),
  })
  .map(({ kind, dtype, bytes, premul, parts, seed }) => (n: number): CollectiveCall => {
    const isParted = ['all-gather', 'gather', 'scatter', 'reduce-scatter', 'all-to-all'].includes(kind);
    const ways = kind === 'all-to-all' ? n * n : n;
    const whole = Math.floor(bytes / dtypeInfo(dtype).bytes);
    const count = isParted && parts === 'even' ? Math.floor(whole / ways) * ways : whole;
    const random = seededRandom(seed);
    const cuts = Array.from({ length: ways - 1 }, () => (parts === 'any' ? random.integer(count + 1) : 0)).sort((a, b) => a - b);
    const counts = [...cuts, count].map((cut, index) => cut - (cuts[index - 1] ?? 0));
    const splits = Array.from({ length: n }, (_, rank) => counts.slice(rank * n, (rank + 1) * n));
    const reduces = ['all-reduce', 'reduce', 'reduce-scatter'].includes(kind);
    return {
      kind,
      dtype,
      count,
      ...(reduces && (premul && dtypeInfo(dtype).kind === 'float' ? { op: 'premul', factor: 2 } : { op: 'max' })),
      ...(['broadcast', 'reduce', 'gather', 'scatter'].includes(kind) && { root: random.integer(n) }),
      ...(isParted && parts !== 'even' && (kind === 'all-to-all' ? { splits } : { counts })),
    };
  });

const anyWorld = fc.record({
  topology: fc.constantFrom(...topologies),
  rank: fc.nat(),
  model: fc.constantFrom(
    undefined,
    defaultCostModel,
    { ...defaultCostModel, networkLatency: 2e-3 },
    { ...defaultCostModel, networkByte: 1e-7 },
  ),
  /** Measurements for all sizes, with even parts. */
  measured: fc.constantFrom(undefined, 'mailbox', 'host-staged', 'fairring', 'ring', 'tree'),
  order: fc.constantFrom('canonical', 'relaxed'),
  loadStore: fc.boolean(),
});

it('the automatic choice serves every call, whatever is known of the world, and whatever was called before', () => {
  const callsOf = fc.array(anyCall, { minLength: 1, maxLength: 3 });
  fc.assert(
    fc.property(anyWorld, callsOf, ({ topology, rank, model, measured, order, loadStore }, makers) => {
      const n = topology.hosts.flat().length;
      const calls = makers.map((make) => make(n));
      const reaches = loadStore && topology.hosts.length === 1;
      const choices = calls.map(({ kind: collective }) => ({
        collective,
        measured: [],
        ranges: [{ from: 0, to: null, algorithm: measured ?? '' }],
      }));
      const hosts = topology.hosts.map(({ length }) => length);
      const tuning: Tuning = { schema: 'shoal-tuning', version: 1, shoal: '', worlds: [{ hosts, loadStore: reaches, order, choices }] };
      const plannerOfRank = (): Planner => {
        const planner = plannerOf({
          machine: createStepMachine({ native: undefined, clock: systemClock }),
          order,
          rank: rank % n,
          topology,
          loadStore: Array.from({ length: n }, () => reaches),
          ...(measured !== undefined && { tuning }),
          ...(model && { model }),
        });
        planner.openNetworkPath(networkPathSpec(n, 65_536, assumedRates(n)));
        return planner;
      };
      const experienced = plannerOfRank();
      for (const call of calls) {
        for (const path of ['engine', 'network'] as const) {
          const { plan, lowered, hostPath } = experienced.prepare(call, path);
          expect(lowered.mailboxBytes).toBeLessThanOrEqual(mailboxBytes);
          expect(lowered.signalCount).toBeLessThanOrEqual(signalMaxOf(n));
          expect(hostPath?.private !== undefined).toBe(hostPath?.hasPrivate === true);
          expect(plannerOfRank().prepare(call, path).plan.algorithm).toBe(plan.algorithm);
        }
      }
    }),
    { numRuns: 500 },
  );
});
