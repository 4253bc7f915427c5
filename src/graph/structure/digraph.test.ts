/** Components, levels and circles against a search that only looks whether one node can be reached from another. */
import { describe, expect, it } from 'vitest';
import { seededRandom } from '../../base/random.ts';
import { circleThrough, components, digraph, levels } from './digraph.ts';

describe('digraphs', () => {
  it('find components, levels and circles of random graphs', () => {
    const random = seededRandom(7);
    for (let round = 0; round < 300; round++) {
      const count = 1 + random.integer(12);
      const edges = Array.from({ length: random.integer(2 * count) * 2 }, () => random.integer(count));
      const graph = digraph(count, edges);
      const reaches = closure(count, edges);
      const { of } = components(graph);
      const level = levels(graph);
      for (let a = 0; a < count; a++) {
        const circle = circleThrough(graph, a);
        expect(circle !== undefined).toBe(reaches[a][a]);
        if (circle !== undefined) expect([circle[0], circle.at(-1)]).toEqual([a, a]);
        for (let b = 0; b < count; b++) expect(of[a] === of[b]).toBe(a === b || (reaches[a][b] && reaches[b][a]));
      }
      for (let k = 0; k < edges.length; k += 2) {
        const [a, b] = [edges[k], edges[k + 1]];
        if (of[a] === of[b]) expect(level[a]).toBe(level[b]);
        else {
          expect(of[a]).toBeGreaterThan(of[b]);
          expect(level[a]).toBeLessThan(level[b]);
        }
      }
    }
  });

  it('go deep without recursion', () => {
    const edges = Array.from({ length: 200_000 }, (_, k) => Math.ceil(k / 2));
    expect(levels(digraph(100_001, edges)).at(-1)).toBe(100_000);
  });
});

function closure(count: number, edges: readonly number[]): boolean[][] {
  const reaches = Array.from({ length: count }, () => Array.from({ length: count }, () => false));
  for (let k = 0; k < edges.length; k += 2) reaches[edges[k]][edges[k + 1]] = true;
  for (let by = 0; by < count; by++) {
    for (let a = 0; a < count; a++) for (let b = 0; b < count; b++) if (reaches[a][by] && reaches[by][b]) reaches[a][b] = true;
  }
  return reaches;
}
