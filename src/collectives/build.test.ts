import { describe, expect, it } from 'vitest';
import { collectives, type PlanRequest } from '../plan/ir.ts';
import { oneHost, separateHosts } from '../plan/topology.ts';
import { buildPlan, completeRequest } from './build.ts';
import { algorithms } from './registry.ts';

const two = oneHost(2);

describe('completeRequest', () => {
  it('fills in even counts, splits and root', () => {
    expect(completeRequest({ collective: 'gather', topology: two, count: 6 })).toMatchObject({ counts: [3, 3], root: 0 });
    expect(completeRequest({ collective: 'all-to-all', topology: two, count: 8 }).splits).toEqual([
      [2, 2],
      [2, 2],
    ]);
    expect(completeRequest({ collective: 'all-reduce', topology: two, count: 7 })).toEqual({
      collective: 'all-reduce',
      topology: two,
      count: 7,
    });
  });

  const bad: [string, Partial<PlanRequest>, RegExp][] = [
    ['an unknown collective', { collective: 'all-reduced' as PlanRequest['collective'] }, /unknown collective; use one of all-reduce, /],
    ['no ranks', { topology: { hosts: [] } }, /needs a rank/],
    ['an empty host', { topology: { hosts: [[0, 1], []] } }, /needs a rank/],
    ['a rank twice', { topology: { hosts: [[0, 1], [1]] } }, /each rank 0…2 once, not 0 1 1/],
    ['a count that is none', { count: 1.5 }, /whole number of elements, not 1.5/],
    ['a negative count', { count: -1 }, /not -1/],
    ['elements of nothing', { elementBytes: 0 }, /elementBytes must be at least 1, not 0/],
    ['pieces of nothing', { pieceCount: 0 }, /pieceCount must be at least 1/],
    ['a root out of range', { collective: 'broadcast', root: 2 }, /root 2 is not one of the ranks 0…1/],
    ['a root where there is none', { root: 0 }, /it has no root/],
    ['counts that do not sum', { collective: 'all-gather', count: 5, counts: [1, 3] }, /counts \[1, 3\] sum to 4, not to count 5/],
    ['too few counts', { collective: 'all-gather', count: 5, counts: [5] }, /1 counts were given for 2 ranks/],
    ['negative counts', { collective: 'scatter', count: 5, counts: [6, -1] }, /not -1/],
    ['an uneven count without counts', { collective: 'reduce-scatter', count: 5 }, /does not divide evenly among 2 ranks; give counts/],
    ['counts where there are none', { counts: [4, 4] }, /it takes no counts/],
    ['splits that are not square', { collective: 'all-to-all', splits: [[4, 4]] }, /one row for each of 2 ranks, not 1/],
    ['a short row', { collective: 'all-to-all', splits: [[4], [4, 0]] }, /1 counts were given for 2 ranks/],
    [
      'splits that do not sum',
      {
        collective: 'all-to-all',
        splits: [
          [1, 1],
          [1, 1],
        ],
      },
      /splits sum to 4, not to count 8/,
    ],
    ['an uneven total without splits', { collective: 'all-to-all', count: 6 }, /give splits/],
    ['splits where there are none', { splits: [[4, 4]] }, /it takes no splits/],
    ['a barrier that moves something', { collective: 'barrier' }, /count must be 0/],
  ];
  it.each(bad)('refuses %s', (_, change, message) => {
    const request: PlanRequest = { collective: 'all-reduce', topology: two, count: 8, ...change };
    expect(() => completeRequest(request)).toThrow(message);
    expect(() => completeRequest(request)).toThrow(expect.objectContaining({ code: 'usage' }));
  });
});

describe('buildPlan', () => {
  it('lists the algorithms when a name is unknown', () => {
    expect(() => buildPlan('rings', { collective: 'barrier', topology: two, count: 0 })).toThrow(
      "unknown algorithm 'rings'; use one of mailbox, host-direct, host-staged, one-shot, tree, halving-doubling, direct, fairring, ring",
    );
  });

  it('names the algorithms that can', () => {
    expect(() => buildPlan('ring', { collective: 'barrier', topology: two, count: 0 })).toThrow(
      'ring cannot barrier: it has no such collective; use one of mailbox, host-direct, one-shot, tree, direct',
    );
    expect(() => buildPlan('host-direct', { collective: 'barrier', topology: separateHosts(2), count: 0 })).toThrow(
      'host-direct cannot barrier: it needs all ranks on one host and there are 2 hosts; use direct',
    );
  });

  it('has no steps for no elements, and copies for one rank', () => {
    const steps = (request: PlanRequest): number => buildPlan('direct', request).programs.flatMap(({ channels }) => channels.flat()).length;
    expect(steps({ collective: 'all-reduce', topology: two, count: 0 })).toBe(0);
    expect(steps({ collective: 'all-reduce', topology: oneHost(1), count: 9 })).toBe(0);
    expect(steps({ collective: 'all-gather', topology: oneHost(1), count: 9 })).toBe(1);
    expect(steps({ collective: 'barrier', topology: oneHost(1), count: 0 })).toBe(0);
  });

  it('gives one rank the program it has in the whole plan', () => {
    const served = algorithms.flatMap((algorithm) =>
      [
        {
          hosts: [
            [0, 2, 3],
            [1, 4],
          ],
        },
        oneHost(5),
      ].flatMap((topology) =>
        collectives
          .filter((collective) => algorithm.build[collective])
          // Most ranks have no part in a sum of 5 elements.
          .flatMap((collective) => {
            const counts = { barrier: [0], 'all-to-all': [250, 25] }[collective as string] ?? [250, 5];
            return counts.map((count): PlanRequest => ({ collective, topology, count, pieceCount: 16 }));
          })
          .filter((request) => algorithm.supports?.(request) === undefined)
          .map((request) => ({ algorithm: algorithm.name, request })),
      ),
    );
    expect(served.length).toBeGreaterThan(50);
    for (const { algorithm, request } of served) {
      const whole = buildPlan(algorithm, request);
      for (const { rank } of whole.programs) {
        const own = buildPlan(algorithm, request, { onlyRank: rank });
        const what = `${algorithm} ${request.collective}, rank ${rank} of ${JSON.stringify(request.topology)}, ${request.count} elements`;
        expect(own.programs[rank], what).toEqual(whole.programs[rank]);
        expect([own.partials, own.association], what).toEqual([whole.partials, whole.association]);
      }
    }
  });

  it('gives the same plan every time', () => {
    const request: PlanRequest = { collective: 'all-reduce', topology: { hosts: [[0, 2], [1]] }, count: 100, pieceCount: 16 };
    expect(buildPlan('halving-doubling', request)).toEqual(buildPlan('halving-doubling', structuredClone(request)));
  });
});
