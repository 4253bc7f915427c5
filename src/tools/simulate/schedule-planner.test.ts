/** The gain by scheduling, compared with calculated values. */
import { describe, expect, it } from 'vitest';
import { modelTrace, type LayerTrace } from '../../scheduler/model-traces.ts';
import { planSchedule, type PlanOptions } from './schedule-planner.ts';

const exact = { jitter: 0, overheadUs: 0, workers: 3, exchange: 'parameter-server' } as const;
/** At this rate a byte takes a microsecond. */
const gbitPerSecond = 8e-3;

function layer(name: string, bytes: number, computeMs: number): LayerTrace {
  return { name, bytes, forwardMs: computeMs, backwardMs: computeMs };
}

/** A training of two layers: the second is as large as it is late. */
function trainingOf(computeMs: number): PlanOptions {
  return {
    ...exact,
    gbitPerSecond,
    layers: [layer('0', 6000, computeMs), layer('1', 6000, computeMs)],
    partitions: [1000],
    creditParts: 1,
  };
}

describe('planSchedule', () => {
  it("is worth it for the document's example: 26 units become 18", () => {
    const layers = [layer('0', 3000, 2), layer('1', 6000, 2), layer('2', 3000, 2)];
    const plan = planSchedule({ ...exact, gbitPerSecond, layers, partitions: [1000], creditParts: 1 });
    expect(plan).toMatchObject({ computeMs: 12, networkMs: 12, ratio: 1, noOverlapMs: 24, isWorthIt: true });
    // When layer 1's gradient is there, its own and layer 0's bytes are still to come, and two forward passes: 4 + 9 + 4.
    expect(plan.boundMs).toBeCloseTo(17, 6);
    expect(plan.plainOverlapMs).toBeCloseTo(26, 6);
    expect(plan.scheduledMs).toBeCloseTo(18, 6);
    expect(plan.verdict).toBe('worth it: 1.33 × no overlap; no order gains more than 1.41 ×');
  });

  it('is not worth it where computation takes ten times as long', () => {
    const plan = planSchedule(trainingOf(30));
    expect(plan).toMatchObject({ computeMs: 120, networkMs: 12, isWorthIt: false });
    expect(plan.gainMax).toBeLessThan(1.2);
    expect(plan.verdict).toMatch(/^not worth it: .*communication takes 0\.10 × as long as computation \(12\.0 and 120\.0 ms\)/);
  });

  it('is worth it where both take as long', () => {
    const plan = planSchedule(trainingOf(3));
    expect(plan).toMatchObject({ computeMs: 12, networkMs: 12, isWorthIt: true });
    expect(plan.gain).toBeGreaterThan(1.05);
    expect(plan.gain).toBeLessThanOrEqual(plan.gainMax);
  });

  it('is not worth it where the network is busy all the time, alone, and with one giant tensor', () => {
    const busy = planSchedule({ ...trainingOf(0.1), exchange: 'all-reduce' });
    expect(busy).toMatchObject({ isWorthIt: false });
    expect(busy.verdict).toContain('the network is busy all the time in any order');
    expect(planSchedule({ ...trainingOf(3), workers: 1, exchange: 'all-reduce' })).toMatchObject({ networkMs: 0, isWorthIt: false });
    const giant = planSchedule({ ...exact, gbitPerSecond, exchange: 'all-reduce', layers: [layer('0', 12_000, 10)] });
    expect(giant).toMatchObject({ isWorthIt: false });
  });

  it('chooses the best of some partitions, and none beats the bound', () => {
    const { layers } = modelTrace('vgg16');
    const plan = planSchedule({ layers, workers: 4, exchange: 'parameter-server', gbitPerSecond: 25, steps: 3 });
    expect(plan.isWorthIt).toBe(true);
    expect(plan.creditBytes).toBe(4 * plan.partitionBytes);
    expect(plan.scheduledMs).toBeGreaterThan(0.97 * plan.boundMs);
  });

  it('counts the gain from the shorter one of no overlap and plain overlap', () => {
    // One tensor has three quarters of VGG16's bytes: in whole, it cannot come back while it is sent.
    const { layers } = modelTrace('vgg16');
    const served = planSchedule({ layers, workers: 16, exchange: 'parameter-server', gbitPerSecond: 25, steps: 3 });
    expect(served.noOverlapMs).toBeLessThan(served.plainOverlapMs);
    expect(served).toMatchObject({ baseline: 'no overlap', gain: served.noOverlapMs / served.scheduledMs });
    const reduced = planSchedule({ layers, workers: 16, exchange: 'all-reduce', gbitPerSecond: 25, steps: 3 });
    expect(reduced.plainOverlapMs).toBeLessThan(reduced.noOverlapMs);
    expect(reduced).toMatchObject({ baseline: 'plain overlap', gainMax: reduced.plainOverlapMs / reduced.boundMs });
  });

  it.each<[string, Partial<PlanOptions>]>([
    ['no partition', { partitions: [] }],
    ['a partition of nothing', { partitions: [0] }],
    ['no layers', { layers: [] }],
  ])('refuses %s', (_, wrong) => {
    expect(() => planSchedule({ ...trainingOf(3), ...wrong })).toThrow(expect.objectContaining({ code: 'usage' }));
  });
});
