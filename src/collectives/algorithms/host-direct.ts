/** Host-direct: all ranks on one host load from and store to each other's buffers; nothing is sent, no scratch.
 *
 *      all-reduce, rank r:   share r of all data ══⊕══▶ share r of all data ─▶ everyone done
 *
 *      shares of 2 ranks     small: 0 0 0 0 1 1 1 1      large: 0 1 0 1 0 1 0 1, each rank from its last block to its first
 *
 *  The data written last is still in the cache of the rank that wrote it. Interleaved shares, walked backwards, give every rank
 *  the same part of that, before it is evicted: 10 % at 4 MiB, where tensors are about as large as caches.
 *
 *  Every element is loaded once per rank and stored once per rank, which is the least possible; shares are whole cache lines, so no two
 *  ranks store to one line. No channel starts before all have announced the call, so peers' buffers may be touched at once; the done
 *  signals say that their owners may use them again. As in UCC's and XPMEM-based MPI collectives (Hashmi et al., IPDPS 2018). */
import { at, span, type PlanBuilder } from '../../plan/builder.ts';
import type { Location, Span } from '../../plan/ir.ts';
import { segments, split } from '../../plan/ranges.ts';
import type { Algorithm } from './algorithm.ts';

/** Smallest block: the streams of smaller ones begin and end so often that this costs more than the blocks save. */
const blockBytesMin = 256 * 1024;
const blocksMax = 16;

export const hostDirect: Algorithm = {
  name: 'host-direct',
  summary: 'all ranks on one host with shared memory, any size: loads and stores, no transfers',
  association: 'canonical',
  alike: true,
  supports: ({ topology }) =>
    topology.hosts.length === 1 ? undefined : `it needs all ranks on one host and there are ${topology.hosts.length} hosts; use direct`,
  build: {
    'all-reduce': (b) => {
      reduceShares(b, b.ranks);
    },
    reduce: (b) => {
      reduceShares(b, [b.root]);
    },
    'reduce-scatter': (b) => {
      for (const rank of b.ranks) {
        for (const range of b.pieces(b.segments[rank])) {
          b.reduceAll(rank, [b.part('output', rank, range)], (peer) => at(peer, span('input', range)));
        }
      }
      b.barrier();
    },
    'all-gather': (b) => {
      pull(b, (_, peer) => ({ source: b.part('input', peer), target: span('output', b.segments[peer]) }));
    },
    'all-to-all': (b) => {
      const splits = b.request.splits ?? [];
      const outgoing = splits.map((row) => segments(row));
      const incoming = b.ranks.map((to) => segments(splits.map((row) => row[to])));
      pull(b, (rank, peer) => ({ source: span('input', outgoing[peer][rank]), target: span('output', incoming[rank][peer]) }));
    },
    broadcast: (b) => {
      const whole = span('data', { offset: 0, count: b.request.count });
      rootServes(b, () => ({ target: whole, source: at(b.root, whole) }));
    },
    scatter: (b) => {
      rootServes(b, (rank) => ({ target: b.part('output', rank), source: at(b.root, span('input', b.segments[rank])) }));
      b.copy(b.root, b.part('output', b.root), span('input', b.segments[b.root]));
    },
    gather: (b) => {
      rootServes(b, (rank) => ({ target: at(b.root, span('output', b.segments[rank])), source: b.part('input', rank) }));
      b.copy(b.root, span('output', b.segments[b.root]), b.part('input', b.root));
    },
    barrier: (b) => b.barrier(),
  },
};

/** Each rank reduces its share of all ranks' data into that of `targets`. */
function reduceShares(b: PlanBuilder, targets: readonly number[]): void {
  const { count, elementBytes = 4 } = b.request;
  const blocksPerRank = Math.min(blocksMax, Math.max(1, Math.floor((count * elementBytes) / (b.n * blockBytesMin))));
  const blocks = split(count, b.n * blocksPerRank);
  for (let block = blocks.length - 1; block >= 0; block--) {
    const rank = block % b.n;
    if (!b.concerns(rank, rank)) continue;
    for (const range of b.pieces(blocks[block])) {
      const data = span('data', range);
      b.reduceAll(
        rank,
        targets.map((peer) => at(peer, data)),
        (peer) => at(peer, data),
      );
    }
  }
  b.barrier();
}

/** Each rank copies from every peer's input, its own first, into its output. */
function pull(b: PlanBuilder, spansOf: (rank: number, peer: number) => { source: Span; target: Span }): void {
  for (const rank of b.ranks) {
    const own = spansOf(rank, rank);
    b.copy(rank, own.target, own.source);
  }
  b.tellAll((rank, peer) => {
    const { source, target } = spansOf(rank, peer);
    b.copy(rank, target, at(peer, source));
  });
}

/** Each other rank copies from or to the root's buffers; the root waits until all have. */
function rootServes(b: PlanBuilder, copyOf: (rank: number) => { target: Location; source: Location }): void {
  const done = b.peersOf(b.root).map((rank) => {
    const { target, source } = copyOf(rank);
    b.copy(rank, target, source);
    return b.notify(rank, b.root);
  });
  for (const arrival of done) b.wait(arrival);
}
