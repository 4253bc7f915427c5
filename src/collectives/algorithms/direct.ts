/** Direct: all ranks exchange with all others. A reduction gives each rank a share, its owner reduces the share, and all gather
 *  the results: two hops whatever the number of ranks, 2(n−1)/n·S per rank.
 *
 *      share of   0 1 2            0 1 2
 *      rank 0    [a a a]   each   [A    ]   each    [A B C]
 *      rank 1    [b b b]   ─────▶ [  B  ]  ──────▶  [A B C]
 *      rank 2    [c c c]   sends  [    C]   sends   [A B C]
 *
 *  At step k every rank sends to rank + k, pieces in the outer loop: no receiver is the target of all at once (incast). Where
 *  there are more pieces than the window, a piece goes to an owner only when the one `window` before has come back from it: that
 *  bounds the data under way to a receiver, and its scratch. Owners then work on a channel of their own. The two hops of Herring
 *  (Amazon, 2020); the owner-reduces phase is direct exchange in Thakur, Rabenseifner & Gropp, "Optimization of collective
 *  communication operations in MPICH", 2005. */
import { span, within, type Arrival, type PlanBuilder } from '../../plan/builder.ts';
import type { BufferName, Span } from '../../plan/ir.ts';
import { segments, split, type Range } from '../../plan/ranges.ts';
import type { Algorithm } from './algorithm.ts';
import { stagingCountOf } from './limits.ts';

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
        // The returned result says that the owner is done with the piece.
        then: (piece) => {
          const returned = sendToAll(b, 'data', piece);
          arrivals.push(...returned);
          return returned;
        },
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
          return undefined;
        },
      });
      for (const arrival of arrivals) b.wait(arrival);
    },
    'reduce-scatter': (b) => {
      reduceShares(b, span('input', { offset: 0, count: b.request.count }), b.segments, {
        resultOf: (rank, range) => b.part('output', rank, range),
        then: () => undefined,
      });
    },
    'all-gather': (b) => {
      const cuts = b.ranks.map((rank) => b.pieces(b.segments[rank]));
      const arrivals = exchange(b, {
        piecesOf: (from) => cuts[from],
        send: (from, to, range) => b.send(from, to, b.part('input', from, range), span('output', range)),
      });
      for (const rank of b.ranks) b.copy(rank, span('output', b.segments[rank]), b.part('input', rank));
      for (const arrival of arrivals) b.wait(arrival);
    },
    broadcast: (b) => {
      // The root sends one share to each other rank, and they gather among themselves: S leaves the root once.
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
      const cuts = outgoing.map((row) => row.map((range) => b.pieces(range)));
      const arrivals = exchange(b, {
        piecesOf: (from, to) => cuts[from][to],
        send: (from, to, range) => {
          const offset = incoming[to][from].offset + range.offset - outgoing[from][to].offset;
          return b.send(from, to, span('input', range), { buffer: 'output', offset, count: range.count });
        },
      });
      for (const rank of b.ranks) b.copy(rank, span('output', incoming[rank][rank]), span('input', outgoing[rank][rank]));
      for (const arrival of arrivals) b.wait(arrival);
    },
    barrier: (b) => b.barrier(),
  },
};

/** A finished piece of the result: its place at its owner, and its range in the whole. */
interface OwnedPiece {
  readonly rank: number;
  readonly range: Range;
  readonly result: Span;
}

/** Every rank reduces its share of all ranks' `whole` into `resultOf(rank, piece)` and goes on with `then`, which returns the
 *  arrivals of its sends to the others, beginning with the next rank, if it sends to all.
 *
 *      scratch of rank r:   [ring for r+1][ring for r+2]…[ring for r+n−1]
 *      a ring               [piece 0][piece 1]…[piece window−1], piece p lies at p mod window */
function reduceShares(
  b: PlanBuilder,
  whole: Span,
  shares: readonly Range[],
  steps: { readonly resultOf: (rank: number, range: Range) => Span; readonly then: (piece: OwnedPiece) => readonly Arrival[] | undefined },
): void {
  const cuts = shares.map((share) => b.pieces(share));
  const rounds = Math.max(...cuts.map((cut) => cut.length));
  const window = windowOf(b, cuts);
  const largest = cuts.map((cut) => Math.max(0, ...cut.map(({ count }) => count)));
  const rings = b.ranks.map((owner) => b.peersOf(owner).map(() => b.scratch(owner, largest[owner] * Math.min(window, cuts[owner].length))));
  // `peersOf` begins with the next rank, so the peer's place in an owner's list follows from the distance.
  const distance = (from: number, to: number): number => (to - from + b.n) % b.n;
  const slotOf = (owner: number, peer: number, round: number): Span =>
    within(rings[owner][distance(owner, peer) - 1], (round % window) * largest[owner], cuts[owner][round].count);
  const ownersChannel = rounds > window ? 1 : 0;
  /** Arrivals, by round, that tell each sender that the owner is done with the round before the last `window` ones. */
  const freed: (readonly Arrival[])[][] = [];
  const sendRound = (round: number): Arrival[][] => {
    const arrivals: Arrival[][] = b.ranks.map(() => []);
    for (const rank of b.ranks) {
      for (const owner of b.peersOf(rank)) {
        if (round >= cuts[owner].length) continue;
        if (round >= window) b.wait(freed[round - window][owner][distance(owner, rank) - 1]);
        const { offset, count } = cuts[owner][round];
        arrivals[owner].push(b.send(rank, owner, within(whole, offset, count), slotOf(owner, rank, round)));
      }
    }
    return arrivals;
  };
  const reduceRound = (round: number, arrivals: readonly (readonly Arrival[])[]): void => {
    freed[round] = b.ranks.map((rank) => {
      if (round >= cuts[rank].length) return [];
      const range = cuts[rank][round];
      for (const arrival of arrivals[rank]) b.wait(arrival);
      const result = steps.resultOf(rank, range);
      b.reduceAll(rank, [result], (peer) => (peer === rank ? within(whole, range.offset, range.count) : slotOf(rank, peer, round)));
      const returned = steps.then({ rank, range, result });
      if (returned !== undefined || round + window >= cuts[rank].length) return returned ?? [];
      return b.peersOf(rank).map((peer) => b.notify(rank, peer));
    });
  };
  if (ownersChannel === 0) {
    const sent = Array.from({ length: rounds }, (_, round) => sendRound(round));
    sent.forEach((arrivals, round) => reduceRound(round, arrivals));
    return;
  }
  for (let round = 0; round < rounds; round++) {
    const arrivals = sendRound(round);
    b.onChannel(ownersChannel, () => reduceRound(round, arrivals));
  }
}

/** Number of pieces per sender that an owner has room for: as the request says, at least one. */
function windowOf(b: PlanBuilder, cuts: readonly (readonly Range[])[]): number {
  const rounds = Math.max(1, ...cuts.map((cut) => cut.length));
  const largest = Math.max(1, ...cuts.flat().map(({ count }) => count));
  const room = Math.floor(stagingCountOf(b.request) / (largest * (b.n - 1)));
  return Math.max(1, Math.min(rounds, room, b.request.window ?? rounds));
}

/** The owner of a piece sends it to the same place of every other rank's `buffer`. */
function sendToAll(b: PlanBuilder, buffer: BufferName, { rank, range, result }: OwnedPiece): Arrival[] {
  return b.peersOf(rank).map((peer) => b.send(rank, peer, result, span(buffer, range)));
}

/** Every rank sends pieces to every other, round by round, to the next rank first. A rank sends piece p to a peer when that peer's piece p
 *  − window has come: no rank gets further ahead of another, and less than two windows are under way to a receiver. */
function exchange(
  b: PlanBuilder,
  of: {
    readonly piecesOf: (from: number, to: number) => readonly Range[];
    readonly send: (from: number, to: number, range: Range) => Arrival;
  },
): Arrival[] {
  const window = b.request.window ?? Number.MAX_SAFE_INTEGER;
  const rounds = Math.max(...b.ranks.flatMap((from) => b.peersOf(from).map((to) => of.piecesOf(from, to).length)));
  /** Arrivals by round, then by from × n + to. */
  const sent: Arrival[][] = [];
  for (let round = 0; round < rounds; round++) {
    sent[round] = [];
    for (const from of b.ranks) {
      for (const to of b.peersOf(from)) {
        const range = of.piecesOf(from, to).at(round);
        if (range === undefined) continue;
        if (round >= window) b.wait(sent[round - window][to * b.n + from]);
        sent[round][from * b.n + to] = of.send(from, to, range);
      }
    }
  }
  return sent.flatMap((arrivals) => arrivals.filter((arrival) => arrival !== undefined));
}

/** Interleaves lists: all first entries, then all second ones, … */
function byPiece<T>(lists: readonly (readonly T[])[]): T[] {
  const longest = Math.max(0, ...lists.map((list) => list.length));
  return Array.from({ length: longest }, (_, index) => lists.flatMap((list) => list.slice(index, index + 1))).flat();
}
