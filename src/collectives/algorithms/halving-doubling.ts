/** Halving-doubling on the canonical tree, for any number of ranks. Where two subtrees meet, each range of the vector has an
 *  owner on either side; one gives its partial sum to the other, so that afterwards all ranks below share the work evenly. The
 *  way back retraces the exchanges with finished values. log₂ n hops each way, 2(n−1)/n·S per rank.
 *
 *      ranks 0 1 2 3; █ owned and kept, ░ owned and given away next; shares lie in the order 0 2 1 3, so that every exchange
 *      is one range:
 *
 *      0 │████░░░░│  0+1   │██░░    │  01+23  │██      │
 *      1 │░░░░████│  ──▶   │    ██░░│   ──▶   │    ██  │
 *      2 │████░░░░│  2+3   │░░██    │         │  ██    │
 *      3 │░░░░████│        │    ░░██│         │      ██│
 *
 *  Ownership is worked out from the root of the tree down: a rank of the left half also carries an even part of the ranges that
 *  the right half's ranks end up with, and the other way round. Powers of two give Rabenseifner's algorithm (2004) with pairs at
 *  growing distance; other sizes need no extra phase for left-over ranks. */
import { must } from '../../base/assert.ts';
import type { AssociationNode, AssociationTree } from '../../plan/association.ts';
import { span, within, type PlanBuilder } from '../../plan/builder.ts';
import type { Span } from '../../plan/ir.ts';
import { joined, split, type Range } from '../../plan/ranges.ts';
import type { Algorithm } from './algorithm.ts';

export const halvingDoubling: Algorithm = {
  name: 'halving-doubling',
  summary: 'medium sizes on many ranks: log₂ n hops and least bytes per rank',
  association: 'canonical',
  build: {
    'all-reduce': (b) => {
      const shares = split(b.request.count, b.n);
      const owned: Ownership = new Map(interleaved(b.tree).map((rank, index) => [rank, shares[index].count > 0 ? [shares[index]] : []]));
      const meetings = meetingsOf(b.tree, owned);
      halve(b, meetings, { leaf: 'data', sum: (_, range) => span('data', range), result: (_, range) => span('data', range) });
      double(b, meetings.reverse(), 'data');
    },
    'reduce-scatter': (b) => {
      const sums = b.ranks.map((rank) => b.scratch(rank, b.request.count));
      halve(b, meetingsOf(b.tree, ownSegments(b)), {
        leaf: 'input',
        sum: (rank, { offset, count }) => within(sums[rank], offset, count),
        result: (rank, range) => b.part('output', rank, range),
      });
    },
    'all-gather': (b) => {
      for (const rank of b.ranks) b.copy(rank, span('output', b.segments[rank]), b.part('input', rank));
      double(b, meetingsOf(b.tree, ownSegments(b)).reverse(), 'output');
    },
  },
};

/** The ranges whose (partial) sum each rank holds. Disjoint, and together the whole vector. */
type Ownership = ReadonlyMap<number, readonly Range[]>;

/** One range that changes hands where two subtrees meet. */
interface Handover {
  /** The rank that gives the range; it owned the range in its own half. */
  readonly from: number;
  /** The rank that takes it: owner in its own half before, and of the sum of both afterwards. */
  readonly to: number;
  readonly range: Range;
}

interface Meeting {
  readonly node: AssociationNode;
  readonly handovers: readonly Handover[];
}

/** One meeting per inner node, children before parents, such that the ranks of `tree` finally own `owned`. */
function meetingsOf(tree: AssociationTree, owned: Ownership): Meeting[] {
  if (tree.kind === 'leaf') return [];
  const { left, right } = tree;
  const toRight = lend(right, left, owned);
  const toLeft = lend(left, right, owned);
  const before = (half: AssociationTree, lent: readonly Handover[]): Ownership => {
    const ranges = new Map(half.ranks.map((rank) => [rank, [...(owned.get(rank) ?? [])]]));
    for (const { from, range } of lent) ranges.get(from)?.push(range);
    for (const [rank, each] of ranges) ranges.set(rank, joined(each));
    return ranges;
  };
  return [
    ...meetingsOf(left, before(left, toRight)),
    ...meetingsOf(right, before(right, toLeft)),
    { node: tree, handovers: [...toRight, ...toLeft] },
  ];
}

/** The handovers by which the ranks of `carriers` carry even parts of the ranges of `owners` until both halves meet. */
function lend(owners: AssociationTree, carriers: AssociationTree, owned: Ownership): Handover[] {
  const ranges = inOrder(owners, owned);
  const total = ranges.reduce((sum, { range }) => sum + range.count, 0);
  const parts = split(total, carriers.ranks.length);
  const order = [...carriers.ranks].sort((x, y) => startOf(x, owned) - startOf(y, owned));
  const handovers: Handover[] = [];
  let at = 0;
  let index = 0;
  for (const { rank: to, range } of ranges) {
    // Both lists cover the same total: a part that ends here goes on in the next range.
    for (; index < parts.length && parts[index].offset < at + range.count; index++) {
      const { offset, count } = parts[index];
      const from = Math.max(offset, at);
      const end = Math.min(offset + count, at + range.count);
      if (from < end) handovers.push({ from: order[index], to, range: { offset: range.offset + from - at, count: end - from } });
      if (offset + count > at + range.count) break;
    }
    at += range.count;
  }
  return handovers;
}

/** Phase 1: hands partial sums over and combines them until every rank owns its ranges of the whole sum. */
function halve(
  b: PlanBuilder,
  meetings: readonly Meeting[],
  places: {
    /** Buffer of a rank's own contribution. */
    readonly leaf: 'data' | 'input';
    /** Destination of partial sums. */
    readonly sum: (rank: number, range: Range) => Span;
    /** Destination of the whole sum. */
    readonly result: (rank: number, range: Range) => Span;
  },
): void {
  for (const { node, handovers } of meetings) {
    const partial = (half: AssociationTree, rank: number, range: Range): Span =>
      half.kind === 'leaf' ? span(places.leaf, range) : places.sum(rank, range);
    const left = new Set(node.left.ranks);
    const sideOf = (rank: number): AssociationTree => (left.has(rank) ? node.left : node.right);
    const arrivals = handovers.flatMap(({ from, to, range: whole }) => {
      const slot = b.scratch(to, whole.count);
      return piecesBetween(b, { from, to, range: whole }).map((range) => {
        const incoming = within(slot, range.offset - whole.offset, range.count);
        return { to, range, incoming, arrival: b.send(from, to, partial(sideOf(from), from, range), incoming) };
      });
    });
    for (const { to, range, incoming, arrival } of arrivals) {
      b.wait(arrival);
      const own = partial(sideOf(to), to, range);
      const final = node === b.tree;
      const operands = sideOf(to) === node.left ? { left: own, right: incoming } : { left: incoming, right: own };
      b.combine(to, final ? places.result(to, range) : places.sum(to, range), { ...operands, final });
    }
  }
}

/** Phase 2, from the root of the tree down: returns the ranges that were handed over, finished. */
function double(b: PlanBuilder, meetings: readonly Meeting[], buffer: 'data' | 'output'): void {
  for (const { handovers } of meetings) {
    const arrivals = handovers.flatMap((handover) =>
      piecesBetween(b, handover).map((range) => b.send(handover.to, handover.from, span(buffer, range), span(buffer, range))),
    );
    for (const arrival of arrivals) b.wait(arrival);
  }
}

/** The range of a handover, in pieces; only the first one when neither rank's program is kept. */
function piecesBetween(b: PlanBuilder, { from, to, range }: Handover): Range[] {
  const pieces = b.pieces(range);
  return b.concerns(from, to) ? pieces : pieces.slice(0, 1);
}

/** The ranges of a subtree's ranks in order of their offset. */
function inOrder(tree: AssociationTree, owned: Ownership): { rank: number; range: Range }[] {
  return tree.ranks
    .flatMap((rank) => rangesOf(rank, owned).map((range) => ({ rank, range })))
    .sort((x, y) => x.range.offset - y.range.offset);
}

function startOf(rank: number, owned: Ownership): number {
  return rangesOf(rank, owned).at(0)?.offset ?? Number.MAX_SAFE_INTEGER;
}

function rangesOf(rank: number, owned: Ownership): readonly Range[] {
  return must(owned.get(rank), () => `rank ${rank} is in the tree and has no ownership`);
}

/** Ownership for reduce-scatter and all-gather, whose ranges are given: each rank's segment. */
function ownSegments(b: PlanBuilder): Ownership {
  return new Map(b.ranks.map((rank) => [rank, joined([b.segments[rank]])]));
}

/** The ranks of a tree in an order in which ranks that meet late are neighbours: left and right halves alternate. */
function interleaved(tree: AssociationTree): number[] {
  if (tree.kind === 'leaf') return [tree.rank];
  const [left, right] = [interleaved(tree.left), interleaved(tree.right)];
  const keyed = [left, right].flatMap((side) => side.map((rank, index) => ({ rank, key: (index + 0.5) / side.length })));
  return keyed.sort((x, y) => x.key - y.key).map(({ rank }) => rank);
}
