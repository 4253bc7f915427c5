/** What a rank of a large host does for a call: as much as its own program takes, which grows with the number of ranks, not with its square. */
import { expect, it, vi } from 'vitest';
import type * as build from '../../collectives/build.ts';
import { buildPlan } from '../../collectives/build.ts';
import { createStepMachine } from '../../memory/step-machine/create-step-machine.ts';
import { systemClock } from '../../base/clock.ts';
import { PlanBuilder } from '../../plan/builder.ts';
import { oneHost } from '../../plan/topology.ts';
import type { CollectiveCall } from './contract.ts';
import { Planner } from './planner.ts';

vi.mock('../../collectives/build.ts', async (original) => {
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
  return new Planner({
    machine: createStepMachine({ native: undefined, clock: systemClock }),
    overrides: [],
    order: 'canonical',
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
