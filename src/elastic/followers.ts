/** Newcomers that follow: they get the state of one step while the others go on, and then the averages of every later step, by which they
 *  make the same updates until they have caught up.
 *
 *      others     170 │ 171    172    173    …  180 │ enter │ 181
 *                 └─ state of 170 ─▶  171 172 …  180 ─▶   │
 *      newcomer                       171 172 …    180    │ 181
 *
 *  What is not sent when step 171 ends is copied. Each of the others sends a part of the averages. They wait in copies while the state is on
 *  its way; when there are several, the others wait as well. It must not know the model. */
import { operand } from '../group/caller/call-buffers.ts';
import type { TensorLike } from '../group/caller/types.ts';
import { dtypeInfo, dtypes } from '../memory/dtype.ts';
import { Tensor } from '../memory/tensor.ts';
import { handOn, StateTransfer, type DonorGroup } from './state-donors.ts';

/** Messages to a newcomer for one step: the number of averages, what they are, and their elements. */
const messagesOfStep = 3;
/** Messages that a rank keeps before it waits. */
const keptMax = 4 * messagesOfStep;

/** All ranks of a group, in ascending order. */
export interface FollowedRanks {
  readonly group: DonorGroup;
  readonly donors: readonly number[];
  readonly newcomers: readonly number[];
}

/** A donor's end. */
export class Followers {
  readonly #ranks: FollowedRanks;
  readonly #transfer: StateTransfer;
  #sent: Promise<void>;
  /** Messages that have not been sent. */
  #kept = 1;
  #failure: unknown;

  /** Begins to send the state. */
  constructor(ranks: FollowedRanks, state: readonly TensorLike[]) {
    this.#ranks = ranks;
    this.#transfer = new StateTransfer(ranks.group, state, ranks.donors, ranks.newcomers);
    this.#sent = this.#send(this.#transfer);
  }

  /** True when this rank has sent all but the last step, or a newcomer is lost. */
  get isOver(): boolean {
    return this.#kept <= messagesOfStep;
  }

  /** Sends copies of a step's averages. The state may change when this resolves. */
  async give(averages: readonly TensorLike[]): Promise<void> {
    await this.#transfer.detach();
    if (this.#kept >= keptMax) await this.#sent;
    const kinds = averages.map((each) => ({ ...operand(each, 'an average'), isTensor: each instanceof Tensor }));
    const table = kinds.flatMap(({ dtype, count, isTensor }) => [dtypeInfo(dtype).code, count, Number(isTensor)]);
    for (const message of [[Float64Array.of(kinds.length)], [Float64Array.from(table)], averages]) await this.#give(message);
  }

  /** Tells the newcomers that no more steps follow. @throws what kept them from following. */
  async end(): Promise<void> {
    await this.#give([Float64Array.of(-1)]);
    await this.#sent;
    if (this.#failure !== undefined) throw this.#failure;
  }

  async #give(message: readonly TensorLike[]): Promise<void> {
    const { group, donors, newcomers } = this.#ranks;
    const transfer = new StateTransfer(group, message, donors, newcomers);
    this.#kept++;
    this.#sent = this.#sent.then(() => this.#send(transfer));
    await transfer.detach();
  }

  async #send(transfer: StateTransfer): Promise<void> {
    try {
      await transfer.run(this.#failure);
    } catch (thrown) {
      this.#failure = thrown;
    }
    this.#kept--;
  }
}

/** A newcomer's end. Its state is that of the others when this resolves. */
export async function follow(
  ranks: FollowedRanks,
  state: { step: number; readonly tensors: readonly TensorLike[] },
  update: (averages: readonly TensorLike[]) => void,
): Promise<void> {
  const { group, donors, newcomers } = ranks;
  const receive = (tensors: readonly TensorLike[]): Promise<void> => handOn(group, tensors, donors, newcomers);
  await receive(state.tensors);
  let [kinds, averages, tensors]: [string, readonly TensorLike[], readonly Tensor[]] = ['', [], []];
  for (;;) {
    const count = new Float64Array(1);
    await receive([count]);
    if (count[0] < 0) break;
    const table = new Float64Array(3 * count[0]);
    await receive([table]);
    if (String(table) !== kinds) {
      tensors.forEach((tensor) => group.release(tensor));
      kinds = String(table);
      const each = Array.from({ length: count[0] }, (_, index) => table.subarray(3 * index, 3 * index + 3));
      tensors = each.map(([code, elements]) => group.tensor(dtypes[code].name, [elements]));
      averages = tensors.map((tensor, index) => (each[index][2] ? tensor : tensor.data));
    }
    await receive(tensors);
    update(averages);
    state.step++;
  }
  tensors.forEach((tensor) => group.release(tensor));
}
