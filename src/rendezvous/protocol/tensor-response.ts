/** Requests of the peer, until they are answered: RdmaTensorResponse of the document. A fused one has a response for each slot; its status
 *  tells of slots that are not simply written, and one immediate that all are complete. */
import type { ShoalError } from '../../base/errors.ts';
import type { Cancel } from '../table/rendezvous.ts';
import type { SentValue } from '../value/staged-tensor.ts';
import type { TensorMetadata, WritableTensor } from '../value/tensor-metadata.ts';
import type { Release } from '../value/tensor-value.ts';
import type { Outbox } from './outbox.ts';
import { RecordType, SlotStatus, writeError, writeMetadata, type Destination, type PiecePlan } from './records.ts';

/** One tensor that is asked for, until it is answered. */
export interface TensorResponse {
  readonly request: number;
  stepId: number;
  readonly key: string;
  /** Sender, incarnation and receiver of the key. */
  readonly ends: string;
  destination: Destination;
  /** The metadata that the receiver expects. */
  metadata: TensorMetadata | undefined;
  cancel: Cancel;
  /** The value that has come, and waits for a destination. */
  offered: { readonly value: SentValue; readonly tensor: WritableTensor } | undefined;
  /** Ends the reading of a tensor in pieces. */
  stopReading: Release;
  /** The receiver wants to be told of pieces. */
  readonly plan: PiecePlan | undefined;
  readonly fused: { readonly group: FusedResponse; readonly slot: number } | undefined;
  readonly standing: StandingResponse | undefined;
}

export interface StandingResponse {
  readonly slots: TensorResponse[];
  /** Slot that the next renewal is for, and its step. */
  nextSlot: number;
  nextStep: number;
  answered: boolean[];
}

export const nothingToCancel: Cancel = () => {};

export function responseOf(
  known: Pick<TensorResponse, 'request' | 'stepId' | 'key' | 'ends' | 'destination' | 'metadata'> &
    Partial<Pick<TensorResponse, 'fused' | 'standing' | 'plan'>>,
): TensorResponse {
  return {
    fused: undefined,
    standing: undefined,
    plan: undefined,
    cancel: nothingToCancel,
    stopReading: nothingToCancel,
    offered: undefined,
    ...known,
  };
}

interface ToldSlot {
  readonly slot: number;
  readonly status: number;
  readonly next?: number;
  readonly metadata?: TensorMetadata;
  readonly cause?: ShoalError | undefined;
}

export class FusedResponse {
  readonly request: number;
  readonly slots: TensorResponse[] = [];
  readonly #outbox: Outbox;
  readonly #onComplete: (group: FusedResponse) => void;
  /** Slots that nothing is known of yet. */
  #unknown: number;
  /** Slots that are not written, and not told to be dead or failed. */
  #open: number;
  /** Slots whose status must be told: other metadata, dead, failed. */
  #told: ToldSlot[] = [];

  /** @param onComplete told when all slots are written or told. */
  constructor(request: number, count: number, outbox: Outbox, onComplete: (group: FusedResponse) => void) {
    this.request = request;
    this.#unknown = this.#open = count;
    this.#outbox = outbox;
    this.#onComplete = onComplete;
  }

  /** Each slot is known, and those that need a destination have one. */
  get hasDestinations(): boolean {
    return this.#unknown === 0 && this.slots.every(({ offered }) => offered === undefined);
  }

  /** A slot's tensor is here. @param metadata that the receiver must be told. */
  slotKnown(slot: number, next: number, metadata: TensorMetadata | undefined): void {
    if (metadata !== undefined) this.#told.push({ slot, status: SlotStatus.Metadata, next, metadata });
    this.#known();
  }

  /** A slot has no tensor: it is dead, or has failed. */
  slotEnded(slot: number, cause?: ShoalError): void {
    this.#told.push({ slot, status: cause === undefined ? SlotStatus.Dead : SlotStatus.Error, cause });
    this.#known();
    this.slotDone();
  }

  /** A slot that the receiver may know of could not be read. */
  slotFailed(slot: number, cause: ShoalError): void {
    this.#told = this.#told.filter((each) => each.slot !== slot);
    this.#told.push({ slot, status: SlotStatus.Error, cause });
    if (this.#unknown === 0) this.#tell();
    this.slotDone();
  }

  /** A slot is written, or told. */
  slotDone(): void {
    if (--this.#open === 0) this.#onComplete(this);
  }

  #known(): void {
    if (--this.#unknown === 0) this.#tell();
  }

  #tell(): void {
    const told = this.#told;
    if (told.length === 0) return;
    this.#told = [];
    const writer = this.#outbox.record(RecordType.FusedStatus);
    writer.u32(this.request);
    writer.u16(told.length);
    for (const { slot, status, next, metadata, cause } of told) {
      writer.u16(slot);
      writer.u8(status);
      if (metadata !== undefined) {
        writer.u8(next!);
        writeMetadata(writer, metadata);
      } else if (cause !== undefined) writeError(writer, cause);
    }
  }
}
