import { describe, expect, it } from 'vitest';
import { costOf } from '../../plan/cost.ts';
import type { Collective, PlanRequest } from '../../plan/ir.ts';
import { separateHosts } from '../../plan/topology.ts';
import { buildPlan } from '../build.ts';

const hosts = 5;
const count = hosts * hosts * 64;

function request(collective: Collective, limits: Partial<PlanRequest> = {}): PlanRequest {
  return { collective, topology: separateHosts(hosts), count, ...limits };
}

describe('direct', () => {
  it.each(['all-reduce', 'reduce-scatter', 'all-gather', 'all-to-all'] as const)(
    '%s turns from peer to peer, piece by piece: no receiver is the target of two ranks at once',
    (collective) => {
      for (const limits of [{}, { pieceCount: 16 }, { pieceCount: 16, window: 2 }]) {
        const { programs } = buildPlan('direct', request(collective, limits));
        const channels = Math.max(...programs.map((program) => program.channels.length));
        for (let channel = 0; channel < channels; channel++) {
          const targets = programs.map((program) => program.channels[channel].flatMap((step) => (step.kind === 'put' ? [step.peer] : [])));
          expect(targets[0].length % (hosts - 1)).toBe(0);
          targets[0].forEach((_, k) => expect(new Set(targets.map((peers) => peers[k])).size, `put ${k}`).toBe(hosts));
          for (let k = 0; k < targets[0].length; k += hosts - 1) {
            for (const peers of targets) expect(new Set(peers.slice(k, k + hosts - 1)).size, `puts from ${k}`).toBe(hosts - 1);
          }
        }
      }
    },
  );

  it('all-reduces in two hops, with 2(n−1)/n·S bytes per rank', () => {
    const cost = costOf(buildPlan('direct', request('all-reduce')), 4);
    const each = (2 * (hosts - 1) * count * 4) / hosts;
    expect(cost.networkHops).toBe(2);
    for (const { networkBytesOut, networkBytesIn } of cost.ranks) expect([networkBytesOut, networkBytesIn]).toEqual([each, each]);
  });
});
