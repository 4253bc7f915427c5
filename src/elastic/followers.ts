/** Newcomers that follow: they get the state of one step while the others go on, and then the averages of every later step, by which they
 *  make the same updates until they have caught up.
 *
 *      others     170 │ 171   172         173    174    …  180 │ enter │ 181
 *                     │ get ready   └─ state of 172 ─▶  173 …  180 ─▶  │
 *      newcomer       │ gets ready                      173 …    180   │ 181
 *
 *  In the first steps newcomers and then the others take memory for averages: where nobody has used it before, that may take longer than to
 *  receive them. What is not sent when step 173 ends is copied. Each of the others sends a part of the averages. They wait in copies while
 *  the state is on its way; when there are several, the others wait as well. It must not know the model. */
import { operand } from '../group/caller/call-buffers.ts';
import type { TensorLike } from '../group/caller/types.ts';
import { dtypeInfo, dtypes } from '../memory/dtype.ts';
import { Tensor } from '../memory/tensor.ts';
import { StateTransfer, type FollowedRanks } from './state-donors.ts';

/** Messages to a newcomer for one step: the number of averages, what they are, and their elements. */
const messagesOfStep = 3;
/** Messages that a rank keeps before it waits. */
const keptMax = 4 * messagesOfStep;
/** The step in which the state is sent: the first one is of a newcomer's memory, the second of the others'. */
const stateStep = 3;

/** The state that newcomers get, and the number of steps that it has made. */
interface FollowedState {
  step: number;
  readonly tensors: readonly TensorLike[];
}

/** For each average: the code of its dtype, its elements, and 1 for a tensor. */
export function kindsOf(averages: readonly TensorLike[]): readonly number[] {
  const operands = averages.map((each) => operand(each, 'an average'));
  return operands.flatMap(({ value, dtype, count }) => [dtypeInfo(dtype).code, count, Number(value instanceof Tensor)]);
}

/** A donor's end. */
export class Followers {
  readonly #ranks: FollowedRanks;
  #steps = 0;
  #transfer: StateTransfer | undefined;
  #sent = Promise.resolve();
  /** Messages that have not been sent. */
  #kept = 1;
  #failure: unknown;

  constructor(ranks: FollowedRanks) {
    this.#ranks = ranks;
  }

  /** True when this rank has sent all but the last step, or a newcomer is lost. */
  get isOver(): boolean {
    return this.#transfer !== undefined && this.#kept <= messagesOfStep;
  }

  /** A step begins. */
  begin({ step, tensors }: FollowedState): void {
    if (++this.#steps !== stateStep) return;
    this.#transfer = new StateTransfer(this.#ranks, [...tensors, Float64Array.of(step)]);
    this.#sent = this.#send(this.#transfer);
  }

  /** Sends copies of a step's averages. The state may change when this resolves. */
  async give(averages: readonly TensorLike[], kinds: readonly number[]): Promise<void> {
    if (this.#steps === 1) void this.#warm(averages).catch(() => undefined);
    if (this.#transfer === undefined) return;
    await this.#transfer.detach();
    if (this.#kept >= keptMax) await this.#sent;
    for (const message of [[Float64Array.of(averages.length)], [Float64Array.from(kinds)], averages]) await this.#give(message);
  }

  /** Tells the newcomers that no more steps follow. @throws what kept them from following. */
  async end(state: FollowedState): Promise<void> {
    while (this.#transfer === undefined) this.begin(state);
    await this.#give([Float64Array.of(-1)]);
    await this.#sent;
    if (this.#failure !== undefined) throw this.#failure;
  }

  /** Makes the copies of a step, and drops them: later ones take their memory. Where there is none, those say so. */
  async #warm(averages: readonly TensorLike[]): Promise<void> {
    const transfer = new StateTransfer(this.#ranks, averages);
    await transfer.detach().finally(() => transfer.drop());
  }

  async #give(message: readonly TensorLike[]): Promise<void> {
    const transfer = new StateTransfer(this.#ranks, message);
    this.#kept++;
    this.#sent = this.#sent.then(() => this.#send(transfer));
    await transfer.detach();
  }

  async #send(transfer: StateTransfer): Promise<void> {
    await transfer.run(this.#failure).catch((thrown: unknown) => void (this.#failure = thrown));
    this.#kept--;
  }
}

/** A newcomer's end. Its state is that of the others when this resolves. @param kinds those of the averages, as far as they are known. */
export async function follow(
  ranks: FollowedRanks,
  state: FollowedState,
  update: (averages: readonly TensorLike[]) => void,
  kinds: readonly number[],
): Promise<void> {
  const { group } = ranks;
  const receive = (tensors: readonly TensorLike[]): Promise<void> => new StateTransfer(ranks, tensors).run();
  let [ready, tensors]: [readonly number[], readonly Tensor[]] = [[], []];
  const makeReady = (next: readonly number[]): void => {
    if (String(next) === String(ready)) return;
    tensors.forEach((tensor) => group.release(tensor));
    tensors = Array.from({ length: next.length / 3 }, (_, index) => group.tensor(dtypes[next[3 * index]].name, [next[3 * index + 1]]));
    ready = next;
  };
  makeReady(kinds);
  const step = new Float64Array(1);
  await receive([...state.tensors, step]);
  for ([state.step] = step; ; state.step++) {
    const count = new Float64Array(1);
    await receive([count]);
    if (count[0] < 0) break;
    const table = new Float64Array(3 * count[0]);
    await receive([table]);
    makeReady([...table]);
    await receive(tensors);
    update(tensors.map((tensor, index) => (ready[3 * index + 2] === 1 ? tensor : tensor.data)));
  }
  makeReady([]);
}
