/** The sender's end of RecvTensor: answers requests with tensors of its step table. A state machine: records in, records and writes out.
 *
 *     request ──▶ waiting for Send ──value──▶ metadata equal? ── yes ──▶ write, immediate = request index
 *                      │    │                       └─ no ──▶ fits the destination? ── yes ──▶ metadata, write
 *                      │    └─dead, error──▶ says so                   └─ no ──▶ metadata ◀── re-request ──▶ write
 *                      └─cancel──▶ cancelled: the destination will not be written any more
 *
 *  Every request gets exactly one end: a write, dead, error or cancelled. */
import { ShoalError, errorCodes } from '../../base/errors.ts';
import type { RemoteRegion } from '../../fabric/fabric.ts';
import type { Cancel, Waiter } from '../table/rendezvous.ts';
import { sameMetadata, writable, type TensorMetadata, type WritableTensor } from '../value/tensor-metadata.ts';
import { spanOf, type TensorValue } from '../value/tensor-value.ts';
import type { TensorCounters } from './counters.ts';
import type { Outbox } from './outbox.ts';
import type { RecordReader } from './record-codec.ts';
import {
  errorBytesMax,
  MetadataNext,
  nameBytesMax,
  nowhere,
  readDestination,
  readRegion,
  RecordType,
  SlotStatus,
  standingDepthMax,
  type Destination,
} from './records.ts';

export interface TensorSenderOptions {
  readonly outbox: Outbox;
  readonly counters: TensorCounters;
  /** Where Sends are met; parks what comes before its step. */
  take(stepId: number, key: string, waiter: Waiter<TensorValue>): Cancel;
  /** A tensor is on its way, with all that it was asked for with; or that it is dead, or has failed. */
  onAnswered?(stepId: number, key: string): void;
  /** Moves what is written into memory of the carrier's first: the design that writes without copies replace. */
  stage?(bytes: ArrayBufferView): { readonly bytes: ArrayBufferView; release(): void };
  /** Requests of the peer that are not answered, slots counted. */
  readonly requestsMax: number;
  readonly namesMax: number;
  readonly regionsMax: number;
}

/** One tensor that is asked for, until it is answered. */
interface TensorResponse {
  readonly request: number;
  stepId: number;
  readonly key: string;
  /** Sender, incarnation and receiver of the key. */
  readonly ends: string;
  destination: Destination;
  /** What the receiver expects. */
  metadata: TensorMetadata | undefined;
  cancel: Cancel;
  /** Has come, and waits for a destination. */
  offered: { readonly value: TensorValue; readonly tensor: WritableTensor } | undefined;
  readonly fused: { readonly group: FusedResponse; readonly slot: number } | undefined;
  readonly standing: StandingResponse | undefined;
}

/** A name that the receiver has told. */
interface ToldName {
  /** The key up to its frame. */
  readonly text: string;
  readonly outsideLoops: string;
  readonly ends: string;
}

interface FusedResponse {
  readonly request: number;
  readonly slots: TensorResponse[];
  /** Slots that nothing is known of yet. */
  pending: number;
  /** Slots whose status must be told: other metadata, dead, failed. */
  readonly told: {
    readonly slot: number;
    readonly status: number;
    readonly next?: number;
    readonly metadata?: TensorMetadata;
    readonly cause?: ShoalError;
  }[];
}

interface StandingResponse {
  readonly slots: TensorResponse[];
  /** Slot that the next renewal is for, and its step. */
  nextSlot: number;
  nextStep: number;
  answered: boolean[];
}

export class TensorSender {
  readonly #options: TensorSenderOptions;
  readonly #names = new Map<number, ToldName>();
  readonly #regions = new Map<number, RemoteRegion>();
  readonly #responses = new Map<number, TensorResponse>();
  readonly #fused = new Map<number, FusedResponse>();
  readonly #standing = new Map<number, StandingResponse>();
  #count = 0;

  constructor(options: TensorSenderOptions) {
    this.#options = options;
  }

  /** Requests that are not answered, slots counted. */
  get unanswered(): number {
    return this.#count;
  }

  /** @returns false when the record is not for a sender. @throws ShoalError `protocol`. */
  onRecord(type: number, reader: RecordReader): boolean {
    switch (type) {
      case RecordType.Name:
        this.#onName(reader.u32(), reader.text(nameBytesMax));
        return true;
      case RecordType.Region:
        this.#onRegion(readRegion(reader));
        return true;
      case RecordType.Forget:
        this.#regions.delete(reader.u32());
        return true;
      case RecordType.Request:
        this.#onRequest(reader);
        return true;
      case RecordType.Rerequest:
        this.#onRerequest(reader);
        return true;
      case RecordType.Cancel:
        this.#onCancel(reader.u32());
        return true;
      case RecordType.FusedRequest:
        this.#onFusedRequest(reader);
        return true;
      case RecordType.FusedRerequest:
        this.#onFusedRerequest(reader);
        return true;
      case RecordType.Standing:
        this.#onStanding(reader);
        return true;
      case RecordType.Renew:
        this.#onRenew(reader.u32(), reader.u16());
        return true;
      default:
        return false;
    }
  }

  /** The receiver is gone: Sends that it asked for wait for another. */
  close(): void {
    const all = [...this.#responses.values(), ...[...this.#fused.values()].flatMap(({ slots }) => slots)];
    this.#responses.clear();
    this.#fused.clear();
    this.#standing.clear();
    for (const response of all) {
      response.cancel();
      response.offered?.value.release?.();
    }
  }

  // ── what the receiver says ─────────────────────────────────────────────────────────────────────────────────────

  #onName(index: number, text: string): void {
    if (this.#names.size >= this.#options.namesMax && !this.#names.has(index))
      throw new ShoalError('protocol', `the peer names more than ${this.#options.namesMax} tensors`);
    this.#names.set(index, { text, outsideLoops: `${text};0:0`, ends: endsOf(text) });
  }

  #onRegion(region: RemoteRegion): void {
    if (this.#regions.size >= this.#options.regionsMax)
      throw new ShoalError('protocol', `the peer tells of more than ${this.#options.regionsMax} regions`);
    this.#regions.set(region.rkey, region);
  }

  #onRequest(reader: RecordReader): void {
    const request = reader.u32();
    this.#checkNew(request, 1);
    const response = this.#readResponse(reader, request, reader.varint());
    this.#responses.set(request, response);
    this.#take(response);
  }

  #onRerequest(reader: RecordReader): void {
    const request = reader.u32();
    const destination = readDestination(reader, this.#regions);
    const response = this.#responses.get(request);
    if (response?.offered === undefined) throw new ShoalError('protocol', `request ${request} waits for no destination`);
    response.destination = destination;
    const { offered } = response;
    response.offered = undefined;
    if (!fits(offered.tensor, destination))
      throw new ShoalError('protocol', `the re-request ${request} has no room for the tensor it was told of`);
    this.#write(response, offered.value, offered.tensor);
    this.#answered(response);
  }

  #onCancel(request: number): void {
    const { outbox } = this.#options;
    const response = this.#responses.get(request);
    const fused = this.#fused.get(request);
    const standing = this.#standing.get(request);
    for (const each of standing?.slots ?? fused?.slots ?? (response === undefined ? [] : [response])) {
      each.cancel();
      each.offered?.value.release?.();
      each.offered = undefined;
      this.#responses.delete(each.request);
      if (standing !== undefined) outbox.withdraw(each.request);
    }
    outbox.withdraw(request);
    if (this.#fused.delete(request)) this.#count -= fused!.slots.length;
    else if (this.#standing.delete(request)) this.#count -= standing!.slots.length;
    else if (response !== undefined) this.#count--;
    // The answer may be on its way: what is said now comes after it.
    outbox.record(RecordType.Cancelled).u32(request);
  }

  #onFusedRequest(reader: RecordReader): void {
    const request = reader.u32();
    const stepId = reader.varint();
    const count = reader.u16();
    if (count === 0) throw new ShoalError('protocol', `the fused request ${request} has no slots`);
    this.#checkNew(request, count);
    const group: FusedResponse = { request, slots: [], pending: count, told: [] };
    for (let slot = 0; slot < count; slot++) {
      const response = this.#readResponse(reader, request, stepId, { group, slot });
      if (slot > 0 && response.ends !== group.slots[0].ends)
        throw new ShoalError(
          'protocol',
          `the fused request ${request} is for one sender and one receiver, not '${group.slots[0].key}' and '${response.key}'`,
        );
      group.slots.push(response);
    }
    this.#fused.set(request, group);
    for (const response of group.slots) this.#take(response);
  }

  #onFusedRerequest(reader: RecordReader): void {
    const request = reader.u32();
    const group = this.#fused.get(request);
    const count = reader.u16();
    for (let k = 0; k < count; k++) {
      const slot = reader.u16();
      const destination = readDestination(reader, this.#regions);
      const response = group?.slots[slot];
      if (response?.offered === undefined)
        throw new ShoalError('protocol', `slot ${slot} of the fused request ${request} waits for no destination`);
      const { value, tensor } = response.offered;
      if (!fits(tensor, destination))
        throw new ShoalError('protocol', `slot ${slot} of the fused request ${request} has no room for the tensor it was told of`);
      response.offered = undefined;
      response.destination = destination;
      this.#write(response, value, tensor);
    }
    if (group === undefined || group.pending > 0 || group.slots.some(({ offered }) => offered !== undefined))
      throw new ShoalError('protocol', `the fused request ${request} has destinations for some of its slots only`);
    this.#completeFused(group);
  }

  #onStanding(reader: RecordReader): void {
    const base = reader.u32();
    const firstStep = reader.varint();
    const { key, ends } = this.#readKey(reader);
    const metadata = reader.metadata();
    const depth = reader.u16();
    if (depth === 0 || depth > standingDepthMax)
      throw new ShoalError('protocol', `the standing request ${base} is for ${depth} steps at a time`);
    this.#checkNew(base, depth);
    const standing: StandingResponse = { slots: [], nextSlot: 0, nextStep: firstStep + depth, answered: [] };
    for (let k = 0; k < depth; k++) {
      const request = (base + k) >>> 0;
      const destination = readDestination(reader, this.#regions);
      const response = responseOf({ request, stepId: firstStep + k, key, ends, destination, metadata, standing });
      standing.slots.push(response);
      standing.answered.push(false);
      this.#responses.set(request, response);
    }
    this.#standing.set(base, standing);
    for (const response of standing.slots) this.#take(response);
  }

  #onRenew(base: number, count: number): void {
    const standing = this.#standing.get(base);
    if (standing === undefined) throw new ShoalError('protocol', `request ${base} is not a standing one`);
    for (let k = 0; k < count; k++) {
      const response = standing.slots[standing.nextSlot];
      if (!standing.answered[standing.nextSlot])
        throw new ShoalError('protocol', `the standing request ${base} is renewed before it was answered`);
      standing.answered[standing.nextSlot] = false;
      response.stepId = standing.nextStep++;
      standing.nextSlot = (standing.nextSlot + 1) % standing.slots.length;
      this.#take(response);
    }
  }

  #readResponse(reader: RecordReader, request: number, stepId: number, fused?: TensorResponse['fused']): TensorResponse {
    const { key, ends } = this.#readKey(reader);
    const destination = readDestination(reader, this.#regions);
    return responseOf({ request, stepId, key, ends, destination, metadata: reader.metadata(), fused });
  }

  #readKey(reader: RecordReader): { readonly key: string; readonly ends: string } {
    const index = reader.u32();
    const name = this.#names.get(index);
    if (name === undefined) throw new ShoalError('protocol', `a request names tensor ${index}, which was not told`);
    const { text, outsideLoops, ends } = name;
    const [frame, iteration] = [reader.varint(), reader.varint()];
    // One string for all steps: tables find it by a hash that it has already.
    return { key: frame === 0 && iteration === 0 ? outsideLoops : `${text};${frame}:${iteration}`, ends };
  }

  #checkNew(request: number, count: number): void {
    if (this.#responses.has(request) || this.#fused.has(request))
      throw new ShoalError('protocol', `request ${request} is not answered yet and comes again`);
    if (this.#count + count > this.#options.requestsMax)
      throw new ShoalError('protocol', `the peer asks for more than ${this.#options.requestsMax} tensors at once`);
    this.#count += count;
  }

  // ── what the table says ────────────────────────────────────────────────────────────────────────────────────────

  #take(response: TensorResponse): void {
    response.cancel = this.#options.take(response.stepId, response.key, {
      receive: (value) => this.#onValue(response, value),
      fail: (cause) => this.#onFailed(response, cause),
    });
  }

  #onValue(response: TensorResponse, value: TensorValue | undefined): void {
    response.cancel = nothingToCancel;
    if (value === undefined) return this.#onDead(response);
    const { counters, outbox } = this.#options;
    let tensor: WritableTensor;
    try {
      tensor = writable(value);
    } catch (thrown) {
      return this.#onFailed(response, ShoalError.from(thrown));
    }
    if (tensor.isSerialized) counters.bytesSerialized += tensor.bytes.byteLength;
    const { metadata } = tensor;
    const isExpected = response.metadata !== undefined && sameMetadata(response.metadata, metadata);
    const next = fits(tensor, response.destination)
      ? metadata.bytes === 0
        ? MetadataNext.Empty
        : MetadataNext.Written
      : MetadataNext.Rerequest;
    if (next === MetadataNext.Rerequest) response.offered = { value, tensor };
    if (response.fused !== undefined) {
      const { group, slot } = response.fused;
      if (!isExpected || next === MetadataNext.Rerequest) group.told.push({ slot, status: SlotStatus.Metadata, next, metadata });
      if (next !== MetadataNext.Rerequest) this.#write(response, value, tensor);
      return this.#slotKnown(group);
    }
    if (!isExpected || next === MetadataNext.Rerequest) {
      const writer = outbox.record(RecordType.Metadata);
      writer.u32(response.request);
      writer.u8(next);
      writer.metadata(metadata);
      response.metadata = metadata;
      for (const slot of response.standing?.slots ?? []) slot.metadata = metadata;
      if (next === MetadataNext.Empty) {
        counters.emptyTensors++;
        value.release?.();
        return this.#answered(response);
      }
    }
    if (next === MetadataNext.Rerequest) return;
    this.#write(response, value, tensor);
    this.#answered(response);
  }

  #onDead(response: TensorResponse): void {
    if (response.fused !== undefined) {
      const { group, slot } = response.fused;
      group.told.push({ slot, status: SlotStatus.Dead });
      return this.#slotKnown(group);
    }
    this.#options.outbox.record(RecordType.Dead).u32(response.request);
    this.#answered(response);
  }

  #onFailed(response: TensorResponse, cause: ShoalError): void {
    response.cancel = nothingToCancel;
    if (response.fused !== undefined) {
      const { group, slot } = response.fused;
      group.told.push({ slot, status: SlotStatus.Error, cause });
      return this.#slotKnown(group);
    }
    const writer = this.#options.outbox.record(RecordType.Error);
    writer.u32(response.request);
    writer.u8(errorCodes.indexOf(cause.code));
    writer.text(shortened(cause.message));
    this.#answered(response);
  }

  /** Into the destination; the last of its request when it is not one of several slots. */
  #write(response: TensorResponse, value: TensorValue, { bytes }: WritableTensor): void {
    const { outbox, counters, stage } = this.#options;
    const { request, destination, fused } = response;
    if (bytes.byteLength === 0) {
      counters.emptyTensors++;
      if (fused === undefined) outbox.complete(request);
      return value.release?.();
    }
    const staged = stage?.(bytes);
    if (staged !== undefined) value.release?.();
    outbox.write({
      owner: request,
      source: spanOf(staged?.bytes ?? bytes),
      region: destination.region,
      offset: destination.offset,
      room: destination.bytes,
      completes: fused === undefined,
      onDone: staged === undefined ? () => value.release?.() : () => staged.release(),
    });
  }

  #slotKnown(group: FusedResponse): void {
    if (--group.pending > 0) return;
    this.#tellFused(group);
    if (group.slots.every(({ offered }) => offered === undefined)) this.#completeFused(group);
  }

  #tellFused({ request, told }: FusedResponse): void {
    if (told.length === 0) return;
    const writer = this.#options.outbox.record(RecordType.FusedStatus);
    writer.u32(request);
    writer.u16(told.length);
    for (const { slot, status, next, metadata, cause } of told) {
      writer.u16(slot);
      writer.u8(status);
      if (metadata !== undefined) {
        writer.u8(next!);
        writer.metadata(metadata);
      } else if (cause !== undefined) {
        writer.u8(errorCodes.indexOf(cause.code));
        writer.text(shortened(cause.message));
      }
    }
  }

  /** All slots are written or told: one immediate says so. */
  #completeFused(group: FusedResponse): void {
    const { outbox, onAnswered } = this.#options;
    this.#fused.delete(group.request);
    this.#count -= group.slots.length;
    outbox.complete(group.request);
    if (onAnswered !== undefined) for (const { stepId, key } of group.slots) onAnswered(stepId, key);
  }

  #answered(response: TensorResponse): void {
    const { standing, request, stepId, key } = response;
    this.#options.onAnswered?.(stepId, key);
    if (standing === undefined) {
      this.#responses.delete(request);
      this.#count--;
    } else standing.answered[standing.slots.indexOf(response)] = true;
  }
}

function responseOf(
  known: Pick<TensorResponse, 'request' | 'stepId' | 'key' | 'ends' | 'destination' | 'metadata'> &
    Partial<Pick<TensorResponse, 'fused' | 'standing'>>,
): TensorResponse {
  return { fused: undefined, standing: undefined, cancel: nothingToCancel, offered: undefined, ...known };
}

function fits({ bytes }: WritableTensor, destination: Destination): boolean {
  return bytes.byteLength === 0 || (destination !== nowhere && bytes.byteLength <= destination.bytes);
}

/** Sender, incarnation and receiver of a key. */
function endsOf(key: string): string {
  let end = -1;
  for (let part = 0; part < 3; part++) end = key.indexOf(';', end + 1);
  return key.slice(0, end);
}

const nothingToCancel: Cancel = () => {};

function shortened(message: string): string {
  return Buffer.from(message)
    .subarray(0, errorBytesMax)
    .toString('utf8')
    .replace(/\uFFFD+$/, '');
}
