import { expect, it, vi } from 'vitest';
import { PlanBuilder } from '../plan/builder.ts';
import { costOf, defaultCostModel } from '../plan/cost.ts';
import type { PlanRequest } from '../plan/ir.ts';
import { grid, hostsOf, separateHosts, type Topology } from '../plan/topology.ts';
import { verify } from '../plan/verify.ts';
import { buildPlan } from './build.ts';
import { buildTile, tiledRequest } from './tiles.ts';

const worlds: readonly Topology[] = [grid(1, 6), separateHosts(7), grid(4, 3), grid(2, 5)];
const collectives = ['all-reduce', 'reduce-scatter', 'all-gather'] as const;

function requestOf(collective: PlanRequest['collective'], topology: Topology, shares = 3): PlanRequest {
  const n = topology.hosts.flat().length;
  return { collective, topology, count: n * 16 * shares, elementBytes: 4, pieceCount: 16 };
}

it.each(collectives.flatMap((collective) => worlds.map((topology) => [collective, topology] as const)))(
  'the tile of a ring costs what the whole plan costs: %s on %o',
  (collective, topology) => {
    const tiled = tiledRequest('ring', requestOf(collective, topology));
    if (tiled === undefined) throw new Error('a ring on equal hosts has a tile');
    const [tile, whole] = [buildTile('ring', tiled), buildPlan('ring', tiled.request)];
    expect(tile.programs).toEqual(whole.programs.slice(0, tile.tile));
    const [one, all] = [costOf(tile, 4, defaultCostModel), costOf(whole, 4, defaultCostModel)];
    expect(one.seconds).toBeCloseTo(all.seconds, 12);
    expect(one.networkBytes).toBe(all.networkBytes);
    expect(one.networkHops).toBe(all.networkHops);
    const untimed = (cost: typeof all): unknown => cost.ranks.map((rank) => ({ ...rank, seconds: 0 }));
    expect(untimed(one)).toEqual((untimed(all) as unknown[]).slice(0, tile.tile));
    expect(verify(tile).problems).toEqual([expect.stringMatching(/only the first \d+ programs were built/)]);
  },
);

it('a rank builds its own program of a ring by as many verbs as it has steps', () => {
  const request = requestOf('all-reduce', separateHosts(3000), 1);
  const send = vi.spyOn(PlanBuilder.prototype, 'send');
  const { programs } = buildPlan('ring', request, { onlyRank: 1234 });
  expect(programs[1234].channels[0].filter(({ kind }) => kind === 'put')).toHaveLength(2 * 2999);
  // Its own, and those that it waits for; the first ones of all ranks number the signals.
  expect(send.mock.calls.length).toBeLessThan(5 * 3000);
});

it('shares become equal, of whole lines', () => {
  const tiled = tiledRequest('ring', { collective: 'all-reduce', topology: grid(3, 2), count: 1001 });
  expect(tiled).toMatchObject({ request: { count: 6 * 16 * 11 }, tile: 2 });
});

it('hosts that differ, shares that differ and other algorithms have no tile', () => {
  const request = requestOf('all-reduce', grid(3, 2));
  expect(tiledRequest('fairring', request)).toBeUndefined();
  expect(tiledRequest('ring', { ...request, topology: hostsOf([2, 2, 1]) })).toBeUndefined();
  expect(
    tiledRequest('ring', {
      ...request,
      topology: {
        hosts: [
          [0, 2],
          [1, 3],
        ],
      },
    }),
  ).toBeUndefined();
  expect(tiledRequest('ring', { collective: 'all-gather', topology: grid(1, 2), count: 5, counts: [2, 3] })).toBeUndefined();
});

it('a plan is given up when there is no room for it', () => {
  const request = requestOf('all-reduce', separateHosts(64));
  const room = vi.fn(() => room.mock.calls.length < 3);
  expect(() => buildPlan('direct', request, { hasRoom: room })).toThrow(
    /this all-reduce of 64 ranks has no room in memory; ask for fewer ranks/,
  );
});
