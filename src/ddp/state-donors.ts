/** State that ranks have is given to those that lack it: each donor sends a part of its own, so that what arrives is bounded by the
 *  receiver.
 *
 *      donors      rank 0 ■■■·········     rank 1 ····■■■■·····     rank 3 ········■■■■
 *                         └──────────────┬───────────┴──────────────────────┘
 *      receiver    rank 2 ■■■■■■■■■■■■                       more receivers than donors: one donor broadcasts
 *
 *  Small arrays travel as one. It must not know what the state is. */
import { sum } from '../base/numbers.ts';
import { bytesOf, onHost, operand, partOf } from '../group/caller/call-buffers.ts';
import type { ProcessGroup, TensorLike, Work } from '../group/caller/types.ts';
import { dtypeInfo } from '../memory/dtype.ts';

/** Arrays of at most so many bytes are copied, because that takes less time than a message. */
const smallBytesMax = 65_536;

/** Longest piece, and pieces that a rank has under way: plain arrays travel by way of shared memory, which is used again after each
 *  piece. */
const pieceBytesMax = 2 ** 20;
const piecesInFlight = 4;

/** The part of a process group by which state is given. */
export type DonorGroup = Pick<ProcessGroup, 'rank' | 'size' | 'tensor' | 'release' | 'send' | 'recv' | 'broadcast'>;

/** Collective. @param donors ranks whose state is the same, in ascending order; all others get it in their state. */
export async function handOn(group: DonorGroup, state: readonly TensorLike[], donors: readonly number[]): Promise<void> {
  const receivers = Array.from({ length: group.size }, (_, rank) => rank).filter((rank) => !donors.includes(rank));
  if (receivers.length === 0) return;
  const isDonor = donors.includes(group.rank);
  const arrays = state.map(bytesOf);
  const small = arrays.filter(({ length }) => length <= smallBytesMax);
  const packed = group.tensor('uint8', [sum(small.map(({ length }) => length))]);
  try {
    let at = 0;
    if (isDonor) for (const array of small) packed.data.set(array, (at += array.length) - array.length);
    const whole = [...state.filter((_, index) => arrays[index].length > smallBytesMax), packed];
    const senders = receivers.length > donors.length ? donors.slice(0, 1) : donors;
    const ends: Promise<void>[] = [];
    let failure: unknown;
    for (const { donor, data } of piecesOf(whole, senders)) {
      for (const work of start(donor, data)) ends.push(work.catch((error: unknown) => void (failure ??= error)));
      await ends.at(-1 - piecesInFlight);
      if (failure !== undefined) break;
    }
    // All of them end before any of the memory is used for something else.
    await Promise.all(ends);
    if (failure !== undefined) throw failure;
    if (!isDonor) for (const array of small) array.set(packed.data.subarray(at, (at += array.length)));
  } finally {
    group.release(packed);
  }

  /** A piece goes from a donor to all receivers. */
  function start(donor: number, data: TensorLike): Work[] {
    if (receivers.length > donors.length) return [group.broadcast(data, { root: donor, name: 'ddp/state' })];
    if (donor === group.rank) return receivers.map((peer) => group.send(data, peer));
    return isDonor ? [] : [group.recv(data, donor)];
  }
}

/** The state in order, cut so that each donor has as many bytes, and no piece too many. The first pieces of all donors come first. */
function piecesOf(state: readonly TensorLike[], donors: readonly number[]): { readonly donor: number; readonly data: TensorLike }[] {
  const operands = state.map((each) => operand(each, 'state'));
  const bytesOfOne = operands.map(({ dtype }) => dtypeInfo(dtype).bytes);
  const share = Math.ceil(sum(operands.map(({ count }, index) => count * bytesOfOne[index])) / donors.length);
  const pieces: { readonly donor: number; readonly round: number; readonly data: TensorLike }[] = [];
  let before = 0;
  for (const [index, whole] of operands.entries()) {
    const size = bytesOfOne[index];
    for (let first = 0, end: number; first < whole.count; first = end) {
      const donor = Math.floor((before + first * size) / share);
      end = Math.min(whole.count, Math.ceil(((donor + 1) * share - before) / size), first + pieceBytesMax / size);
      const round = pieces.filter((each) => each.donor === donors[donor]).length;
      pieces.push({ donor: donors[donor], round, data: onHost(partOf(whole, first, end - first).value) });
    }
    before += whole.count * size;
  }
  return pieces.toSorted((a, b) => a.round - b.round);
}
