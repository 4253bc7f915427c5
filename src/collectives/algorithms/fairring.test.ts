import { describe, expect, it, vi } from 'vitest';
import { seededRandom } from '../../base/random.ts';
import { costOf } from '../../plan/cost.ts';
import { interpret } from '../../plan/testing/interpret.ts';
import type { Plan, PlanRequest } from '../../plan/ir.ts';
import { PlanBuilder } from '../../plan/builder.ts';
import { grid, oneHost, separateHosts, type Topology } from '../../plan/topology.ts';
import { assertVerified } from '../../plan/testing/assert-verified.ts';
import { verify } from '../../plan/verify.ts';
import { buildPlan } from '../build.ts';
import { fairring } from './fairring.ts';
import { fairringLayout } from './fairring-layout.ts';

const request = (topology: Topology, count: number, limits: Partial<PlanRequest> = {}): PlanRequest => ({
  collective: 'all-reduce',
  topology,
  count,
  ...limits,
});

describe('fairring', () => {
  const grids: [hosts: number, ranks: number][] = [
    [1, 1],
    [1, 5],
    [2, 1],
    [5, 1],
    [2, 2],
    [3, 2],
    [2, 3],
    [4, 4],
    [3, 5],
    [8, 2],
    [9, 1],
  ];
  it.each(grids)('is proved on %i hosts × %i ranks, whatever the slices, shards and staging', (hosts, ranks) => {
    const topology = grid(hosts, ranks);
    for (const count of [1, 999]) {
      for (const sliceCount of [200, 100_000]) {
        for (const stagingCount of [1, 700]) {
          for (const shardCount of [1, 100])
            assertVerified(buildPlan('fairring', request(topology, count, { sliceCount, stagingCount, shardCount })));
        }
        assertVerified(buildPlan('fairring', request(topology, count, { sliceCount, shardCount: 1, pieceCount: 20, window: 3 })));
      }
      assertVerified(buildPlan('fairring', request(topology, count, { shardCount: 1, pieceCount: 20, window: 3 })));
    }
  });

  it('is proved where ranks are not consecutive on their hosts', () => {
    const topology = {
      hosts: [
        [0, 3, 4],
        [1, 5, 7],
        [2, 6, 8],
      ],
    };
    for (const stagingCount of [100, 10_000])
      assertVerified(buildPlan('fairring', request(topology, 5000, { sliceCount: 600, stagingCount, shardCount: 16 })));
  });

  it('comes out right in random orders while the staging is used again and again', () => {
    const random = seededRandom(3);
    for (const topology of [grid(2, 2), grid(3, 1), grid(3, 2)]) {
      for (const stagingCount of [32, 128]) {
        const plan = buildPlan('fairring', request(topology, 600, { sliceCount: 96, stagingCount, shardCount: 1 }));
        for (let run = 0; run < 5; run++) expect(interpret(plan, random).problems).toEqual([]);
      }
    }
  });

  it.each([
    [2, 1],
    [4, 1],
    [2, 4],
    [4, 2],
    [8, 8],
  ])('sends 2(M−1)/M·S/D bytes per rank in two hops: %i hosts × %i', (hosts, ranks) => {
    const count = hosts * ranks * 64 * 20;
    for (const limits of [{}, { sliceCount: count / 20 }, { sliceCount: count / 5, stagingCount: 1 }]) {
      const cost = costOf(buildPlan('fairring', request(grid(hosts, ranks), count, { shardCount: 16, ...limits })), 4);
      const each = (2 * (hosts - 1) * count * 4) / hosts / ranks;
      for (const { networkBytesOut, networkBytesIn } of cost.ranks) expect([networkBytesOut, networkBytesIn]).toEqual([each, each]);
      // A slice that reuses a staging place starts after the second hop of the slice before in it.
      const { slices, inFlight } = fairringLayout(request(grid(hosts, ranks), count, { shardCount: 16, ...limits }));
      expect(cost.networkHops).toBe(2 * Math.ceil(slices.length / inFlight));
    }
  });

  it('keeps to the rails: a rank sends only to the ranks of its own index', () => {
    const plan = buildPlan('fairring', request(grid(4, 3), 10_000, { sliceCount: 1000 }));
    for (const { rank, channels } of plan.programs) {
      const peers = channels.flat().flatMap((step) => (step.kind === 'put' ? [step.peer] : []));
      expect(peers.length).toBeGreaterThan(0);
      expect(new Set(peers.map((peer) => peer % 3))).toEqual(new Set([rank % 3]));
    }
  });

  it('begins with the next host, so that no owner receives from all at once', () => {
    const plan = buildPlan('fairring', request(separateHosts(5), 100_000));
    const first = plan.programs.map(({ channels }) => channels[0].flatMap((step) => (step.kind === 'put' ? [step.peer] : []))[0]);
    expect(first).toEqual([1, 2, 3, 4, 0]);
  });

  it('stays within its staging, and always has room for one slice', () => {
    for (const topology of [grid(2, 1), grid(4, 2), grid(16, 4), grid(3, 3), grid(1000, 1), grid(250, 8)]) {
      for (const stagingCount of [1, 5000, 100_000, 10_000_000]) {
        for (const sliceCount of [1000, 100_000, 10_000_000]) {
          const layout = fairringLayout(request(topology, 500_000, { stagingCount, sliceCount, shardCount: 64 }));
          const least = (topology.hosts.length - 1) * 16;
          expect(layout.scratchCount).toBeLessThanOrEqual(Math.max(stagingCount, least));
          expect(layout.inFlight).toBeGreaterThanOrEqual(1);
          for (const { count } of layout.slices) expect(count).toBeLessThanOrEqual(sliceCount);
          expect(layout.slices.reduce((sum, { count }) => sum + count, 0)).toBe(500_000);
        }
      }
    }
  });

  it('has as many slices of the requested size in flight as the staging holds, else as pieces and window allow', () => {
    const paced = { shardCount: 16, pieceCount: 64, window: 2 };
    const count = 64 * 3000;
    const automatic = fairringLayout(request(separateHosts(3), count, paced));
    expect([automatic.shardMost, automatic.inFlight]).toEqual([64, 2]);
    const sliceCount = 3000;
    for (const inFlight of [1, 2, 5, 17, 64]) {
      const stagingCount = inFlight * 2 * 1008;
      for (const spare of [0, 2 * 1008 - 1]) {
        const layout = fairringLayout(request(separateHosts(3), count, { ...paced, sliceCount, stagingCount: stagingCount + spare }));
        expect([layout.slices.length, layout.inFlight, layout.scratchCount]).toEqual([64, inFlight, stagingCount]);
      }
    }
  });

  it('has a layout that the plan uses', () => {
    const one = request(grid(3, 2), 5000, { sliceCount: 500, stagingCount: 400, shardCount: 16 });
    const { scratchCount, inFlight, slices } = fairringLayout(one);
    expect([inFlight, slices.length]).toEqual([2, 10]);
    expect(buildPlan('fairring', one).programs.map((program) => program.scratchCount)).toEqual(
      Array.from({ length: 6 }, () => scratchCount),
    );
  });

  it('does not cut shards below the floor: fewer own, unless half of it lets all own', () => {
    const owners = (count: number): number => fairringLayout(request(grid(8, 8), count, { elementBytes: 4 })).owners;
    // 16 KiB are 4096 elements of 4 bytes.
    expect([1, 8 * 4096, 2 * 8 * 4096, 3 * 8 * 4096, 4 * 8 * 4096, 10 ** 8].map(owners)).toEqual([1, 1, 2, 3, 8, 8]);
    const plan = buildPlan('fairring', request(grid(8, 2), 3 * 2 * 2048));
    const puts = plan.programs.flatMap(({ channels }) => channels[0]).flatMap((step) => (step.kind === 'put' ? [step.source.count] : []));
    expect(Math.min(...puts)).toBeGreaterThanOrEqual(2048);
  });

  /** Removes the wait that keeps a place in the staging from being filled before it is free. */
  it('without the wait for the result before, the reuse of staging is a race', () => {
    const plan = buildPlan('fairring', request(separateHosts(3), 960, { sliceCount: 96, stagingCount: 64, shardCount: 1 }));
    let tried = 0;
    plan.programs.forEach((program, rank) => {
      program.channels[0].forEach((step, index) => {
        if (step.kind !== 'wait') return;
        tried += 1;
        const channels = program.channels.with(0, program.channels[0].toSpliced(index, 1));
        const mutant: Plan = { ...plan, programs: plan.programs.with(rank, { ...program, channels }) };
        expect(verify(mutant).problems.join('\n')).toMatch(/race: .*scratch/);
      });
    });
    expect(tried).toBeGreaterThan(20);
  });

  it('spreads owners over hosts, rail by rail, where there are fewer than hosts', () => {
    const plan = buildPlan('fairring', request(grid(8, 4), 2 * 4 * 4096, { elementBytes: 4 }));
    const owners = plan.programs.filter(({ scratchCount }) => scratchCount > 0).map(({ rank }) => Math.floor(rank / 4));
    expect(owners.sort((a, b) => a - b)).toEqual([0, 1, 2, 3, 4, 5, 6, 7]);
  });

  it('refuses hosts of different sizes by name', () => {
    const uneven = request({ hosts: [[0, 1, 2], [3], [4, 5]] }, 100);
    expect(() => buildPlan('fairring', uneven)).toThrow(
      'fairring cannot all-reduce: it needs equally many ranks on every host and host 0 has 3, host 1 has 1, host 2 has 2; use halving-doubling',
    );
    expect(fairring.supports?.(request(oneHost(3), 100))).toBeUndefined();
  });
});

describe('fairring on many hosts', () => {
  /** Settings that give two levels, and small shards. */
  const small = { shardCount: 32, groupHosts: 4 };

  it.each([
    [9, 2],
    [10, 1],
    [12, 2],
    [13, 1],
    [16, 2],
    [17, 1],
    [20, 1],
  ])('is proved on %i hosts × %i ranks in groups, whatever the slices, parts and staging', (hosts, ranks) => {
    const topology = grid(hosts, ranks);
    for (const limits of [
      {},
      { count: 1 },
      { sliceCount: 300, stagingCount: 400 },
      { sliceCount: 400, stagingCount: 2000, pieceCount: 20 },
      { stagingCount: 2000, pieceCount: 20, window: 2 },
    ]) {
      const one = request(topology, 997, { ...small, ...limits });
      expect(fairringLayout(one).groups.length).toBeGreaterThan(1);
      assertVerified(buildPlan('fairring', one));
    }
  });

  /** Layouts of large worlds: the whole plan is proved for up to 512 ranks, and every rank builds alone the program that was proved. */
  it.each([
    [16, 4, {}],
    [64, 2, {}],
    [32, 8, {}],
    [32, 4, { groupHosts: 32 }],
    [64, 8, {}],
  ])('is proved on %i hosts × %i ranks, with %o', (hosts, ranks, limits) => {
    const one = request(grid(hosts, ranks), hosts * ranks * 32, { shardCount: 32, ...limits });
    assertVerified(buildPlan('fairring', one));
    expect(fairringLayout(one).groups.length > 1).toBe(!('groupHosts' in limits));
  });

  it('comes out right in random orders while the staging is used again and again', () => {
    const random = seededRandom(4);
    for (const topology of [grid(9, 1), grid(10, 2)]) {
      const one = request(topology, 3000, { ...small, sliceCount: 320, stagingCount: 400 });
      const { inFlight, slices } = fairringLayout(one);
      expect(inFlight).toBeLessThan(slices.length);
      const plan = buildPlan('fairring', one);
      for (let run = 0; run < 3; run++) expect(interpret(plan, random).problems).toEqual([]);
    }
  });

  it.each([
    [16, 2],
    [16, 1],
    [64, 2],
  ])('sends as many bytes as on one level, in four hops: %i hosts × %i', (hosts, ranks) => {
    const count = hosts * ranks * 64;
    const one = request(grid(hosts, ranks), count, { ...small, shardCount: 64 });
    const cost = costOf(buildPlan('fairring', one), 4);
    const each = (2 * (hosts - 1) * count * 4) / hosts / ranks;
    for (const { networkBytesOut, networkBytesIn } of cost.ranks) expect([networkBytesOut, networkBytesIn]).toEqual([each, each]);
    expect(cost.networkHops).toBe(4);
  });

  it('has groups of the requested number of hosts, a power of two', () => {
    const sizes = (groupHosts: number): number[] =>
      fairringLayout(request(separateHosts(10), 1000, { groupHosts })).groups.map(({ length }) => length);
    expect([2, 4, 8, 16].map(sizes)).toEqual([[2, 2, 2, 2, 2], [4, 4, 2], [8, 2], [10]]);
    for (const groupHosts of [2, 4, 8]) {
      for (const topology of [separateHosts(6), grid(5, 2)]) {
        assertVerified(buildPlan('fairring', request(topology, 997, { ...small, groupHosts })));
      }
    }
    expect(() => buildPlan('fairring', request(separateHosts(10), 1000, { groupHosts: 3 }))).toThrow(
      'groupHosts must be a power of two, or all 10 hosts, not 3',
    );
  });

  it('a rank builds its own program alone as it is in the whole plan', () => {
    for (const topology of [grid(9, 2), grid(13, 1), grid(10, 3), grid(4, 2)]) {
      for (const limits of [
        {},
        { sliceCount: 300, stagingCount: 400 },
        { sliceCount: 400, stagingCount: 2000, pieceCount: 20 },
        { count: 1 },
      ]) {
        const one = request(topology, 997, { ...small, ...limits });
        const whole = buildPlan('fairring', one);
        for (const { rank } of whole.programs) {
          const own = buildPlan('fairring', one, { onlyRank: rank });
          expect(own.programs[rank]).toEqual(whole.programs[rank]);
          expect(own.partials).toBe(whole.partials);
        }
      }
    }
  });

  it.each(['fairring', 'halving-doubling', 'tree'])('%s: a rank of 4,096 builds little more than its own messages', (algorithm) => {
    const send = vi.spyOn(PlanBuilder.prototype, 'send');
    const one = request(grid(512, 8), 6_553_600, { elementBytes: 4, pieceCount: 16_384, window: 2 });
    const { channels, entry } = buildPlan(algorithm, one, { onlyRank: 1234 }).programs[1234];
    const own = channels.flat().length + entry.length;
    // At most the first message from one rank to another is built of the other ranks' programs.
    expect(send.mock.calls.length).toBeLessThan(algorithm === 'fairring' ? 3 * own : 4096 * 2 * 12 + 3 * own);
    vi.restoreAllMocks();
  });

  it('a rank talks to about 2√M others, however many hosts there are', () => {
    for (const [hosts, most] of [
      [64, 14],
      [100, 19],
      [512, 46],
    ]) {
      const plan = buildPlan('fairring', request(grid(hosts, 2), hosts * 2 * 4096, { elementBytes: 4 }), { onlyRank: 5 });
      const peers = plan.programs[5].channels.flat().flatMap((step) => (step.kind === 'put' && step.peer > 5 + 1 ? [step.peer] : []));
      expect(new Set(peers).size).toBeLessThanOrEqual(most);
    }
  });

  it('is one group while hosts are few or shards are large, and never beyond 64 hosts', () => {
    const groups = (hosts: number, count: number): number =>
      fairringLayout(request(grid(hosts, 4), count, { elementBytes: 4 })).groups.length;
    const large = 10 ** 8;
    expect([8, 9, 32, 64].map((hosts) => groups(hosts, 1000))).toEqual([1, 3, 4, 8]);
    expect([8, 9, 32, 64, 65, 1000].map((hosts) => groups(hosts, large))).toEqual([1, 1, 1, 1, 9, 32]);
  });

  it('stays within its staging', () => {
    for (const topology of [grid(9, 1), grid(17, 4), grid(100, 2), grid(512, 8), grid(1000, 1)]) {
      for (const stagingCount of [1, 5000, 100_000, 10_000_000]) {
        const { scratchCount } = fairringLayout(request(topology, 500_000, { stagingCount, shardCount: 32 }));
        expect(scratchCount).toBeLessThanOrEqual(Math.max(stagingCount, (topology.hosts.length - 1) * 16));
      }
    }
    const one = request(grid(17, 2), 50_000, { stagingCount: 5000, ...small });
    const { scratchCount: most } = fairringLayout(one);
    for (const { scratchCount } of buildPlan('fairring', one).programs) expect(scratchCount).toBeLessThanOrEqual(most);
  });

  it('without the waits that guard the staging its reuse is a race', () => {
    const plan = buildPlan('fairring', request(separateHosts(9), 1200, { ...small, sliceCount: 400, stagingCount: 300 }));
    for (const { rank, channels } of plan.programs.slice(0, 3)) {
      const hasty = channels[0].filter(({ kind }) => kind !== 'wait');
      expect(hasty.length).toBeLessThan(channels[0].length);
      const program = { ...plan.programs[rank], channels: channels.with(0, hasty) };
      expect(verify({ ...plan, programs: plan.programs.with(rank, program) }).problems.join('\n')).toMatch(/race: .*scratch/);
    }
  });
});
