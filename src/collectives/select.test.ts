import { describe, expect, it } from 'vitest';
import { grid, hostsOf, oneHost, separateHosts, type Topology } from '../plan/topology.ts';
import { costOf, defaultCostModel } from '../plan/cost.ts';
import { algorithms } from './registry.ts';
import { buildPlan, whyUnsupported } from './build.ts';
import { predictSeconds } from './predict.ts';
import { formatTable, parseSelection, selectAlgorithm, selectionTable, type SelectionInput } from './select.ts';
import { collectives } from '../plan/ir.ts';

const base: SelectionInput = { collective: 'all-reduce', bytes: 1024, topology: separateHosts(4), loadStore: true, order: 'canonical' };

describe('selectAlgorithm', () => {
  it('takes loads and stores on one host, and the network where there are none', () => {
    expect(selectAlgorithm({ ...base, topology: oneHost(4), bytes: 8192 })).toBe('mailbox');
    expect(selectAlgorithm({ ...base, topology: oneHost(4), bytes: 8193 })).toBe('host-direct');
    expect(selectAlgorithm({ ...base, topology: oneHost(4), loadStore: false })).toBe('mailbox');
    expect(selectAlgorithm({ ...base, topology: grid(3, 4) })).toBe('mailbox');
    expect(selectAlgorithm({ ...base, topology: grid(3, 4), bytes: 16_384 })).toBe('fairring');
    expect(selectAlgorithm({ ...base, topology: grid(32, 4) })).toBe('fairring');
    expect(selectAlgorithm({ ...base, topology: grid(32, 4), bytes: 2 ** 20 })).toBe('fairring');
    expect(selectAlgorithm({ ...base, topology: { hosts: [[0, 1], [2]] }, bytes: 2 ** 20 })).toBe('halving-doubling');
  });

  it('leaves private buffers to plans in which only their owners touch them, where there is one', () => {
    const host = { ...base, topology: oneHost(4), buffers: 'private' } as const;
    expect(selectAlgorithm({ ...host, bytes: 8192 })).toBe('mailbox');
    expect(selectAlgorithm({ ...host, bytes: 8193 })).toBe('host-staged');
    expect(selectAlgorithm({ ...host, bytes: 8193, overrides: parseSelection('all-reduce:host-direct') })).toBe('host-direct');
    expect(selectAlgorithm({ ...host, bytes: 8193, collective: 'all-gather' })).toBe('host-direct');
    expect(selectAlgorithm({ ...host, topology: separateHosts(4), bytes: 2 ** 20 })).toBe('direct');
  });

  it('sums the data of two ranks of one host by halves as soon as half of it is worth a signal, staged where buffers are private', () => {
    const sizes = [4095, 4096, 16_383, 16_384];
    const by = (input: Partial<SelectionInput>): string[] =>
      sizes.map((bytes) => selectAlgorithm({ ...base, topology: oneHost(2), ...input, bytes }));
    expect(by({})).toEqual(['mailbox', 'host-direct', 'host-direct', 'host-direct']);
    expect(by({ buffers: 'private' })).toEqual(['mailbox', 'host-staged', 'host-staged', 'host-staged']);
    expect(by({ topology: oneHost(3) })).toEqual(['mailbox', 'mailbox', 'host-direct', 'host-direct']);
    expect(by({ collective: 'reduce' })).toEqual(['mailbox', 'mailbox', 'host-direct', 'host-direct']);
  });

  it('follows size and number of ranks', () => {
    const sizes = [0, 32_767, 32_768, 100_000, 1 << 20, 2 ** 33];
    const by = (topology: Topology): string[] => sizes.map((bytes) => selectAlgorithm({ ...base, bytes, topology }));
    expect(by(separateHosts(16))).toEqual(['mailbox', 'one-shot', 'direct', 'direct', 'direct', 'direct']);
    expect(by(separateHosts(32))).toEqual(['mailbox', 'fairring', 'fairring', 'fairring', 'fairring', 'direct']);
  });

  it('takes the ring only where any order is allowed', () => {
    const large = { ...base, bytes: 25 << 20 };
    expect(selectAlgorithm(large)).toBe('direct');
    expect(selectAlgorithm({ ...large, order: 'relaxed' })).toBe('ring');
  });

  const sizes = [64, 4 * 1024, 32 * 1024, 256 * 1024, 2 ** 21, 25 * 2 ** 20];
  it.each(collectives)('%s is never far from the best by the cost model', (collective) => {
    const worlds = [...[2, 3, 4, 8, 12, 16, 24, 32].map(separateHosts), grid(2, 2), grid(2, 4), grid(4, 2), grid(3, 2), grid(4, 4)];
    for (const topology of worlds) {
      const n = topology.hosts.flat().length;
      for (const bytes of collective === 'barrier' ? [0] : sizes) {
        const count = Math.ceil(bytes / 4 / n / n) * n * n;
        const secondsOf = (name: string): number =>
          costOf(buildPlan(name, { collective, topology, count, pieceCount: 65_536, elementBytes: 4 }), 4).seconds;
        const candidates = algorithms.filter(
          (each) => each.association === 'canonical' && whyUnsupported(each, { collective, topology, count }) === undefined,
        );
        const best = Math.min(...candidates.map(({ name }) => secondsOf(name)));
        const chosen = selectAlgorithm({ collective, bytes, topology, loadStore: true, order: 'canonical' });
        const hosts = topology.hosts.length;
        expect(secondsOf(chosen) / Math.max(best, 1e-9), `${chosen} for ${bytes} bytes, ${n} ranks on ${hosts} hosts`).toBeLessThan(1.5);
      }
    }
  });

  it('follows the formula among more ranks than plans are built for, by the rates it is given', () => {
    const fast = { ...defaultCostModel, networkLatency: 200e-6, networkOverhead: 33e-6, networkByte: 1 / 27e9 };
    for (const [model, shardBytes] of [
      [defaultCostModel, 2 ** 14],
      [fast, 2 ** 18],
    ] as const) {
      const limits = { stagingBytes: 2 ** 40, shardBytes };
      for (const topology of [grid(17, 4), grid(32, 4), separateHosts(72)]) {
        for (const bytes of [2 ** 14, 2 ** 20, 2 ** 23]) {
          const chosen = selectAlgorithm({ ...base, bytes, topology, model, limits });
          const secondsOf = (name: string): number =>
            predictSeconds({ collective: 'all-reduce', bytes, topology, order: 'canonical', model, limits }, name);
          const best = Math.min(...['fairring', 'halving-doubling', 'tree'].map(secondsOf));
          expect(secondsOf(chosen) / best, `${chosen}, ${bytes} bytes, ${topology.hosts.length} hosts`).toBeLessThan(1.2);
        }
      }
    }
    // Hosts of different sizes have no rails.
    expect(selectAlgorithm({ ...base, bytes: 2 ** 20, topology: hostsOf([40, 30]) })).toBe('halving-doubling');
  });

  it('always finds an algorithm that can, canonical unless relaxed is allowed', () => {
    for (const topology of [oneHost(1), oneHost(5), separateHosts(3), grid(3, 2), separateHosts(20)]) {
      const n = topology.hosts.flat().length;
      for (const collective of collectives) {
        for (const loadStore of [true, false]) {
          for (const bytes of [0, 1, 5000, 70_000, 2 ** 21]) {
            for (const order of ['canonical', 'relaxed'] as const) {
              const name = selectAlgorithm({ collective, bytes, topology, loadStore, order });
              const plan = buildPlan(name, { collective, topology, count: collective === 'barrier' ? 0 : n * n });
              if (order === 'canonical') expect(plan.association).not.toBe('relaxed');
            }
          }
        }
      }
    }
  });
});

describe('parseSelection', () => {
  it('puts ranges before the defaults', () => {
    const overrides = parseSelection('all-reduce:0-4k=direct,4k-inf=ring;broadcast:tree');
    const choose = (change: Partial<SelectionInput>): string => selectAlgorithm({ ...base, overrides, ...change });
    expect([4095, 4096].map((bytes) => choose({ bytes }))).toEqual(['direct', 'ring']);
    expect(choose({ collective: 'broadcast' })).toBe('tree');
    expect(choose({ collective: 'barrier' })).toBe('mailbox');
  });

  it('keeps the default where no range matches', () => {
    expect(selectAlgorithm({ ...base, bytes: 16_384, overrides: parseSelection('all-reduce:1m-1g=tree') })).toBe('one-shot');
  });

  it('* is every collective that the algorithm has', () => {
    expect(parseSelection('*:ring').map(({ collective }) => collective)).toEqual(['all-reduce', 'all-gather', 'reduce-scatter']);
  });

  it('the backend fairring is its all-reduce, and the defaults for everything else', () => {
    const overrides = parseSelection('*:fairring');
    expect(overrides.map(({ collective }) => collective)).toEqual(['all-reduce']);
    expect(selectAlgorithm({ ...base, overrides })).toBe('fairring');
    expect(selectAlgorithm({ ...base, overrides, collective: 'broadcast' })).toBe('mailbox');
  });

  it('is empty for empty text, and allows spaces and a last semicolon', () => {
    expect(parseSelection(' ')).toEqual([]);
    expect(parseSelection(' all-reduce : 0-1K = tree , 1k-inf=direct ; ').map(({ bytesTo }) => bytesTo)).toEqual([1024, Infinity]);
  });

  const bad: [string, RegExp][] = [
    ['all-reduce', /expected 'collective:algorithm'/],
    ['all-reduce:', /expected 'collective:algorithm'/],
    ['all-reduce:tree:ring', /expected/],
    ['allreduce:tree', /unknown collective 'allreduce'; use one of all-reduce/],
    ['all-reduce:trees', /unknown algorithm 'trees'; use one of mailbox, host-direct/],
    ['all-reduce:0-4x=tree', /'4x' is not a size/],
    ['all-reduce:4k-4k=tree', /covers no size/],
    ['all-reduce:4k=tree', /is not 'algorithm' or 'from-to=algorithm'/],
    ['all-reduce:0-4k=', /is not 'algorithm'/],
    ['barrier:ring', /ring has no barrier; use one of mailbox, host-direct, one-shot, tree, direct/],
  ];
  it.each(bad)('refuses %s', (text, message) => {
    expect(() => parseSelection(text)).toThrow(message);
    expect(() => parseSelection(text)).toThrow(expect.objectContaining({ code: 'config' }));
  });
});

describe('formatTable', () => {
  it('prints one aligned line per rule', () => {
    const text = formatTable(selectionTable(parseSelection('all-reduce:4k-25m=ring')));
    expect(text.split('\n').slice(0, 3)).toEqual([
      'collective      topology           bytes     ranks  order    algorithm',
      'all-reduce      any                4k-25m    any    any      ring',
      'barrier         any                0-inf     any    any      mailbox',
    ]);
    expect(text).toContain('\nall-reduce      one-host, private  0-inf     any    any      host-staged\n');
    expect(text.split('\n')).toHaveLength(selectionTable().length + 2);
  });
});
