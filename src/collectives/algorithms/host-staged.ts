/** Host-staged: all ranks on one host, whose buffers only their owners can reach. Data for others passes through a small staging
 *  block of each rank, block by block; a line of it moves from cache to cache once per direction.
 *
 *      all-reduce, block by block:
 *      rank r      data: results of the block before ◀── own staging ◀── data: shares of the others      in one loop
 *      rank r      share r of own data ⊕ share r of all others' staging ══▶ both, in place
 *
 *  The owner of a staging block reads a line (the last result) right before it writes it (the next contribution), and so does the rank that
 *  reduces: a line that the same core reads and then writes moves between caches without a second request for ownership, which copies
 *  through separate buffers would pay. Own shares are never staged. The last block comes first: the caller wrote it last, so it is still in
 *  the cache. No rank touches a peer's data, input or output, so these may be private memory. */
import { getOrMake } from '../../base/collections/lists.ts';
import { at, span, within, type Arrival, type PlanBuilder } from '../../plan/builder.ts';
import type { PlanRequest } from '../../plan/ir.ts';
import { lineCount, pieces, split, type Range } from '../../plan/ranges.ts';
import type { Algorithm } from './algorithm.ts';

/** Bytes of a rank's staging: small enough to stay in a core's own cache, together with the caller's part of the block. */
export const stagingBlockBytes = 256 * 1024;

export const hostStaged: Algorithm = {
  name: 'host-staged',
  summary: 'all ranks on one host, some with private buffers, above mailbox size: blocks through small shared staging',
  association: 'canonical',
  ownBuffersOnly: true,
  alike: true,
  supports: ({ topology }) =>
    topology.hosts.length === 1 ? undefined : `it needs all ranks on one host and there are ${topology.hosts.length} hosts; use direct`,
  build: { 'all-reduce': allReduce },
};

/** Number of elements of a block; a whole number of lines. */
function blockCountOf({ elementBytes = 8, stagingCount = Number.POSITIVE_INFINITY }: PlanRequest): number {
  const most = Math.min(stagingBlockBytes / elementBytes, stagingCount);
  return Math.max(1, Math.floor(most / lineCount)) * lineCount;
}

interface Block extends Range {
  /** The range that each rank reduces, by rank, relative to the block. */
  readonly shares: readonly Range[];
}

function allReduce(b: PlanBuilder): void {
  const cuts = new Map<number, Range[]>();
  const blocks = pieces({ offset: 0, count: b.request.count }, blockCountOf(b.request))
    .map((range): Block => ({ ...range, shares: getOrMake(cuts, range.count, () => split(range.count, b.n)) }))
    .reverse();
  const stagingCount = Math.max(...blocks.map(({ count }) => count));
  const staging = b.ranks.map((rank) => b.scratch(rank, stagingCount));
  /** A table of arrivals: staged[to][from], reduced[to][from]. */
  const table = (): Arrival[][] => b.ranks.map(() => b.ranks.map(() => undefined));
  let [staged, reduced] = [table(), table()];
  const inData = (block: Block, owner: number): Range => {
    const { offset, count } = block.shares[owner];
    return { offset: block.offset + offset, count };
  };
  const inStaging = (rank: number, { shares }: Block, owner: number) => within(staging[rank], shares[owner].offset, shares[owner].count);

  const takeOut = (rank: number, results: Block | undefined, owner: number): void => {
    if (!results) return;
    b.wait(reduced[rank][owner]);
    b.copy(rank, span('data', inData(results, owner)), inStaging(rank, results, owner));
  };
  const putIn = (rank: number, next: Block | undefined, owner: number): void => {
    if (!next || next.shares[owner].count === 0) return;
    b.copy(rank, inStaging(rank, next, owner), span('data', inData(next, owner)));
    staged[owner][rank] = b.notify(rank, owner);
  };
  const exchange = (results: Block | undefined, next: Block | undefined): void => {
    staged = table();
    // A block of another size is cut otherwise: its shares may lie where results of several owners still are.
    const sameCut = results?.count === next?.count;
    for (const rank of b.ranks) {
      for (const owner of b.peersOf(rank)) {
        takeOut(rank, results, owner);
        if (sameCut) putIn(rank, next, owner);
      }
      if (!sameCut) for (const owner of b.peersOf(rank)) putIn(rank, next, owner);
    }
  };
  const reduce = (block: Block): void => {
    reduced = table();
    for (const rank of b.ranks) {
      if (block.shares[rank].count === 0) continue;
      for (const peer of b.peersOf(rank)) b.wait(staged[rank][peer]);
      const placeOf = (peer: number) => (peer === rank ? span('data', inData(block, rank)) : at(peer, inStaging(peer, block, rank)));
      b.reduceAll(rank, b.ranks.map(placeOf), placeOf);
      for (const peer of b.peersOf(rank)) reduced[peer][rank] = b.notify(rank, peer);
    }
  };

  const turn = (index: number): void => {
    exchange(index === 0 ? undefined : blocks[index - 1], blocks[index]);
    reduce(blocks[index]);
  };
  // The first one may be shorter than the others.
  for (let index = 0; index < Math.min(2, blocks.length); index++) turn(index);
  b.loop(blocks.length - 2, -stagingCount, (time) => turn(2 + time));
  exchange(blocks.at(-1), undefined);
}
