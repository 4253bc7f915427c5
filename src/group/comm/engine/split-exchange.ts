/** An all-to-all with splits, of which each rank knows only its own, in the comm thread: two operations in the place of the call. Later
 *  calls stay behind both, so that the order of calls is the same on all ranks.
 *
 *      all-gather of all parts ─▶ table ─▶ the all-to-all has its plan, and goes on
 *                                   └────▶ parts contradict each other: it ends with `mismatch`, on every rank
 *
 *  It must not know queues, nor when an operation runs. */
import { ShoalError } from '../../../base/errors.ts';
import type { CollectiveCall, Place, SplitParts } from '../../../call/contract.ts';
import type { SubmittedCall } from './call-queue.ts';
import type { GroupContext, PlacedCall } from './group-context.ts';
import type { ScratchBlock } from '../links/scratch-pool.ts';

export class SplitExchange {
  readonly #group: GroupContext;

  constructor(group: GroupContext) {
    this.#group = group;
  }

  /** The call has two numbers: `sequence` and the next. @throws ShoalError when nothing has been begun. */
  submit(request: SubmittedCall, { sends, receives }: SplitParts): void {
    const { size, plans, world } = this.#group;
    const { sequence, timeoutMs } = request;
    const call = exchangeOf(request.call, size);
    const plan = plans.prepare(call);
    const bytes = partBytes(size);
    const block = world.scratch.take(bytes * (size + 1));
    new Float64Array(block.region.buffer, 0, 2 * size).set([...sends, ...receives]);
    const buffers = { input: { ...block, offset: 0, bytes }, output: { ...block, offset: bytes, bytes: bytes * size } };
    // When the exchange fails, so does the group, and with it all that waits. Others may still be writing to the block then.
    const complete = (error?: ShoalError): void => {
      if (!error) this.#goOn(transfer, block);
    };
    this.#group.enqueue({ way: { path: 'engine' }, sequence, call, buffers, timeoutMs, complete }, plan);
    const transfer = this.#group.enqueue({ ...request, sequence: sequence + 1 }, undefined);
  }

  #goOn(transfer: PlacedCall, block: ScratchBlock): void {
    const { size, plans, world } = this.#group;
    const all = new Float64Array(block.region.buffer, partBytes(size), 2 * size * size).slice();
    world.scratch.give(block);
    try {
      const splits = tableOf(all, this.#group);
      const count = splits.flat().reduce((sum, each) => sum + each, 0);
      transfer.call = { ...transfer.call, count, splits, parts: undefined };
      transfer.plan = plans.prepare(transfer.call);
    } catch (thrown) {
      transfer.refusal = ShoalError.from(thrown, 'usage');
    }
  }
}

/** The call on which ranks agree first: an all-gather of every rank's part. */
function exchangeOf({ dtype, name, site }: CollectiveCall, size: number): CollectiveCall {
  const named = JSON.stringify(['allToAll splits', dtype, name]);
  return { kind: 'all-gather', dtype: 'float64', count: 2 * size * size, name: named, site };
}

/** Bytes of a rank's part in that all-gather. */
function partBytes(size: number): number {
  return 2 * size * Float64Array.BYTES_PER_ELEMENT;
}

/** Table[a][b]: elements that rank a sends to rank b. @param all every rank's part, in rank order.
 *  @throws ShoalError `mismatch` naming two ranks that disagree, the same on every rank. */
function tableOf(all: Float64Array, { rank: own, size }: Place): number[][] {
  const row = (rank: number, part: number): number[] => [...all.subarray((2 * rank + part) * size, (2 * rank + part + 1) * size)];
  const ranks = Array.from({ length: size }, (_, rank) => rank);
  const sent = ranks.map((rank) => row(rank, 0));
  const expected = ranks.map((rank) => row(rank, 1));
  for (const from of ranks) {
    for (const to of ranks) {
      if (sent[from][to] === expected[to][from]) continue;
      const message = `allToAll: rank ${from} sends ${sent[from][to]} elements to rank ${to}, which expects ${expected[to][from]}; inputSplits[to] and outputSplits[from] must agree`;
      throw new ShoalError('mismatch', message, { operation: 'all-to-all', rank: own, peer: from === own ? to : from });
    }
  }
  return sent;
}
