/** State that ranks have is given to those that lack it: each donor sends a part of its own, so that what arrives is bounded by the
 *  newcomer.
 *
 *      donors      rank 0 ■■■·········     rank 1 ····■■■■·····     rank 3 ········■■■■
 *                         └──────────────┬───────────┴──────────────────────┘
 *      newcomer    rank 2 ■■■■■■■■■■■■                       more newcomers than donors: one donor broadcasts
 *
 *  Small arrays travel as one. It must not know what the state is. */
import { sum } from '../base/numbers.ts';
import { bytesOf, onHost, operand, partOf } from '../group/caller/call-buffers.ts';
import type { ProcessGroup, TensorLike, Work } from '../group/caller/types.ts';
import { dtypeInfo } from '../memory/dtype.ts';
import type { Tensor } from '../memory/tensor.ts';

/** Arrays of at most so many bytes are copied, because that takes less time than a message. */
const smallBytesMax = 65_536;

/** Longest piece, and pieces that a rank has under way: plain arrays travel by way of shared memory, which is used again after each
 *  piece. */
const pieceBytesMax = 2 ** 22;
const piecesInFlight = 4;

/** Ranks of a group that have a state, and those that get it, in ascending order. */
export interface FollowedRanks {
  readonly group: ProcessGroup;
  readonly donors: readonly number[];
  readonly newcomers: readonly number[];
}

/** Called by all ranks of a group. @param donors ranks whose state is the same, in ascending order. All others get it in their state. */
export function handOn(group: ProcessGroup, state: readonly TensorLike[], donors: readonly number[]): Promise<void> {
  const newcomers = [...Array(group.size).keys()].filter((rank) => !donors.includes(rank));
  return new StateTransfer({ group, donors, newcomers }, state).run();
}

/** State on its way from donors to newcomers. */
export class StateTransfer {
  readonly #group: ProcessGroup;
  readonly #newcomers: readonly number[];
  readonly #isDonor: boolean;
  readonly #broadcasts: boolean;
  /** Small arrays of the state, which travel in one tensor. */
  readonly #small: readonly Uint8Array[];
  readonly #packed: Tensor<'uint8'>;
  /** Those from the first on that has not been started. */
  readonly #pieces: Piece[];
  readonly #ends: Promise<void>[] = [];
  #failure: unknown;

  constructor({ group, donors, newcomers }: FollowedRanks, state: readonly TensorLike[]) {
    [this.#group, this.#newcomers] = [group, newcomers];
    this.#broadcasts = newcomers.length > donors.length && newcomers.length + donors.length === group.size;
    this.#isDonor = donors.includes(group.rank);
    const arrays = state.map(bytesOf);
    this.#small = arrays.filter(({ length }) => length <= smallBytesMax);
    this.#packed = group.tensor('uint8', [sum(this.#small.map(({ length }) => length))]);
    let at = 0;
    if (this.#isDonor) for (const array of this.#small) this.#packed.data.set(array, (at += array.length) - array.length);
    const whole = [...state.filter((_, index) => arrays[index].length > smallBytesMax), this.#packed];
    this.#pieces = newcomers.length === 0 ? [] : piecesOf(whole, this.#broadcasts ? donors.slice(0, 1) : donors);
  }

  /** Sends or receives the state. @param failure why not. Default: nothing. */
  async run(failure?: unknown): Promise<void> {
    this.#failure = failure;
    try {
      for (let piece: Piece | undefined; this.#failure === undefined && (piece = this.#pieces.shift());) {
        const { copy } = piece;
        const ends = this.#start(piece).map((work) => work.catch((error: unknown) => void (this.#failure ??= error)));
        this.#ends.push(Promise.all(ends).then(() => copy && this.#group.release(copy)));
        await this.#ends.at(-1 - piecesInFlight);
      }
      // All of them end before any of the memory is used for something else.
      await Promise.all(this.#ends);
      if (this.#failure !== undefined) throw this.#failure;
      let at = 0;
      if (!this.#isDonor) for (const array of this.#small) array.set(this.#packed.data.subarray(at, (at += array.length)));
    } finally {
      this.drop();
    }
  }

  /** The donor's state may change when this resolves: what is not being sent is copied, from the last piece on, while others are sent. */
  async detach(): Promise<void> {
    const isLeft = ({ donor, copy }: Piece): boolean => copy === undefined && (this.#broadcasts || donor === this.#group.rank);
    for (let piece: Piece | undefined; (piece = this.#pieces.findLast(isLeft)) !== undefined;) {
      piece.data = piece.copy = copyOf(piece.data, this.#group);
      await new Promise((resolve) => setImmediate(resolve));
    }
    await Promise.all(this.#ends);
  }

  /** Releases the copies. */
  drop(): void {
    for (const copy of [this.#packed, ...this.#pieces.flatMap((piece) => piece.copy ?? [])]) this.#group.release(copy);
  }

  /** A piece goes from a donor to all newcomers. */
  #start({ donor, data }: Piece): Work[] {
    if (this.#broadcasts) return [this.#group.broadcast(data, { root: donor, name: 'elastic/state' })];
    if (donor === this.#group.rank) return this.#newcomers.map((peer) => this.#group.send(data, peer));
    return this.#isDonor ? [] : [this.#group.recv(data, donor)];
  }
}

/** A copy, which the group has to release. Tensors use memory again that others have left. */
export function copyOf(data: TensorLike, group: ProcessGroup): Tensor {
  const { dtype, count } = operand(data, 'state');
  const copy = group.tensor(dtype, [count]);
  bytesOf(copy).set(bytesOf(data));
  return copy;
}

interface Piece {
  readonly donor: number;
  /** Number of pieces of the same donor before it. */
  readonly round: number;
  data: TensorLike;
  copy?: Tensor;
}

/** The state in order, cut so that each donor has as many bytes, and no piece too many. The first pieces of all donors come first. */
function piecesOf(state: readonly TensorLike[], donors: readonly number[]): Piece[] {
  const operands = state.map((each) => operand(each, 'state'));
  const bytesOfOne = operands.map(({ dtype }) => dtypeInfo(dtype).bytes);
  const share = Math.ceil(sum(operands.map(({ count }, index) => count * bytesOfOne[index])) / donors.length);
  const pieces: Piece[] = [];
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
