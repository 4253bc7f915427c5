/** Every algorithm × collective × world × size is proved by the verifier, and run by the interpreter in random orders. */
import { describe, expect, it } from 'vitest';
import { seededRandom } from '../../base/random.ts';
import { interpret } from '../../plan/testing/interpret.ts';
import { collectives, type Collective, type Location, type PlanRequest, type Step } from '../../plan/ir.ts';
import { oneHost, grid, rankCount, separateHosts, type Topology } from '../../plan/topology.ts';
import { assertVerified } from '../../plan/testing/assert-verified.ts';
import { buildPlan } from '../build.ts';
import { algorithms } from '../registry.ts';

const ranksMax = 17;

const flat: Topology[] = Array.from({ length: ranksMax }, (_, index) => oneHost(index + 1));
const severalHosts: Topology[] = [
  ...[2, 3, 5, 8].map((n) => separateHosts(n)),
  grid(2, 2),
  grid(2, 4),
  grid(4, 2),
  grid(3, 2),
  grid(2, 3),
  // Uneven hosts, and ranks that are not consecutive on their host.
  { hosts: [[0, 1, 2], [3], [4, 5]] },
  { hosts: [[0, 3, 4], [1], [2, 5]] },
  {
    hosts: [
      [0, 2, 4, 6, 8],
      [1, 3, 5, 7],
    ],
  },
];

/** Requests of a collective that between them meet every edge: nothing, less than a share each, uneven, cut in pieces. */
function requestsOf(collective: Collective, topology: Topology): PlanRequest[] {
  const n = rankCount(topology);
  const roots = [...new Set([0, n - 1, n >> 1])];
  const sum = (counts: readonly number[]): number => counts.reduce((total, each) => total + each, 0);
  switch (collective) {
    case 'barrier':
      return [{ collective, topology, count: 0 }];
    case 'all-reduce':
    case 'broadcast':
    case 'reduce': {
      const counts = [...new Set([0, 1, n - 1, n, n + 1, 1000])];
      const sizes: Partial<PlanRequest>[] = [
        ...counts.map((count) => ({ count })),
        { count: 1000, pieceCount: 48 },
        { count: 37, pieceCount: 5 },
        { count: 48 * 3 + 1, stagingCount: 48 },
        { count: 1000, pieceCount: 16, window: 2, stagingCount: 100 * n, sliceCount: 300, shardCount: 8 },
      ];
      if (collective === 'all-reduce') return sizes.map((size) => ({ collective, topology, count: 0, ...size }));
      return roots.flatMap((root) => sizes.map((size) => ({ collective, topology, count: 0, root, ...size })));
    }
    case 'all-to-all': {
      const rows = [
        Array.from({ length: n }, (_, from) => Array.from({ length: n }, (__, to) => (from * 7 + to * 5) % 4)),
        Array.from({ length: n }, () => Array.from({ length: n }, () => 3)),
        Array.from({ length: n }, (_, from) => Array.from({ length: n }, () => (from === 0 ? 9 : 0))),
      ];
      return [
        { collective, topology, count: 0 },
        ...rows.map((splits) => ({ collective, topology, splits, count: sum(splits.flat()) })),
        { collective, topology, splits: rows[0], count: sum(rows[0].flat()), pieceCount: 2 },
        { collective, topology, splits: rows[2], count: sum(rows[2].flat()), pieceCount: 2, window: 1 },
        { collective, topology, splits: rows[0], count: sum(rows[0].flat()), pieceCount: 1, window: 1 },
      ];
    }
    default: {
      const uneven = Array.from({ length: n }, (_, rank) => (rank * 13 + 5) % 11);
      const sparse = Array.from({ length: n }, (_, rank) => (rank === n - 1 ? 50 : 0));
      const shapes: Partial<PlanRequest>[] = [
        { count: 0 },
        { count: n },
        { count: 60 * n, pieceCount: 32 },
        { counts: uneven, count: sum(uneven) },
        { counts: uneven, count: sum(uneven), pieceCount: 3 },
        { counts: uneven, count: sum(uneven), pieceCount: 2, window: 2, stagingCount: 5 * n },
        { counts: sparse, count: 50 },
      ];
      if (collective === 'gather' || collective === 'scatter') {
        return roots.flatMap((root) => shapes.map((shape) => ({ collective, topology, count: 0, root, ...shape })));
      }
      return shapes.map((shape) => ({ collective, topology, count: 0, ...shape }));
    }
  }
}

for (const algorithm of algorithms) {
  describe(algorithm.name, () => {
    const own = collectives.filter((collective) => algorithm.build[collective] !== undefined);
    it.each(own)('%s is proved', (collective) => {
      let proved = 0;
      for (const topology of [...flat, ...severalHosts]) {
        for (const request of requestsOf(collective, topology)) {
          if (algorithm.supports?.(request) !== undefined) continue;
          assertVerified(buildPlan(algorithm.name, request));
          proved += 1;
        }
      }
      expect(proved).toBeGreaterThanOrEqual(ranksMax);
    });

    it.each(own)('%s comes out right in random orders', (collective) => {
      const random = seededRandom(20_261_101);
      for (const topology of [oneHost(1), oneHost(2), oneHost(3), oneHost(5), grid(2, 2), { hosts: [[0, 3, 4], [1], [2, 5]] }]) {
        for (const request of requestsOf(collective, topology).filter(({ count }) => count < 500)) {
          if (algorithm.supports?.(request) !== undefined) continue;
          const plan = buildPlan(algorithm.name, request);
          expect(interpret(plan, random), JSON.stringify(request)).toMatchObject({ problems: [], ok: true });
        }
      }
    });
  });
}

describe('availability', () => {
  it.each(collectives)('%s is available anywhere, and by host-direct on one host', (collective) => {
    const anywhere = algorithms.filter((algorithm) => algorithm.supports === undefined && algorithm.build[collective]);
    expect(anywhere.map(({ name }) => name)).toContain('direct');
    expect(algorithms.find(({ name }) => name === 'host-direct')?.build[collective]).toBeDefined();
  });
});

describe('private memory', () => {
  it('is safe with algorithms that are declared so: they touch only the scratch and mailbox of a peer', () => {
    let accesses = 0;
    for (const algorithm of algorithms.filter(({ ownBuffersOnly }) => ownBuffersOnly)) {
      for (const collective of collectives.filter((each) => algorithm.build[each])) {
        for (const topology of [2, 3, 8].map(oneHost)) {
          for (const request of requestsOf(collective, topology)) {
            if (algorithm.supports?.(request) !== undefined) continue;
            for (const { rank, channels } of buildPlan(algorithm.name, request).programs) {
              for (const location of channels.flat().flatMap(locationsOf)) {
                if (location.rank === undefined || location.rank === rank) continue;
                accesses += 1;
                expect(['scratch', 'mailbox']).toContain(location.buffer);
              }
            }
          }
        }
      }
    }
    expect(accesses).toBeGreaterThan(1000);
  });
});

describe('in place', () => {
  it.each(['gather', 'scatter'] as const)("%s only copies the root's part to its place, so that it may be there already", (collective) => {
    let copies = 0;
    for (const algorithm of algorithms.filter(({ build }) => build[collective])) {
      for (const topology of [...flat.slice(0, 9), ...severalHosts]) {
        for (const request of requestsOf(collective, topology)) {
          if (algorithm.supports?.(request) !== undefined) continue;
          const { root = 0, count, counts } = request;
          const size = rankCount(topology);
          const of = (rank: number): number => (counts ? counts[rank] : count / size);
          const first = Array.from({ length: root }, (_, rank) => of(rank)).reduce((sum, each) => sum + each, 0);
          // The offsets of the root's part in the buffer that it is copied from, and in that to which it is copied.
          const [from, to] = collective === 'gather' ? [0, first] : [first, 0];
          for (const { rank, channels } of buildPlan(algorithm.name, request).programs) {
            for (const step of channels.flat()) {
              for (const target of targetsOf(step)) {
                const isOwnPart = target.offset < to + of(root) && to < target.offset + target.count;
                if ((target.rank ?? rank) !== root || target.buffer !== 'output' || !isOwnPart) continue;
                copies += 1;
                expect([rank, step.kind]).toEqual([root, 'copy']);
                const { source } = step as Extract<Step, { kind: 'copy' }>;
                expect(source.rank ?? rank).toBe(root);
                if (source.buffer !== 'mailbox') expect([source.buffer, source.offset - from]).toEqual(['input', target.offset - to]);
              }
            }
          }
        }
      }
    }
    expect(copies).toBeGreaterThan(500);
  });
});

describe('alike', () => {
  it('holds for the programs of all ranks of an algorithm that is declared so', () => {
    const alike = algorithms.filter((algorithm) => algorithm.alike);
    expect(alike.map(({ name }) => name)).toEqual(expect.arrayContaining(['host-direct', 'host-staged', 'mailbox']));
    for (const algorithm of alike) {
      for (const collective of collectives.filter((each) => algorithm.build[each])) {
        for (const topology of [2, 3, 8].map(oneHost)) {
          for (const request of requestsOf(collective, topology)) {
            if (algorithm.supports?.(request) !== undefined) continue;
            const { programs } = buildPlan(algorithm.name, request);
            expect(programs.map(({ channels }) => channels.length)).toEqual(programs.map(() => 1));
            expect(new Set(programs.map(({ scratchCount }) => scratchCount)).size).toBe(1);
          }
        }
      }
    }
  });
});

function locationsOf(step: Step): readonly Location[] {
  if (step.kind === 'copy') return [step.source, step.target];
  if (step.kind === 'put') return [step.source, { ...step.target, rank: step.peer }];
  return step.kind === 'reduce' ? [...step.sources, ...step.targets] : [];
}

function targetsOf(step: Step): readonly Location[] {
  if (step.kind === 'copy') return [step.target];
  if (step.kind === 'put') return [{ ...step.target, rank: step.peer }];
  return step.kind === 'reduce' ? step.targets : [];
}

describe('partials', () => {
  it('are declared exactly by plans that pass unfinished sums between ranks', () => {
    const topology = separateHosts(4);
    const partialsOf = (name: string): boolean => buildPlan(name, { collective: 'all-reduce', topology, count: 256 }).partials;
    expect(['direct', 'one-shot', 'fairring', 'tree', 'halving-doubling', 'ring'].map(partialsOf)).toEqual([
      false,
      false,
      false,
      true,
      true,
      true,
    ]);
    const two = { collective: 'all-reduce', topology: separateHosts(2), count: 256 } as const;
    expect(algorithms.filter(({ supports }) => !supports).map(({ name }) => buildPlan(name, two).partials)).not.toContain(true);
  });
});
