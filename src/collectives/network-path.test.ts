/** Plans on the network path: the path runs those that it can, and choices consider the path that each plan would take. */
import { describe, expect, it } from 'vitest';
import { defaultCostModel, type CostModel } from '../plan/cost.ts';
import { grid, separateHosts, type Topology } from '../plan/topology.ts';
import { buildPlan } from './build.ts';
import { assumedRates, fitsNetworkPath, measuredRates, type NetworkPathSpec } from './network-path.ts';
import { networkLimits, predictSeconds } from './predict.ts';
import { selectAlgorithm } from './select.ts';

const KiB = 1024;
const shape = { bytesMax: 128 * KiB, scratchBytes: 128 * KiB, putBytes: 128 * KiB, signalMax: 48 };
const pathOf = (latency: number): NetworkPathSpec => ({ ...shape, rates: assumedRates(4, latency) });
const fits = (name: string, topology: Topology, bytes: number): boolean =>
  fitsNetworkPath(buildPlan(name, { collective: 'all-reduce', topology, count: bytes / 4, elementBytes: 4 }), 4, pathOf(0));

describe('a network path', () => {
  it('runs plans whose scratch it holds: not three tensors of 64 KiB', () => {
    expect(fits('one-shot', separateHosts(4), 32 * KiB)).toBe(true);
    expect(fits('one-shot', separateHosts(4), 64 * KiB)).toBe(false);
    expect(fits('one-shot', separateHosts(3), 64 * KiB)).toBe(true);
    expect(fits('direct', separateHosts(4), 128 * KiB)).toBe(true);
    expect(fits('direct', separateHosts(4), 256 * KiB)).toBe(false);
  });

  it('runs plans whose puts sockets hold, and all that a rank is sent', () => {
    const within = (name: string, putBytes: number): boolean => {
      const plan = buildPlan(name, { collective: 'all-reduce', topology: separateHosts(4), count: 2 ** 18, elementBytes: 4 });
      return fitsNetworkPath(plan, 4, { ...pathOf(0), bytesMax: 2 ** 20, scratchBytes: 2 ** 22, putBytes });
    };
    expect(within('direct', 2 ** 18)).toBe(true);
    expect(within('direct', 2 ** 18 - 64)).toBe(false);
    expect(within('one-shot', 2 ** 20)).toBe(true);
    expect(within('one-shot', 2 ** 19)).toBe(false);
  });

  it('runs plans that send, also where a host has several ranks, and none that load from peers', () => {
    expect(fits('mailbox', grid(2, 2), 8 * KiB)).toBe(true);
    expect(fits('tree', grid(2, 2), 8 * KiB)).toBe(true);
    expect(fits('fairring', grid(2, 2), 8 * KiB)).toBe(false);
  });
});

describe('selectAlgorithm with a network path', () => {
  // Rates of the comm threads on crowded CPUs.
  const comm: CostModel = { ...defaultCostModel, networkLatency: 150e-6, networkOverhead: 20e-6, networkByte: 8e-9 };
  const choose = (bytes: number, latency: number, model = comm): string =>
    selectAlgorithm({
      collective: 'all-reduce',
      bytes,
      topology: separateHosts(4),
      loadStore: false,
      order: 'canonical',
      model,
      networkPath: pathOf(latency),
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

  // Rates measured with all ranks on two CPUs, and with a CPU for each.
  const crowded = { hop: 9e-6, message: 3.4e-6, byte: 0.5e-9 };
  const roomy = { hop: 10e-6, message: 0.3e-6, byte: 0.5e-9 };
  it.each([
    ['4 KiB', 4 * KiB, 4, crowded, 'tree'],
    ['32 KiB', 32 * KiB, 4, crowded, 'halving-doubling'],
    ['1 KiB', KiB, 8, crowded, 'tree'],
    ['8 B, of which no two ranks can have a part', 8, 8, crowded, 'tree'],
    ['4 KiB', 4 * KiB, 8, crowded, 'tree'],
    ['8 B', 8, 8, roomy, 'mailbox'],
    ['8 B', 8, 4, roomy, 'mailbox'],
    ['32 KiB', 32 * KiB, 8, roomy, 'direct'],
  ])('measured, %s: %d bytes on %d hosts', (_, bytes, ranks, rates, algorithm) => {
    const model = { ...comm, networkByte: 8e-9 };
    const input = { collective: 'all-reduce', bytes, loadStore: false, order: 'canonical', model } as const;
    expect(selectAlgorithm({ ...input, topology: separateHosts(ranks), networkPath: { ...shape, rates } })).toBe(algorithm);
  });

  it('as many messages take longer from one rank than from several: 8 bytes cannot be shared', () => {
    // Rates measured with four hosts on two CPUs.
    const rates = { hop: 4.4e-6, message: 2.6e-6, byte: 0.6e-9 };
    const input = { collective: 'all-reduce', loadStore: false, order: 'canonical', topology: separateHosts(4), model: comm } as const;
    for (const bytes of [8, 64, 512]) expect(selectAlgorithm({ ...input, bytes, networkPath: { ...shape, rates } })).toBe('tree');
  });

  it('rates follow from the times of rounds', () => {
    const rounds = (hop: number, message: number, n: number) => {
      const hops = 2 * Math.ceil(Math.log2(n));
      const tree = hops * hop + 2 * (n - 1) * message;
      return { tree, all: hop + n * (n - 1) * message, bytes: tree + hops * 4096 * 1e-9 };
    };
    const rates = { hop: 8e-6, message: 2e-6, byte: 1e-9 };
    for (const n of [2, 3, 4, 8, 13]) expect(measuredRates(n, rounds(8e-6, 2e-6, n))).toEqual(rates);
    // Timings with chance: messages seem to take nothing, hops seem to, bytes make it faster.
    expect(measuredRates(4, { tree: 100e-6, all: 20e-6, bytes: 90e-6 })).toEqual({ hop: 20e-6, message: 0, byte: 0 });
    expect(measuredRates(4, { tree: 12e-6, all: 24e-6, bytes: 12e-6 })).toEqual({ hop: 0, message: 2e-6, byte: 0 });
    expect(measuredRates(4, { tree: 6e-6, all: 1e-3, bytes: 6e-6 }).message).toBe(1e-6);
  });

  it('two ranks of a host have sockets between them, whose hops count', () => {
    const input = { collective: 'all-reduce', bytes: 64, loadStore: false, order: 'canonical', model: comm } as const;
    expect(selectAlgorithm({ ...input, topology: grid(4, 2), networkPath: { ...shape, rates: crowded } })).toBe('tree');
    expect(selectAlgorithm({ ...input, topology: grid(4, 2), networkPath: { ...shape, rates: roomy } })).toBe('mailbox');
  });

  it('takes nothing that would leave the network path because of the size it is called with', () => {
    const topology = separateHosts(4);
    for (let bytes = 8 * KiB + 4; bytes <= 128 * KiB; bytes += 1020) {
      const name = choose(bytes - (bytes % 4), 500e-6, far);
      expect(fits(name, topology, bytes - (bytes % 4)), `${name}, ${bytes} bytes`).toBe(true);
    }
  });

  it('makes no difference above its sizes', () => {
    const input = { collective: 'all-reduce', bytes: 2 ** 20, topology: separateHosts(4), loadStore: false, order: 'canonical' } as const;
    const without = selectAlgorithm({ ...input, model: comm });
    expect(selectAlgorithm({ ...input, model: comm, networkPath: pathOf(10e-6) })).toBe(without);
  });

  it('expects the comm threads to take longer for the same plan, and announcements along its messages to cost no hop', () => {
    const topology = separateHosts(4);
    const limits = networkLimits(topology, comm);
    const rates = { hop: 100e-6, message: 1e-6, byte: 0 };
    const seconds = (name: string, scratchBytes: number): number =>
      predictSeconds(
        {
          collective: 'all-reduce',
          topology,
          order: 'canonical',
          limits,
          bytes: 64,
          model: comm,
          networkPath: { ...shape, rates, scratchBytes },
        },
        name,
      );
    expect(seconds('one-shot', 0)).toBeGreaterThan(seconds('one-shot', 128 * KiB));
    const within = (hops: number, messages: number): [number, number] => [
      hops * 100e-6 + messages * 1e-6,
      (hops + 0.1) * 100e-6 + messages * 1e-6,
    ];
    const expectIn = (name: string, [least, most]: [number, number]): void => {
      expect(seconds(name, 128 * KiB)).toBeGreaterThanOrEqual(least);
      expect(seconds(name, 128 * KiB)).toBeLessThan(most);
    };
    expectIn('mailbox', within(1, 12));
    expectIn('one-shot', within(1, 12));
    expectIn('tree', within(4, 6));
  });
});
