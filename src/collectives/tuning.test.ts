import { describe, expect, it } from 'vitest';
import { defaultCostModel } from '../plan/cost.ts';
import { grid, oneHost, separateHosts } from '../plan/topology.ts';
import { selectAlgorithm } from './select.ts';
import { tunedRules, tunedWorldOf, withTunedWorld } from './tuning.ts';
import { parseTuning, type TunedWorld, type Tuning } from './tuning-format.ts';

const world: TunedWorld = {
  hosts: [1, 1, 1, 1],
  loadStore: false,
  order: 'canonical',
  rates: defaultCostModel,
  choices: [
    {
      collective: 'all-reduce',
      ranges: [
        { from: 0, to: 4096, algorithm: 'tree' },
        { from: 4096, to: null, algorithm: 'halving-doubling' },
      ],
      measured: [{ bytes: 1024, timesUs: { tree: 80, direct: 100.5 } }],
    },
  ],
};
const tuning: Tuning = withTunedWorld(undefined, world, '1.2.3');
const shape = { topology: separateHosts(4), loadStore: false, order: 'canonical' } as const;

describe('a tuning file', () => {
  it('comes back as it was written', () => {
    expect(parseTuning(JSON.stringify(tuning), 'x')).toEqual(tuning);
  });

  it('rules the world it was measured on, and no other', () => {
    const rules = tunedRules(tuning, shape);
    const choose = (bytes: number): string =>
      selectAlgorithm({ ...shape, collective: 'all-reduce', bytes, tuned: rules, model: defaultCostModel });
    expect([4095, 4096, 2 ** 33].map(choose)).toEqual(['tree', 'halving-doubling', 'halving-doubling']);
    expect(tunedRules(tuning, { ...shape, topology: grid(2, 2) })).toEqual([]);
    expect(tunedRules(tuning, { ...shape, order: 'relaxed' })).toEqual([]);
    expect(tunedRules(undefined, shape)).toEqual([]);
  });

  it('tells one host with common memory from one without; several hosts are alike', () => {
    const alone = withTunedWorld(undefined, { ...world, hosts: [4], loadStore: true }, '1');
    expect(tunedWorldOf(alone, { ...shape, topology: oneHost(4) })).toBeUndefined();
    expect(tunedWorldOf(alone, { ...shape, topology: oneHost(4), loadStore: true })?.hosts).toEqual([4]);
    expect(tunedWorldOf(tuning, { ...shape, loadStore: true })?.rates).toEqual(defaultCostModel);
  });

  it('grows by worlds; a collective that is measured again replaces its earlier measurements', () => {
    const other = withTunedWorld(tuning, { ...world, hosts: [2, 2] }, '2');
    expect(other.worlds.map(({ hosts }) => hosts)).toEqual([
      [1, 1, 1, 1],
      [2, 2],
    ]);
    const broadcast = { collective: 'broadcast', ranges: [{ from: 0, to: null, algorithm: 'tree' }], measured: [] } as const;
    const again = withTunedWorld(other, { ...world, choices: [{ ...broadcast, ranges: [...broadcast.ranges], measured: [] }] }, '3');
    expect(again.worlds).toHaveLength(2);
    const merged = tunedWorldOf(again, shape);
    expect(merged?.choices.map(({ collective }) => collective)).toEqual(['all-reduce', 'broadcast']);
    const replaced = withTunedWorld(again, { ...world, choices: [{ ...world.choices[0], measured: [] }] }, '4');
    expect(tunedWorldOf(replaced, shape)?.choices.map(({ measured }) => measured.length)).toEqual([0, 0]);
  });

  const broken: [string, unknown, RegExp][] = [
    ['another schema', { ...tuning, schema: 'shoal-bench' }, /schema must be/],
    ['another version', { ...tuning, version: 2 }, /version must be/],
    ['an unknown field', { ...tuning, more: 1 }, /more/],
    [
      'a negative rate',
      { ...tuning, worlds: [{ ...world, rates: { ...defaultCostModel, networkByte: -1 } }] },
      /worlds\[0\]\.rates\.networkByte/,
    ],
    ['a missing rate', { ...tuning, worlds: [{ ...world, rates: { networkByte: 1 } }] }, /worlds\[0\]\.rates\.networkLatency/],
    ['a world of no host', { ...tuning, worlds: [{ ...world, hosts: [] }] }, /worlds\[0\]\.hosts/],
    [
      'ranges that overlap',
      withRanges([
        { from: 0, to: 100, algorithm: 'tree' },
        { from: 99, to: null, algorithm: 'tree' },
      ]),
      /ranges of all-reduce must ascend and not overlap/,
    ],
    ['a range of nothing', withRanges([{ from: 8, to: 8, algorithm: 'tree' }]), /must ascend/],
    [
      'an unknown algorithm',
      withRanges([{ from: 0, to: null, algorithm: 'trees' }]),
      /unknown algorithm 'trees' of all-reduce; known are .*fairring/,
    ],
  ];
  it.each(broken)('is refused with %s', (_, value, message) => {
    const parse = (): Tuning => parseTuning(JSON.stringify(value), '/some/file');
    expect(parse).toThrow(message);
    expect(parse).toThrow(/^tuning file \/some\/file: .*shoal tune$/);
    expect(parse).toThrow(expect.objectContaining({ code: 'config' }));
  });

  it('is refused when it is not JSON', () => {
    expect(() => parseTuning('{', 'x')).toThrow(/tuning file x: it is not JSON/);
  });
});

function withRanges(ranges: TunedWorld['choices'][number]['ranges']): Tuning {
  return { ...tuning, worlds: [{ ...world, choices: [{ ...world.choices[0], ranges }] }] };
}
