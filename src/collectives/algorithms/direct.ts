/** Direct: everyone exchanges with everyone. A reduction gives each rank a share, its owner reduces the share, and all
 *  gather the results: two hops whatever the number of ranks, 2(n−1)/n·S per rank.
 *
 *      share of   0 1 2            0 1 2
 *      rank 0    [a a a]   each   [A    ]   each    [A B C]
 *      rank 1    [b b b]   ─────▶ [  B  ]  ──────▶  [A B C]
 *      rank 2    [c c c]   sends  [    C]   sends   [A B C]
 *
 *  At step k everyone sends to rank + k, pieces in the outer loop: no receiver is everyone's target at once (incast).
 *  The two hops of Herring (Amazon, 2020); the owner-reduces phase is direct exchange in Thakur, Rabenseifner & Gropp,
 *  "Optimization of collective communication operations in MPICH", 2005. */
import { must } from '../../base/assert.ts';
import { span, within, type Arrival, type PlanBuilder } from '../../plan/builder.ts';
import type { BufferName, Span } from '../../plan/ir.ts';
import { segments, split, type Range } from '../../plan/partition.ts';
import type { Algorithm } from './algorithm.ts';

export const direct: Algorithm = {
  name: 'direct',
  summary: 'any topology, medium and large sizes: two hops, least bytes per rank',
  association: 'canonical',
  build: {
    'all-reduce': (b) => {
      const shares = split(b.request.count, b.n);
      const arrivals: Arrival[] = [];
      reduceShares(b, span('data', { offset: 0, count: b.request.count }), shares, {
        resultOf: (_, range) => span('data', range),
        then: (piece) => arrivals.push(...sendToAll(b, 'data', piece)),
      });
      for (const arrival of arrivals) b.wait(arrival);
    },
    reduce: (b) => {
      const shares = split(b.request.count, b.n);
      const results = b.ranks.map((rank) => b.scratch(rank, rank === b.root ? 0 : shares[rank].count));
      const arrivals: Arrival[] = [];
      reduceShares(b, span('data', { offset: 0, count: b.request.count }), shares, {
        resultOf: (rank, range) =>
          rank === b.root ? span('data', range) : within(results[rank], range.offset - shares[rank].offset, range.count),
        then: ({ rank, range, result }) => {
          if (rank !== b.root) arrivals.push(b.send(rank, b.root, result, span('data', range)));
        },
      });
      for (const arrival of arrivals) b.wait(arrival);
    },
    'reduce-scatter': (b) => {
      reduceShares(b, span('input', { offset: 0, count: b.request.count }), b.segments, {
        resultOf: (rank, range) => b.part('output', rank, range),
        then: () => {},
      });
    },
    'all-gather': (b) => {
      const owned = b.ranks.map((rank) =>
        b.pieces(b.segments[rank]).map((range) => ({ rank, range, result: b.part('input', rank, range) })),
      );
      const arrivals = byPiece(owned).flatMap((piece) => sendToAll(b, 'output', piece));
      for (const rank of b.ranks) b.copy(rank, span('output', b.segments[rank]), b.part('input', rank));
      for (const arrival of arrivals) b.wait(arrival);
    },
    broadcast: (b) => {
      // Root ──▶ one share to each other rank ──▶ they gather among themselves: S leaves the root once.
      const others = b.peersOf(b.root);
      const shares = split(b.request.count, others.length);
      const scattered = byPiece(others.map((rank, index) => b.pieces(shares[index]).map((range) => ({ rank, range }))));
      const arrivals = scattered.map(({ rank, range }) => b.send(b.root, rank, span('data', range), span('data', range)));
      const forwarded = scattered.flatMap(({ rank, range }, index) => {
        b.wait(arrivals[index]);
        const peers = b.peersOf(rank).filter((peer) => peer !== b.root);
        return peers.map((peer) => b.send(rank, peer, span('data', range), span('data', range)));
      });
      for (const arrival of forwarded) b.wait(arrival);
    },
    gather: (b) => {
      const cut = byPiece(b.peersOf(b.root).map((rank) => b.pieces(b.segments[rank]).map((range) => ({ rank, range }))));
      const arrivals = cut.map(({ rank, range }) => b.send(rank, b.root, b.part('input', rank, range), span('output', range)));
      b.copy(b.root, span('output', b.segments[b.root]), b.part('input', b.root));
      for (const arrival of arrivals) b.wait(arrival);
    },
    scatter: (b) => {
      const cut = byPiece(b.peersOf(b.root).map((rank) => b.pieces(b.segments[rank]).map((range) => ({ rank, range }))));
      const arrivals = cut.map(({ rank, range }) => b.send(b.root, rank, span('input', range), b.part('output', rank, range)));
      b.copy(b.root, b.part('output', b.root), span('input', b.segments[b.root]));
      for (const arrival of arrivals) b.wait(arrival);
    },
    'all-to-all': (b) => {
      const splits = b.request.splits ?? [];
      const outgoing = splits.map((row) => segments(row));
      const incoming = b.ranks.map((to) => segments(splits.map((row) => row[to])));
      const arrivals = b.ranks.flatMap((rank) => {
        const cut = b.peersOf(rank).map((peer) => b.pieces(outgoing[rank][peer]).map((range) => ({ peer, range })));
        return byPiece(cut).map(({ peer, range }) => {
          const offset = incoming[peer][rank].offset + range.offset - outgoing[rank][peer].offset;
          return b.send(rank, peer, span('input', range), { buffer: 'output', offset, count: range.count });
        });
      });
      for (const rank of b.ranks) b.copy(rank, span('output', incoming[rank][rank]), span('input', outgoing[rank][rank]));
      for (const arrival of arrivals) b.wait(arrival);
    },
    barrier: (b) => b.barrier(),
  },
};

/** A finished piece of the result: where its owner has it, and its range in the whole. */
interface OwnedPiece {
  readonly rank: number;
  readonly range: Range;
  readonly result: Span;
}

/** Every rank reduces its share of all ranks' `whole` into `resultOf(rank, piece)` and goes on with `then`.
 *
 *      scratch of rank r:   [share r of r+1][share r of r+2]…[share r of r+n−1] */
function reduceShares(
  b: PlanBuilder,
  whole: Span,
  shares: readonly Range[],
  steps: { readonly resultOf: (rank: number, range: Range) => Span; readonly then: (piece: OwnedPiece) => void },
): void {
  const slots = b.ranks.map((owner) => new Map(b.peersOf(owner).map((peer) => [peer, b.scratch(owner, shares[owner].count)])));
  const slotOf = (owner: number, peer: number, range: Range): Span =>
    within(
      must(slots[owner].get(peer), () => `rank ${owner} has no slot for rank ${peer}`),
      range.offset - shares[owner].offset,
      range.count,
    );
  const arrivals = new Map<number, Arrival[]>();
  for (const rank of b.ranks) {
    const cut = b.peersOf(rank).map((owner) => b.pieces(shares[owner]).map((range) => ({ owner, range })));
    for (const { owner, range } of byPiece(cut)) {
      const arrival = b.send(rank, owner, within(whole, range.offset, range.count), slotOf(owner, rank, range));
      arrivals.set(range.offset, [...(arrivals.get(range.offset) ?? []), arrival]);
    }
  }
  for (const { rank, range } of byPiece(b.ranks.map((owner) => b.pieces(shares[owner]).map((each) => ({ rank: owner, range: each }))))) {
    for (const arrival of arrivals.get(range.offset) ?? []) b.wait(arrival);
    const result = steps.resultOf(rank, range);
    b.reduceAll(rank, [result], (peer) => (peer === rank ? within(whole, range.offset, range.count) : slotOf(rank, peer, range)));
    steps.then({ rank, range, result });
  }
}

/** The owner of a piece sends it to the same place of everyone's `buffer`. */
function sendToAll(b: PlanBuilder, buffer: BufferName, { rank, range, result }: OwnedPiece): Arrival[] {
  return b.peersOf(rank).map((peer) => b.send(rank, peer, result, span(buffer, range)));
}

/** Lists interleaved: all first entries, then all second ones, … */
function byPiece<T>(lists: readonly (readonly T[])[]): T[] {
  const longest = Math.max(0, ...lists.map((list) => list.length));
  return Array.from({ length: longest }, (_, index) => lists.flatMap((list) => list.slice(index, index + 1))).flat();
}
