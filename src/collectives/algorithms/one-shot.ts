/** One-shot: every rank sends all of its data to every other, and computes the whole result. One hop, (n−1)·S per rank: for
 *  operations so small that only the hop counts.
 *
 *      rank 0 [a] ──▶ 1, 2 …      each rank: [a][b][c] in scratch and data ─⊕─▶ data
 *
 *  The "one-shot" all-reduce of TensorRT-LLM and MSCCL++; the direct all-to-all of Chan et al., "Collective communication:
 *  theory, practice, and experience", 2007. */
import { span, within } from '../../plan/builder.ts';
import type { Algorithm } from './algorithm.ts';

export const oneShot: Algorithm = {
  name: 'one-shot',
  summary: 'a few KiB over the network: one hop, at the price of n−1 times the bytes',
  association: 'canonical',
  build: {
    'all-reduce': (b) => {
      const whole = { offset: 0, count: b.request.count };
      const data = span('data', whole);
      const slots = b.ranks.map((rank) => new Map(b.peersOf(rank).map((peer) => [peer, b.scratch(rank, whole.count)])));
      const arrivals = b.ranks.flatMap((rank) =>
        b.peersOf(rank).flatMap((peer) => {
          const slot = slots[peer].get(rank) ?? data;
          return b
            .pieces(whole)
            .map(({ offset, count }) => b.send(rank, peer, span('data', { offset, count }), within(slot, offset, count)));
        }),
      );
      for (const arrival of arrivals) b.wait(arrival);
      for (const rank of b.ranks) {
        // The result overwrites the data that is being sent, so that must have left first.
        b.flush(rank);
        b.reduceAll(rank, [data], (peer) => slots[rank].get(peer) ?? data);
      }
    },
    broadcast: (b) => {
      const arrivals = b.pieces({ offset: 0, count: b.request.count }).flatMap((range) => {
        const data = span('data', range);
        return b.peersOf(b.root).map((peer) => b.send(b.root, peer, data, data));
      });
      for (const arrival of arrivals) b.wait(arrival);
    },
    barrier: (b) => b.barrier(),
  },
};
