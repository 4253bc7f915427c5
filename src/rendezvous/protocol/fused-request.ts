/** Several tensors that are asked for by one request: a slot for each, and a status for those that are not simply written. */
import type { ByteReader } from '../../base/bytes.ts';
import { ShoalError } from '../../base/errors.ts';
import type { Indexed } from './pending-table.ts';
import { MetadataNext, readError, readMetadata, SlotStatus } from './records.ts';
import { unanswered, type FusedWaiter, type SlotOutcome, type Unanswered } from './tensor-carrier.ts';
import type { ReceiveBuffer, ReceiveMemory } from './pooled-memory.ts';
import type { TensorRequest } from './tensor-request.ts';

export class FusedRequest implements Indexed {
  readonly kind = 'fused';
  readonly index: number;
  readonly indices = 1;
  readonly stepId: number;
  readonly slots: readonly TensorRequest[];
  readonly waiter: FusedWaiter;
  readonly deadlineMs: number;
  /** The request that goes on after the connection has ended. */
  moved: Unanswered | undefined;
  readonly #outcomes: (SlotOutcome | undefined)[];

  constructor(slots: readonly TensorRequest[], waiter: FusedWaiter, deadlineMs: number) {
    [{ index: this.index, stepId: this.stepId }] = slots;
    this.slots = slots;
    this.waiter = waiter;
    this.deadlineMs = deadlineMs;
    this.#outcomes = slots.map(() => undefined);
  }

  get keys(): readonly string[] {
    return this.slots.map(({ key }) => key);
  }

  get count(): number {
    return this.slots.length;
  }

  get buffers(): readonly ReceiveBuffer[] {
    return this.slots.flatMap(({ buffers }) => buffers);
  }

  /** Its connection has ended. */
  unanswered(): Unanswered {
    const { stepId, keys, waiter } = this;
    this.moved = unanswered(keys, stepId, waiter, (carrier) => carrier.recvFused(stepId, keys, waiter));
    return this.moved;
  }

  /** The slot, which has no outcome yet. @throws ShoalError `protocol` for another. */
  openSlot(slot: number): TensorRequest {
    const request = this.slots[slot] as TensorRequest | undefined;
    if (request === undefined || this.#outcomes[slot] !== undefined)
      throw new ShoalError('protocol', `a status for slot ${slot} of request ${this.index}`);
    return request;
  }

  /** @param cause undefined: the slot is dead. */
  end(slot: number, cause: ShoalError | undefined): void {
    this.#outcomes[slot] = cause === undefined ? { value: undefined } : { cause };
  }

  /** All slots are written or told. @throws ShoalError `protocol` when one has no place. */
  complete(memory: ReceiveMemory): SlotOutcome[] {
    return this.slots.map((slot, k): SlotOutcome => {
      const known = this.#outcomes[k];
      if (known === undefined) return { value: slot.recvTensorContent(memory) };
      if (slot.buffer !== undefined) memory.free(slot.buffer);
      return known;
    });
  }
}

/** @param fused undefined: nobody waits for the request any more.
 *  @returns slots that have another destination now, and the reason for which one has none. @throws ShoalError `protocol`. */
export function readFusedStatus(
  reader: ByteReader,
  index: number,
  fused: FusedRequest | undefined,
  { memory, peer }: { readonly memory: ReceiveMemory; readonly peer: () => string },
): { readonly wanting: readonly number[]; readonly lack: ShoalError | undefined } {
  const wanting: number[] = [];
  let lack: ShoalError | undefined;
  for (let count = reader.u16(); count > 0; count--) {
    const slot = reader.u16();
    const status = reader.u8();
    const request = fused?.openSlot(slot);
    if (status === SlotStatus.Metadata) {
      const next = reader.u8();
      const metadata = readMetadata(reader);
      if (metadata === undefined || next > MetadataNext.Empty)
        throw new ShoalError('protocol', `the metadata for slot ${slot} of request ${index} are none`);
      if (request === undefined || lack !== undefined) continue;
      try {
        request.recvTensorMetadata(memory, metadata, next);
      } catch (thrown) {
        lack = ShoalError.from(thrown);
        if (lack.code === 'protocol') throw lack;
      }
      if (next === MetadataNext.Rerequest) wanting.push(slot);
    } else if (status === SlotStatus.Dead) fused?.end(slot, undefined);
    else if (status === SlotStatus.Error) {
      const cause = readError(reader, peer());
      fused?.end(slot, cause);
    } else throw new ShoalError('protocol', `slot ${slot} of request ${index} has status ${status}`);
  }
  return { wanting, lack };
}
