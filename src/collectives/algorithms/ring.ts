/** Ring: around one ring in host order, so that each host is entered and left once. n−1 steps per phase, 2(n−1)/n·S per rank for
 *  an all-reduce: bandwidth-optimal, latency grows with n, and each share is summed in an order of its own (relaxed).
 *
 *      phase 1, chunk c goes   c+1 ─▶ c+2 ─▶ … ─▶ c     adding each position's contribution on the way
 *      phase 2, chunk c goes   c ─▶ c+1 ─▶ … ─▶ c−1     finished
 *
 *  Pieces of a chunk follow each other, so a piece is reduced while the next one travels. Patarasuk & Yuan, "Bandwidth optimal
 *  all-reduce algorithms for clusters of workstations", 2009. */
import { span, within, type Arrival, type PlanBuilder } from '../../plan/builder.ts';
import type { Span } from '../../plan/ir.ts';
import { split, type Range } from '../../plan/ranges.ts';
import type { Algorithm } from './algorithm.ts';

export const ring: Algorithm = {
  name: 'ring',
  summary: 'large sizes, when sums may be taken in any order: neighbours only, least bytes per rank',
  association: 'relaxed',
  tiles: true,
  build: {
    'all-reduce': (b) => {
      const order = b.topology.hosts.flat();
      const shares = split(b.request.count, b.n);
      const sent: Arrival[][] = order.map(() => []);
      reduceAround(b, order, shares, {
        source: 'data',
        resultOf: (_, range) => span('data', range),
        then: (position, range) =>
          sent[position].push(b.send(order[position], nextOf(order, position), span('data', range), span('data', range))),
      });
      gatherAround(b, order, shares, { buffer: 'data', sent });
    },
    'reduce-scatter': (b) => {
      const order = b.topology.hosts.flat();
      reduceAround(b, order, chunksOf(b, order), {
        source: 'input',
        resultOf: (rank, range) => b.part('output', rank, range),
        then: () => {},
      });
    },
    'all-gather': (b) => {
      const order = b.topology.hosts.flat();
      const sent = order.map((rank, position) =>
        b
          .pieces(b.segments[rank])
          .map((range) => b.send(rank, nextOf(order, position), b.part('input', rank, range), span('output', range))),
      );
      for (const rank of b.ranks) b.copy(rank, span('output', b.segments[rank]), b.part('input', rank));
      gatherAround(b, order, chunksOf(b, order), { buffer: 'output', sent });
    },
  },
};

interface Reduction {
  readonly source: 'data' | 'input';
  readonly resultOf: (rank: number, range: Range) => Span;
  /** The next steps of the owner of a finished piece. */
  readonly then: (position: number, range: Range) => void;
}

/** Reduces around the ring: chunk c ends at position c. Arriving data lies in scratch at the chunk's own offset and is summed there. */
function reduceAround(b: PlanBuilder, order: readonly number[], chunks: readonly Range[], { source, resultOf, then }: Reduction): void {
  const n = order.length;
  const sums = b.ranks.map((rank) => b.scratch(rank, b.request.count));
  const sumOf = (rank: number, { offset, count }: Range): Span => within(sums[rank], offset, count);
  const positions = keptPositions(b, order);
  if (n > 2) b.movePartials();
  let sent = around(positions, (position): Arrival[] => {
    const [rank, next] = [order[position], nextOf(order, position)];
    return b.pieces(chunks[(position + n - 1) % n]).map((range) => b.send(rank, next, span(source, range), sumOf(next, range)));
  });
  for (let step = 0; step < n - 1; step++) {
    const final = step === n - 2;
    const before = sent;
    sent = around(positions, (position) => {
      const [rank, next] = [order[position], nextOf(order, position)];
      return b.pieces(chunks[(position - step - 2 + 2 * n) % n]).map((range, index) => {
        b.wait(before[(position - 1 + n) % n]?.[index]);
        const sum = sumOf(rank, range);
        b.combine(rank, final ? resultOf(rank, range) : sum, { left: sum, right: span(source, range), final });
        if (!final) return b.send(rank, next, sum, sumOf(next, range));
        then(position, range);
        return undefined;
      });
    });
  }
}

/** Gathers around the ring: chunk c, which position c has `sent` on already, passes all ranks. */
function gatherAround(
  b: PlanBuilder,
  order: readonly number[],
  chunks: readonly Range[],
  { buffer, sent }: { readonly buffer: 'data' | 'output'; readonly sent: readonly (readonly Arrival[])[] },
): void {
  const n = order.length;
  const positions = keptPositions(b, order);
  let arrived = sent;
  for (let step = 1; step < n - 1; step++) {
    const before = arrived;
    arrived = around(positions, (position) =>
      b.pieces(chunks[(position - step + n) % n]).map((range, index) => {
        b.wait(before[(position - 1 + n) % n]?.[index]);
        return b.send(order[position], nextOf(order, position), span(buffer, range), span(buffer, range));
      }),
    );
  }
  for (const arrival of arrived.flat()) b.wait(arrival);
}

/** Positions whose messages matter: all, or that of the only rank whose program is kept, after the one that sends to it. */
function keptPositions({ onlyRank }: PlanBuilder, order: readonly number[]): number[] {
  if (onlyRank === undefined) return [...order.keys()];
  const position = order.indexOf(onlyRank);
  return [(position - 1 + order.length) % order.length, position];
}

/** A value for each of the positions, at its index. */
function around<T>(positions: readonly number[], valueOf: (position: number) => T): T[] {
  const values: T[] = [];
  for (const position of positions) values[position] = valueOf(position);
  return values;
}

function nextOf(order: readonly number[], position: number): number {
  return order[(position + 1) % order.length];
}

function chunksOf(b: PlanBuilder, order: readonly number[]): Range[] {
  return order.map((rank) => b.segments[rank]);
}
