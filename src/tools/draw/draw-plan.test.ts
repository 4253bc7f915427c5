import { describe, expect, it } from 'vitest';
import { PlanBuilder, span } from '../../plan/builder.ts';
import { drawPlan, formatSeconds } from './draw-plan.ts';
import { grid, separateHosts } from '../../plan/topology.ts';

const data = span('data', { offset: 0, count: 4 });

function ring(n: number, topology = separateHosts(n)): ReturnType<PlanBuilder['finish']> {
  const b = new PlanBuilder({ collective: 'broadcast', topology, count: 4, root: 0 });
  for (let rank = 0; rank + 1 < n; rank++) b.transfer(rank, rank + 1, data, data);
  return b.finish('<chain>', 'none');
}

describe('drawPlan', () => {
  it('draws every step that takes time, and every message, within the picture', () => {
    const svg = drawPlan(ring(4), 4);
    expect(svg.match(/<title>[^<]* put /g)).toHaveLength(3);
    expect(svg.match(/<title>[^<]* wait /g)).toHaveLength(3);
    expect(svg.match(/class="message"/g)).toHaveLength(3);
    const width = Number(/width="(\d+)"/.exec(svg)?.[1]);
    for (const [, x] of svg.matchAll(/ x2?="([\d.]+)"/g)) expect(Number(x)).toBeLessThanOrEqual(width);
    // Rank 2 waits for two hops, so its box is twice as wide as rank 1's.
    const widths = [...svg.matchAll(/width="([\d.]+)" height="12" class="wait"/g)].map(([, w]) => Number(w));
    expect(widths[1] / widths[0]).toBeCloseTo(2, 1);
  });

  it('groups ranks by host', () => {
    const b = new PlanBuilder({ collective: 'broadcast', topology: grid(2, 2), count: 4, root: 0 });
    b.transfer(0, 3, data, data);
    expect(drawPlan(b.finish('x', 'none'), 4).match(/>(host \d+ [^<]*|rank \d+)</g)).toEqual([
      '>host 0 · ranks 0–1<',
      '>host 1 · ranks 2–3<',
      ...[0, 1, 2, 3].map((rank) => `>rank ${rank}<`),
    ]);
  });

  it('draws hosts instead of ranks in large worlds, escapes names, and nothing is not a number', () => {
    const svg = drawPlan(ring(100, grid(50, 2)), 4);
    expect(svg.match(/>(host|rank) \d+</g)).toEqual(Array.from({ length: 50 }, (_, host) => `>host ${host}<`));
    // A rank of every host waits at some time, and the legend has waits.
    expect(svg.match(/class="wait"/g)).toHaveLength(51);
    expect(
      drawPlan(ring(100), 4)
        .match(/>hosts [\d–]+</g)
        ?.slice(-2),
    ).toEqual(['>hosts 96–97<', '>hosts 98–99<']);
    expect(svg).toContain('&lt;chain&gt;');
    const empty = new PlanBuilder({ collective: 'barrier', topology: separateHosts(2), count: 0 }).finish('none', 'none');
    for (const each of [svg, drawPlan(empty, 4)]) expect(each).not.toMatch(/NaN|undefined|Infinity/);
  });
});

describe('formatSeconds', () => {
  it('takes the fitting unit', () => {
    expect([1e-6, 1.5e-3, 2].map(formatSeconds)).toEqual(['1.00 µs', '1.50 ms', '2.00 s']);
  });
});
