import { describe, expect, it } from 'vitest';
import { defaultCostModel, type CostModel } from '../plan/cost.ts';
import { grid, oneHost, separateHosts, type Topology } from '../plan/topology.ts';
import { canServe, evenRequest, networkLimits, predictSeconds } from './predict.ts';
import { algorithms } from './registry.ts';
import { parseSelection, selectAlgorithm, type SelectionInput } from './select.ts';
import { collectives } from '../plan/ir.ts';

const slowStart: CostModel = { ...defaultCostModel, networkLatency: 500e-6, networkByte: 8e-9 };
const models: readonly [string, CostModel][] = [
  ['10 Gbit/s', defaultCostModel],
  ['1 Gbit/s, half a millisecond away', slowStart],
  ['messages that cost much', { ...defaultCostModel, networkOverhead: 200e-6 }],
  ['a wire that costs nothing', { ...defaultCostModel, networkByte: 0 }],
  ['slow sums', { ...defaultCostModel, reduceByte: 5e-9 }],
];
const worlds: readonly Topology[] = [
  separateHosts(2),
  separateHosts(4),
  separateHosts(7),
  grid(2, 2),
  grid(4, 2),
  { hosts: [[0, 1], [2]] },
];

describe('selectAlgorithm with rates', () => {
  it.each(models)('is within a twentieth of the best by the model: %s', (_, model) => {
    for (const topology of worlds) {
      for (const collective of collectives.filter((each) => each !== 'barrier')) {
        for (const bytes of [64, 8192, 2 ** 17, 2 ** 22]) {
          const input = { collective, bytes, topology, order: 'canonical', model, limits: networkLimits(topology, model) } as const;
          const able = algorithms.map(({ name }) => name).filter((name) => canServe(name, evenRequest(input), 'canonical'));
          const best = Math.min(...able.map((name) => predictSeconds(input, name)));
          const chosen = selectAlgorithm({ ...input, loadStore: false });
          expect(predictSeconds(input, chosen) * 0.949, `${chosen}: ${collective}, ${bytes} bytes`).toBeLessThanOrEqual(best);
        }
      }
    }
  });

  it.each([
    ['1 Gbit/s, 4 hosts', separateHosts(4), { networkByte: 8e-9 }, { pieceBytes: 112 * 1024, window: 4 }],
    ['1 Gbit/s, 8 hosts', separateHosts(8), { networkByte: 8e-9 }, { pieceBytes: 64 * 1024, window: 3 }],
    ['1 Gbit/s, 4 hosts of 2', grid(4, 2), { networkByte: 8e-9 }, { pieceBytes: 64 * 1024, window: 3 }],
    ['1 Gbit/s, 10 ms away', separateHosts(4), { networkByte: 8e-9, networkLatency: 10e-3 }, { pieceBytes: 512 * 1024, window: 4 }],
    ['25 ms away', separateHosts(2), { networkByte: 80e-9, networkLatency: 25e-3 }, { pieceBytes: 512 * 1024, window: 23 }],
    ['100 Mbit/s', separateHosts(8), { networkByte: 80e-9 }, { pieceBytes: 64 * 1024, window: 2 }],
    ['10 Gbit/s', separateHosts(4), {}, { pieceBytes: 512 * 1024, window: 4 }],
    ['a wire that costs nothing', separateHosts(2), { networkByte: 0 }, { pieceBytes: 512 * 1024, window: 4 }],
    ['one host', oneHost(3), {}, { pieceBytes: 512 * 1024, window: 4 }],
  ])('bounds what is under way by the rate of links: %s', (_, topology, rates, limits) => {
    expect(networkLimits(topology, { ...defaultCostModel, ...rates })).toEqual(limits);
  });

  const input: SelectionInput = {
    collective: 'all-reduce',
    bytes: 2 ** 20,
    topology: separateHosts(8),
    loadStore: false,
    order: 'canonical',
  };

  it('follows the rates that the table cannot know', () => {
    const choose = (model: CostModel): string => selectAlgorithm({ ...input, bytes: 65_536, model });
    expect(choose({ ...defaultCostModel, networkOverhead: 500e-6 })).toBe('halving-doubling');
    expect(choose({ ...defaultCostModel, networkOverhead: 1e-6 })).not.toBe('halving-doubling');
  });

  it('gives the same answer with and without earlier predictions, and remembers one per power of two', () => {
    const predictions = new Map<string, string>();
    for (const bytes of [3e5, 2.9e5, 2 ** 18, 1e6]) {
      const remembered = selectAlgorithm({ ...input, bytes, model: slowStart, predictions });
      expect(remembered).toBe(selectAlgorithm({ ...input, bytes, model: slowStart }));
    }
    expect(predictions.size).toBe(2);
    // A call that one algorithm cannot take says nothing about others of about its size.
    const nine = { ...input, topology: separateHosts(9), model: defaultCostModel };
    for (const bytes of [8192, 8196, 8192])
      expect(selectAlgorithm({ ...nine, bytes, predictions })).toBe(selectAlgorithm({ ...nine, bytes }));
  });

  it('leaves one host, and worlds of very many ranks, to the table', () => {
    const model = slowStart;
    for (const topology of [oneHost(4), separateHosts(1), separateHosts(200)]) {
      for (const bytes of [64, 2 ** 20]) {
        const change = { ...input, topology, bytes, loadStore: true };
        expect(selectAlgorithm({ ...change, model })).toBe(selectAlgorithm(change));
      }
    }
  });

  it('never takes another order than asked for', () => {
    for (const [, model] of models) {
      expect(selectAlgorithm({ ...input, bytes: 2 ** 25, model })).not.toBe('ring');
      expect(selectAlgorithm({ ...input, bytes: 2 ** 25, order: 'relaxed', model: { ...model, networkOverhead: 0 } })).toMatch(
        /^(ring|direct)$/,
      );
    }
  });

  it('rules of the user come before measurements, and those before the rates', () => {
    const tuned = parseSelection('all-reduce:0-1m=tree,1m-inf=ring');
    const choose = (change: Partial<SelectionInput>): string =>
      selectAlgorithm({ ...input, tuned, model: slowStart, order: 'relaxed', ...change });
    expect(choose({})).toBe('ring');
    expect(choose({ bytes: 100 })).toBe('tree');
    expect(choose({ bytes: 100, overrides: parseSelection('all-reduce:direct') })).toBe('direct');
  });

  it('measurements are left aside where they cannot serve: hosts of other sizes, another order', () => {
    const choose = (change: Partial<SelectionInput>): string => selectAlgorithm({ ...input, ...change });
    const uneven = { topology: { hosts: [[0, 1], [2]] } };
    expect(choose({ ...uneven, tuned: parseSelection('all-reduce:fairring') })).toBe(choose(uneven));
    expect(choose({ tuned: parseSelection('all-reduce:ring') })).toBe(choose({}));
    expect(choose({ tuned: parseSelection('all-reduce:host-direct') })).toBe(choose({}));
  });
});
