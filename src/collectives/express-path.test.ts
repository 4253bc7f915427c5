/** Plans on the express: which of them it can run, and that choices follow the path each would take. */
import { describe, expect, it } from 'vitest';
import { defaultCostModel, type CostModel } from '../plan/cost.ts';
import { grid, separateHosts, type Topology } from '../plan/topology.ts';
import { buildPlan } from './build.ts';
import { fitsExpress, type ExpressPath } from './express-path.ts';
import { networkLimits, predictSeconds } from './predict.ts';
import { selectAlgorithm } from './select.ts';

const KiB = 1024;
const pathOf = (latency: number): ExpressPath => ({ bytesMax: 128 * KiB, scratchBytes: 128 * KiB, signalMax: 48, latency });
const fits = (name: string, topology: Topology, bytes: number): boolean =>
  fitsExpress(buildPlan(name, { collective: 'all-reduce', topology, count: bytes / 4, elementBytes: 4 }), 4, pathOf(0));

describe('an express', () => {
  it('runs what its scratch holds: not three tensors of 64 KiB', () => {
    expect(fits('one-shot', separateHosts(4), 32 * KiB)).toBe(true);
    expect(fits('one-shot', separateHosts(4), 64 * KiB)).toBe(false);
    expect(fits('one-shot', separateHosts(3), 64 * KiB)).toBe(true);
    expect(fits('direct', separateHosts(4), 128 * KiB)).toBe(true);
    expect(fits('direct', separateHosts(4), 256 * KiB)).toBe(false);
  });

  it('runs mailboxes alone where a host has several ranks', () => {
    expect(fits('mailbox', grid(2, 2), 8 * KiB)).toBe(true);
    expect(fits('direct', grid(2, 2), 8 * KiB)).toBe(false);
  });
});

describe('selectAlgorithm with an express', () => {
  // What the comm threads take on crowded CPUs.
  const comm: CostModel = { ...defaultCostModel, networkLatency: 150e-6, networkOverhead: 20e-6, networkByte: 8e-9 };
  const choose = (bytes: number, latency: number, model = comm): string =>
    selectAlgorithm({
      collective: 'all-reduce',
      bytes,
      topology: separateHosts(4),
      loadStore: false,
      order: 'canonical',
      model,
      express: pathOf(latency),
    });
  const far = { ...comm, networkLatency: 650e-6 };

  it.each([
    ['64 B', 64, 10e-6, comm, 'mailbox'],
    ['2 KiB', 2 * KiB, 10e-6, comm, 'mailbox'],
    ['8 KiB: bytes weigh more than a hop', 8 * KiB, 10e-6, comm, 'direct'],
    ['64 KiB', 64 * KiB, 10e-6, comm, 'direct'],
    ['8 KiB, half a millisecond away', 8 * KiB, 500e-6, far, 'mailbox'],
    ['64 KiB, half a millisecond away', 64 * KiB, 500e-6, far, 'direct'],
    ['8 KiB, a wire that is fast', 8 * KiB, 10e-6, { ...comm, networkByte: 0.3e-9 }, 'mailbox'],
  ])('4 hosts, %s', (_, bytes, latency, model, algorithm) => {
    expect(choose(bytes, latency, model)).toBe(algorithm);
  });

  it('takes nothing that would leave the express because of the size it is called with', () => {
    const topology = separateHosts(4);
    for (let bytes = 8 * KiB + 4; bytes <= 128 * KiB; bytes += 1020) {
      const name = choose(bytes - (bytes % 4), 500e-6, far);
      expect(fits(name, topology, bytes - (bytes % 4)), `${name}, ${bytes} bytes`).toBe(true);
    }
  });

  it('is as without one above its sizes', () => {
    const input = { collective: 'all-reduce', bytes: 2 ** 20, topology: separateHosts(4), loadStore: false, order: 'canonical' } as const;
    const without = selectAlgorithm({ ...input, model: comm });
    expect(selectAlgorithm({ ...input, model: comm, express: pathOf(10e-6) })).toBe(without);
  });

  it('expects the comm threads to take longer for the same plan, and a first put into scratch to cost no hop of its own', () => {
    const topology = separateHosts(4);
    const shape = { collective: 'all-reduce', topology, order: 'canonical', limits: networkLimits(topology, comm) } as const;
    const seconds = (name: string, scratchBytes: number): number =>
      predictSeconds({ ...shape, bytes: 64, model: comm, express: { ...pathOf(500e-6), scratchBytes } }, name);
    expect(seconds('one-shot', 0)).toBeGreaterThan(seconds('one-shot', 128 * KiB));
    const hop = 150e-6;
    expect(seconds('one-shot', 128 * KiB)).toBeLessThan(1.5 * hop);
    expect(seconds('direct', 128 * KiB)).toBeGreaterThan(2 * hop);
  });
});
