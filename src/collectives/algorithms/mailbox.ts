/** Mailbox: a rank's contribution lies beside its announcement of the call, so a rank that has seen all announcements has all
 *  data. No signals, no scratch, no waits afterwards. Between hosts the mailbox travels with the announcement, to every rank: one
 *  hop, at the price of n−1 times the bytes.
 *
 *      entry                         announcement                    after it, rank r alone
 *      data of 0 ─▶ mailbox of 0 ─┐                 ┌─ mailbox of 0 ┐
 *      data of 1 ─▶ mailbox of 1 ─┼─ all have seen ─┼─ mailbox of 1 ├─⊕─▶ data of r
 *      data of 2 ─▶ mailbox of 2 ─┘    all          └─ mailbox of 2 ┘
 *
 *  Every rank loads all that concerns it: n·S in an all-reduce, which at a few KiB is less than waiting once more. A barrier has
 *  nothing to do at all, on any topology. The flag-with-payload cache lines of small-message MPI collectives (Graham & Shipman,
 *  "MPI support for multi-core architectures", 2008). */
import { must } from '../../base/assert.ts';
import { sum } from '../../base/numbers.ts';
import { at, span, within, type PlanBuilder } from '../../plan/builder.ts';
import { mailboxCount, type PlanRequest, type Span } from '../../plan/ir.ts';
import { segments } from '../../plan/ranges.ts';
import { rankCount } from '../../plan/topology.ts';
import type { Algorithm } from './algorithm.ts';

const networkRanksMax = 32;

export const mailbox: Algorithm = {
  name: 'mailbox',
  summary: 'a few KiB, and every barrier: the data travels with the announcement',
  association: 'canonical',
  ownBuffersOnly: true,
  alike: true,
  supports: (request) => {
    if (request.collective === 'barrier') return undefined;
    const ranks = rankCount(request.topology);
    if (request.topology.hosts.length > 1 && ranks > networkRanksMax)
      return `between hosts it serves at most ${networkRanksMax} ranks, because everyone sends to everyone, and there are ${ranks}; use direct`;
    const most = mailboxCount(request);
    // Above this size, the bytes that every rank takes in cost more than a hop would.
    if (request.topology.hosts.length > 1 && request.count > most)
      return `between hosts it moves at most ${most} elements in all, not ${request.count}; use direct`;
    const largest = largestEntry(request);
    return largest <= most ? undefined : `one rank's ${largest} elements exceed the mailbox's ${most}; use direct`;
  },
  build: {
    'all-reduce': (b) => {
      const data = wholeOf(b, 'data');
      const entered = b.ranks.map((rank) => at(rank, b.enter(rank, data)));
      for (const rank of b.ranks) b.reduceAll(rank, [data], (peer) => entered[peer]);
    },
    reduce: (b) => {
      const data = wholeOf(b, 'data');
      const entered = b.ranks.map((rank) => (rank === b.root ? data : at(rank, b.enter(rank, data))));
      b.reduceAll(b.root, [data], (peer) => entered[peer]);
    },
    'reduce-scatter': (b) => {
      const entered = b.ranks.map((rank) => b.enter(rank, wholeOf(b, 'input')));
      for (const rank of b.ranks) {
        const { offset, count } = b.segments[rank];
        b.reduceAll(rank, [b.part('output', rank)], (peer) => at(peer, within(entered[peer], offset, count)));
      }
    },
    broadcast: (b) => {
      const data = wholeOf(b, 'data');
      const entered = b.enter(b.root, data);
      for (const rank of b.peersOf(b.root)) b.copy(rank, data, at(b.root, entered));
    },
    'all-gather': (b) => {
      const entered = b.ranks.map((rank) => b.enter(rank, b.part('input', rank)));
      for (const rank of b.ranks) collect(b, rank, { entered, own: b.part('input', rank) });
    },
    gather: (b) => {
      const own = b.part('input', b.root);
      const entered = b.ranks.map((rank) => (rank === b.root ? own : b.enter(rank, b.part('input', rank))));
      collect(b, b.root, { entered, own });
    },
    scatter: (b) => {
      const input = wholeOf(b, 'input');
      const entered = b.enter(b.root, input);
      for (const rank of b.ranks) {
        const { offset, count } = b.segments[rank];
        const whole = rank === b.root ? input : at(b.root, entered);
        b.copy(rank, b.part('output', rank), { ...whole, offset, count });
      }
    },
    'all-to-all': (b) => {
      const splits = must(b.request.splits, () => 'an all-to-all has splits');
      const outgoing = splits.map((row) => segments(row));
      const inputs = b.ranks.map((rank): Span => ({ buffer: 'input', offset: 0, count: sum(splits[rank]) }));
      const entered = b.ranks.map((rank) => b.enter(rank, inputs[rank]));
      for (const rank of b.ranks) {
        segments(splits.map((row) => row[rank])).forEach((range, peer) => {
          const source = peer === rank ? inputs[rank] : at(peer, entered[peer]);
          const { offset, count } = outgoing[peer][rank];
          b.copy(rank, span('output', range), { ...source, offset, count });
        });
      }
    },
    barrier: () => {},
  },
};

/** Copies all ranks' segments into `rank`'s output. */
function collect(b: PlanBuilder, rank: number, { entered, own }: { readonly entered: readonly Span[]; readonly own: Span }): void {
  for (const peer of b.ranks) b.copy(rank, span('output', b.segments[peer]), peer === rank ? own : at(peer, entered[peer]));
}

function wholeOf(b: PlanBuilder, buffer: 'data' | 'input'): Span {
  return { buffer, offset: 0, count: b.request.count };
}

/** Most elements that any rank enters; the request need not be completed. */
function largestEntry({ collective, topology, count, counts, splits }: PlanRequest): number {
  const n = rankCount(topology);
  if (collective === 'all-gather' || collective === 'gather') return counts ? Math.max(...counts) : Math.ceil(count / n);
  if (collective === 'all-to-all') return splits ? Math.max(...splits.map(sum)) : Math.ceil(count / n);
  return count;
}
