/** Tree: up and down the canonical tree. A subtree is led by its first rank, or by the root where the root is in it; the right
 *  half's leader sends to the left half's (or the other way round when that one leads both). ⌈log₂ n⌉ hops each way, S per hop
 *  and rank: for small sizes on many ranks, and the only one here that never sends between hosts twice.
 *
 *      ranks 0…5, root 0:     0 ◀─┬─ 1       4 ◀── 5
 *                             0 ◀─┴─ 2 ◀─ 3
 *                             0 ◀─────────── 4
 *
 *  Pieces travel one behind the other. The binomial trees of Thakur, Rabenseifner & Gropp, 2005. */
import type { AssociationNode, AssociationTree } from '../../plan/association.ts';
import { span, within, type Arrival, type PlanBuilder } from '../../plan/builder.ts';
import type { Span } from '../../plan/ir.ts';
import type { Range } from '../../plan/ranges.ts';
import type { Algorithm } from './algorithm.ts';

export const tree: Algorithm = {
  name: 'tree',
  summary: 'small sizes on many ranks: log₂ n hops, few messages',
  association: 'canonical',
  build: {
    'all-reduce': (b) => {
      const sums = b.ranks.map(() => span('data', { offset: 0, count: b.request.count }));
      const sent: SentDown[] = [];
      const down = downwards(b);
      reduceUp(b, sums, (range, index) => sent.push(down(range, index)));
      passDown(b, sent);
    },
    reduce: (b) => {
      const whole = { offset: 0, count: b.request.count };
      // Other ranks' data stays unchanged: their sums on the way lie in scratch.
      const leaders = new Set(edgesOf(b.tree, b.root).map(({ to }) => to));
      const sums = b.ranks.map((rank) => (rank === b.root ? span('data', whole) : b.scratch(rank, leaders.has(rank) ? whole.count : 0)));
      reduceUp(b, sums, () => {});
    },
    broadcast: (b) => {
      passDown(b, b.pieces({ offset: 0, count: b.request.count }).map(downwards(b)));
    },
    gather: (b) => {
      const holds = holdsOf(b);
      for (const rank of b.ranks) b.copy(rank, holds[rank].own, b.part('input', rank));
      for (const edge of edgesOf(b.tree, b.root)) {
        for (const { child, parent } of crossings(b, edge, holds)) b.transfer(edge.from, edge.to, child, parent);
      }
    },
    scatter: (b) => {
      const holds = holdsOf(b);
      for (const edge of edgesOf(b.tree, b.root).reverse()) {
        for (const { child, parent } of crossings(b, edge, holds)) b.transfer(edge.to, edge.from, parent, child);
      }
      for (const rank of b.ranks) b.copy(rank, b.part('output', rank), holds[rank].own);
    },
    barrier: (b) => {
      const edges = edgesOf(b.tree, b.root);
      for (const { from, to } of edges) b.wait(b.notify(from, to));
      for (const { from, to } of edges.reverse()) b.wait(b.notify(to, from));
    },
  },
};

interface Edge {
  readonly node: AssociationNode;
  /** Leader of the half that does not lead the whole. */
  readonly from: number;
  /** Leader of the whole. */
  readonly to: number;
  /** The half that `from` leads. */
  readonly half: AssociationTree;
}

/** One edge per inner node, children before parents. */
function edgesOf(tree: AssociationTree, root: number): Edge[] {
  const edges: Edge[] = [];
  /** The leader of a subtree: the root if it is in it, else the first rank. */
  const leaderOf = (node: AssociationTree): number => {
    if (node.kind === 'leaf') return node.rank;
    const [left, right] = [leaderOf(node.left), leaderOf(node.right)];
    if (right === root) edges.push({ node, from: left, to: right, half: node.left });
    else edges.push({ node, from: right, to: left, half: node.right });
    return right === root ? right : left;
  };
  leaderOf(tree);
  return edges;
}

/** Leaders combine the sums of their halves, piece by piece; `sums[rank]` takes the sum of `rank`. For pieces after the first,
 *  steps that do not concern the rank whose program is kept are left out: here, and on the way down. */
function reduceUp(b: PlanBuilder, sums: readonly Span[], whenReduced: (range: Range, index: number) => void): void {
  const edges = edgesOf(b.tree, b.root).map((edge) => ({ ...edge, slot: b.scratch(edge.to, b.request.count) }));
  const own = edges.filter(({ from, to }) => b.concerns(from, to));
  const partOf = (half: AssociationTree, leader: number, { offset, count }: Range): Span =>
    half.kind === 'leaf' ? span('data', { offset, count }) : within(sums[leader], offset, count);
  b.pieces({ offset: 0, count: b.request.count }).forEach((range, index) => {
    for (const { node, from, to, half, slot } of index === 0 ? edges : own) {
      const incoming = within(slot, range.offset, range.count);
      b.transfer(from, to, partOf(half, from, range), incoming);
      const partial = (side: AssociationTree): Span => (side === half ? incoming : partOf(side, to, range));
      const target = within(sums[to], range.offset, range.count);
      b.combine(to, target, { left: partial(node.left), right: partial(node.right), final: node === b.tree });
    }
    whenReduced(range, index);
  });
}

/** A piece that the root has sent to its children. */
interface SentDown {
  readonly range: Range;
  readonly arrivals: ReadonlyMap<number, Arrival>;
}

/** The root sends a piece to its children, the one with the largest subtree first. */
function downwards(b: PlanBuilder): (range: Range, index: number) => SentDown {
  const children = edgesOf(b.tree, b.root)
    .filter(({ to }) => to === b.root)
    .reverse();
  const own = children.filter(({ from }) => b.concerns(b.root, from));
  return (range, index) => {
    const data = span('data', range);
    return { range, arrivals: new Map((index === 0 ? children : own).map(({ from }) => [from, b.send(b.root, from, data, data)])) };
  };
}

/** Passes every piece from the root's children to all. */
function passDown(b: PlanBuilder, sent: readonly SentDown[]): void {
  const edges = edgesOf(b.tree, b.root).reverse();
  const own = edges.filter(({ from, to }) => b.concerns(from, to));
  sent.forEach(({ range, arrivals }, index) => {
    const data = span('data', range);
    for (const { from, to } of index === 0 ? edges : own) b.wait(to === b.root ? arrivals.get(from) : b.send(to, from, data, data));
  });
}

/** The place where a rank keeps the segments of the subtree it leads on their way: in tree order in scratch. A rank that leads
 *  only itself needs none: its own buffer is used; nor does the root, which has the whole. */
interface Hold {
  readonly span: Span | undefined;
  readonly ranks: readonly number[];
  /** The rank's own segment in the span. */
  readonly own: Span;
}

function holdsOf(b: PlanBuilder): Hold[] {
  const buffer = b.request.collective === 'gather' ? 'input' : 'output';
  const whole = b.request.collective === 'gather' ? 'output' : 'input';
  const holds: Hold[] = [];
  holds[b.root] = { span: undefined, ranks: b.tree.ranks, own: span(whole, b.segments[b.root]) };
  for (const { from, half } of edgesOf(b.tree, b.root)) {
    if (half.kind === 'leaf') {
      holds[from] = { span: b.part(buffer, from), ranks: half.ranks, own: b.part(buffer, from) };
      continue;
    }
    const count = half.ranks.reduce((sum, rank) => sum + b.segments[rank].count, 0);
    const held = b.scratch(from, count);
    holds[from] = { span: held, ranks: half.ranks, own: within(held, 0, b.segments[from].count) };
  }
  return holds;
}

/** The transfers across an edge, in pieces: their places at the child and at the parent. */
function crossings(b: PlanBuilder, edge: Edge, holds: readonly Hold[]): { child: Span; parent: Span }[] {
  return runsOf(b, edge).flatMap((ranks) => {
    const count = ranks.reduce((sum, rank) => sum + b.segments[rank].count, 0);
    const child = spanOf(b, holds[edge.from], ranks[0], count);
    const parent = spanOf(b, holds[edge.to], ranks[0], count);
    return b.pieces({ offset: 0, count }).map((range) => ({
      child: within(child, range.offset, range.count),
      parent: within(parent, range.offset, range.count),
    }));
  });
}

/** The child's ranks in runs that are contiguous on both sides: the root has segments in rank order. */
function runsOf(b: PlanBuilder, { half, to }: Edge): number[][] {
  const runs: number[][] = [];
  for (const rank of half.ranks) {
    const last = runs.at(-1);
    if (last !== undefined && (to !== b.root || last.at(-1) === rank - 1)) last.push(rank);
    else runs.push([rank]);
  }
  return runs;
}

/** `count` elements from `first`'s segment on, in the place that holds them. */
function spanOf(b: PlanBuilder, hold: Hold, first: number, count: number): Span {
  if (hold.span === undefined) return { buffer: hold.own.buffer, offset: b.segments[first].offset, count };
  const before = hold.ranks.slice(0, hold.ranks.indexOf(first));
  return within(
    hold.span,
    before.reduce((sum, rank) => sum + b.segments[rank].count, 0),
    count,
  );
}
