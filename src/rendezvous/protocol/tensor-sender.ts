/** The sender's end of RecvTensor: answers requests with tensors of its step table. A state machine: records in, records and writes out.
 *
 *     request ──▶ waiting for Send ──value──▶ metadata equal? ── yes ──▶ write, immediate = request index
 *                      │    │                       └─ no ──▶ fits the destination? ── yes ──▶ metadata, write
 *                      │    └─dead, error──▶ says so                   └─ no ──▶ metadata ◀── re-request ──▶ write
 *                      └─cancel──▶ cancelled: the destination will not be written any more
 *
 *  Every request gets exactly one end: a write, dead, error or cancelled. */
import { ShoalError } from '../../base/errors.ts';
import type { RemoteRegion } from '../../fabric/fabric.ts';
import type { Cancel, Waiter } from '../table/rendezvous.ts';
import { sameMetadata, writable, type WritableTensor } from '../value/tensor-metadata.ts';
import { isStaged, type SentValue, type StagedTensor } from '../value/staged-tensor.ts';
import { spanOf } from '../value/tensor-value.ts';
import type { TensorCounters } from './counters.ts';
import { cutWrite, type Outbox, type PendingWrite } from './outbox.ts';
import { PieceWriter, type Staging } from './piece-writer.ts';
import type { ByteReader } from '../../base/bytes.ts';
import {
  type Destination,
  MetadataNext,
  nameBytesMax,
  nowhere,
  pieceImmediate,
  type PiecePlan,
  readDestination,
  readMetadata,
  readPlan,
  readRegion,
  RecordType,
  standingDepthMax,
  writeError,
  writeMetadata,
} from './records.ts';
import { FusedResponse, nothingToCancel, responseOf, type StandingResponse, type TensorResponse } from './tensor-response.ts';
import { ToldNames } from './told-names.ts';

export interface TensorSenderOptions {
  readonly outbox: Outbox;
  readonly counters: TensorCounters;
  /** The meeting with Sends; parks a request that comes before its step. */
  take(stepId: number, key: string, waiter: Waiter<SentValue>): Cancel;
  /** A tensor is on its way, with all that it was asked for with; or that it is dead, or has failed. */
  onAnswered?(stepId: number, key: string): void;
  /** Takes back a value that the connection's end has kept from leaving. @returns false, as by default: it fails. */
  giveBack?(stepId: number, key: string, value: SentValue): boolean;
  /** Called once after `close`, when no value is read any more. */
  onSettled?(): void;
  /** Memory of the carrier's, for what cannot be written from where it is. @throws ShoalError `out-of-memory`. */
  stage(bytes: number): Staging;
  /** Requests of the peer that are not answered, slots counted. */
  readonly requestsMax: number;
  readonly namesMax: number;
  readonly regionsMax: number;
}

export class TensorSender {
  readonly #options: TensorSenderOptions;
  readonly #pieces: PieceWriter;
  readonly #names: ToldNames;
  readonly #regions = new Map<number, RemoteRegion>();
  readonly #responses = new Map<number, TensorResponse>();
  readonly #fused = new Map<number, FusedResponse>();
  readonly #standing = new Map<number, StandingResponse>();
  #count = 0;
  /** Values that are read or written. */
  #leaving = 0;
  #isClosed = false;
  /** Records that are for a sender, by type. */
  readonly #records: Readonly<Record<number, (reader: ByteReader) => void>> = {
    [RecordType.Name]: (reader) => this.#names.tell(reader.u32(), reader.text(nameBytesMax)),
    [RecordType.Region]: (reader) => this.#onRegion(readRegion(reader)),
    [RecordType.Forget]: (reader) => this.#regions.delete(reader.u32()),
    [RecordType.Request]: (reader) => this.#onRequest(reader, undefined),
    [RecordType.RequestInPieces]: (reader) => this.#onRequest(reader, readPlan(reader)),
    [RecordType.Rerequest]: (reader) => this.#onRerequest(reader),
    [RecordType.Cancel]: (reader) => this.#onCancel(reader.u32()),
    [RecordType.FusedRequest]: (reader) => this.#onFusedRequest(reader),
    [RecordType.FusedRerequest]: (reader) => this.#onFusedRerequest(reader),
    [RecordType.Standing]: (reader) => this.#onStanding(reader),
    [RecordType.Renew]: (reader) => this.#onRenew(reader.u32(), reader.u16()),
  };

  constructor(options: TensorSenderOptions) {
    this.#options = options;
    this.#pieces = new PieceWriter(options);
    this.#names = new ToldNames(options.namesMax);
  }

  /** Requests that are not answered, slots counted. */
  get unanswered(): number {
    return this.#count;
  }

  /** @returns false when the record is not for a sender. @throws ShoalError `protocol`. */
  onRecord(type: number, reader: ByteReader): boolean {
    const take = this.#records[type];
    take?.(reader);
    return take !== undefined;
  }

  /** The connection is over: Sends that it asked for wait for another. @param cause of those that were on their way. */
  close(cause: ShoalError): void {
    this.#isClosed = true;
    const all = [...this.#responses.values(), ...[...this.#fused.values()].flatMap(({ slots }) => slots)];
    this.#responses.clear();
    this.#fused.clear();
    this.#standing.clear();
    for (const response of all) {
      response.cancel();
      response.stopReading(cause);
      if (response.offered !== undefined) this.#end(response.stepId, response.key, response.offered.value, cause);
    }
    if (this.#leaving === 0) this.#options.onSettled?.();
  }

  // ── what the receiver says ─────────────────────────────────────────────────────────────────────────────────────

  #onRegion(region: RemoteRegion): void {
    if (this.#regions.size >= this.#options.regionsMax)
      throw new ShoalError('protocol', `the peer tells of more than ${this.#options.regionsMax} regions`);
    this.#regions.set(region.rkey, region);
  }

  #onRequest(reader: ByteReader, plan: PiecePlan | undefined): void {
    const request = reader.u32();
    this.#checkNew(request, 1);
    const response = this.#readResponse(reader, request, reader.varint(), { plan });
    this.#responses.set(request, response);
    this.#take(response);
  }

  #onRerequest(reader: ByteReader): void {
    const request = reader.u32();
    const destination = readDestination(reader, this.#regions);
    this.#writeTo(this.#responses.get(request), destination, `request ${request}`);
  }

  #onCancel(request: number): void {
    const { outbox } = this.#options;
    const response = this.#responses.get(request);
    const fused = this.#fused.get(request);
    const standing = this.#standing.get(request);
    for (const each of standing?.slots ?? fused?.slots ?? (response === undefined ? [] : [response])) {
      each.cancel();
      each.stopReading();
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

  #onFusedRequest(reader: ByteReader): void {
    const request = reader.u32();
    const stepId = reader.varint();
    const count = reader.u16();
    if (count === 0) throw new ShoalError('protocol', `the fused request ${request} has no slots`);
    this.#checkNew(request, count);
    const group = new FusedResponse(request, count, this.#options.outbox, this.#completeFused);
    for (let slot = 0; slot < count; slot++) {
      const response = this.#readResponse(reader, request, stepId, { fused: { group, slot } });
      if (slot > 0 && response.ends !== group.slots[0].ends) {
        const message = `the fused request ${request} is for one sender and one receiver, not '${group.slots[0].key}' and '${response.key}'`;
        throw new ShoalError('protocol', message);
      }
      group.slots.push(response);
    }
    this.#fused.set(request, group);
    for (const response of group.slots) this.#take(response);
  }

  #onFusedRerequest(reader: ByteReader): void {
    const request = reader.u32();
    const group = this.#fused.get(request);
    const count = reader.u16();
    for (let k = 0; k < count; k++) {
      const slot = reader.u16();
      const destination = readDestination(reader, this.#regions);
      this.#writeTo(group?.slots[slot], destination, `slot ${slot} of the fused request ${request}`);
    }
    if (group?.hasDestinations !== true)
      throw new ShoalError('protocol', `the fused request ${request} has destinations for some of its slots only`);
  }

  #onStanding(reader: ByteReader): void {
    const base = reader.u32();
    const firstStep = reader.varint();
    const { key, ends } = this.#names.readKey(reader);
    const metadata = readMetadata(reader);
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

  #readResponse(
    reader: ByteReader,
    request: number,
    stepId: number,
    { fused, plan }: Partial<Pick<TensorResponse, 'fused' | 'plan'>>,
  ): TensorResponse {
    const { key, ends } = this.#names.readKey(reader);
    const destination = readDestination(reader, this.#regions);
    return responseOf({ request, stepId, key, ends, destination, metadata: readMetadata(reader), fused, plan });
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

  #onValue(response: TensorResponse, value: SentValue | undefined): void {
    response.cancel = nothingToCancel;
    if (value === undefined) return this.#onDead(response);
    const { counters, outbox } = this.#options;
    let tensor: WritableTensor;
    try {
      tensor = writable(value);
    } catch (thrown) {
      return this.#onFailed(response, ShoalError.from(thrown));
    }
    const { metadata } = tensor;
    if (metadata.dtype === 'string') counters.bytesSerialized += metadata.bytes;
    const isExpected = response.metadata !== undefined && sameMetadata(response.metadata, metadata);
    const next = fits(tensor, response.destination)
      ? metadata.bytes === 0
        ? MetadataNext.Empty
        : MetadataNext.Written
      : MetadataNext.Rerequest;
    if (next === MetadataNext.Rerequest) response.offered = { value, tensor };
    if (response.fused !== undefined) {
      const { group, slot } = response.fused;
      group.slotKnown(slot, next, !isExpected || next === MetadataNext.Rerequest ? metadata : undefined);
      if (next !== MetadataNext.Rerequest) this.#write(response, value, tensor);
      return;
    }
    if (!isExpected || next === MetadataNext.Rerequest) {
      const writer = outbox.record(RecordType.Metadata);
      writer.u32(response.request);
      writer.u8(next);
      writeMetadata(writer, metadata);
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
  }

  #onDead(response: TensorResponse): void {
    if (response.fused !== undefined) return response.fused.group.slotEnded(response.fused.slot);
    this.#options.outbox.record(RecordType.Dead).u32(response.request);
    this.#answered(response);
  }

  #onFailed(response: TensorResponse, cause: ShoalError): void {
    response.cancel = nothingToCancel;
    if (response.fused === undefined) this.#tellError(response, cause);
    else response.fused.group.slotEnded(response.fused.slot, cause);
  }

  /** A tensor that the receiver may know of already could not be read. */
  #onUnread(response: TensorResponse, cause: ShoalError): void {
    if (response.fused === undefined) this.#tellError(response, cause);
    else response.fused.group.slotFailed(response.fused.slot, cause);
  }

  #tellError(response: TensorResponse, cause: ShoalError): void {
    const writer = this.#options.outbox.record(RecordType.Error);
    writer.u32(response.request);
    writeError(writer, cause);
    this.#answered(response);
  }

  /** The receiver has made room. @throws ShoalError `protocol` for one that waits for none, or needs more. */
  #writeTo(response: TensorResponse | undefined, destination: Destination, what: string): void {
    if (response?.offered === undefined) throw new ShoalError('protocol', `${what} waits for no destination`);
    const { value, tensor } = response.offered;
    if (!fits(tensor, destination)) throw new ShoalError('protocol', `${what} has no room for the tensor it was told of`);
    response.offered = undefined;
    response.destination = destination;
    this.#write(response, value, tensor);
  }

  /** Into the destination. Then the request is answered, if it is not one of several slots. */
  #write(response: TensorResponse, value: SentValue, { bytes, metadata }: WritableTensor): void {
    const { outbox, counters } = this.#options;
    const { request, stepId, key, destination, fused, plan } = response;
    if (metadata.bytes === 0) {
      counters.emptyTensors++;
      if (fused === undefined) outbox.complete(request);
      value.release?.();
      return this.#written(response);
    }
    if (isStaged(value)) return this.#writeStaged(response, value);
    const { region, offset, bytes: room } = destination;
    const write: PendingWrite = {
      owner: request,
      source: spanOf(bytes!),
      region,
      offset,
      room,
      immediate: fused === undefined ? request : undefined,
      onDone: (cause) => this.#left(stepId, key, value, cause),
    };
    this.#leaving++;
    if (plan === undefined) outbox.write(write);
    else for (const piece of cutWrite(write, plan.bytes, (index) => pieceImmediate({ request, plan }, index))) outbox.write(piece);
    this.#written(response);
  }

  #writeStaged(response: TensorResponse, tensor: StagedTensor): void {
    const { request, stepId, key, destination, plan, fused } = response;
    this.#leaving++;
    response.stopReading = this.#pieces.write(
      tensor,
      { request, destination, plan, completes: fused === undefined },
      {
        onRead: (cause) => this.#left(stepId, key, tensor, cause),
        onPosted: (cause) => {
          response.stopReading = nothingToCancel;
          if (cause === undefined) this.#written(response);
          else this.#onUnread(response, cause);
        },
      },
    );
  }

  /** Nothing reads the value any more. */
  #left(stepId: number, key: string, value: SentValue, cause: ShoalError | undefined): void {
    this.#leaving--;
    this.#end(stepId, key, value, cause);
    if (this.#isClosed && this.#leaving === 0) this.#options.onSettled?.();
  }

  #end(stepId: number, key: string, value: SentValue, cause: ShoalError | undefined): void {
    const isLost = cause !== undefined && (this.#isClosed || cause.code === 'peer-lost' || (cause.code === 'closed' && !isStaged(value)));
    const isBack = isLost && this.#options.giveBack?.(stepId, key, value) === true;
    if (!isBack) value.release?.(cause);
  }

  #written(response: TensorResponse): void {
    if (response.fused === undefined) this.#answered(response);
    else response.fused.group.slotDone();
  }

  readonly #completeFused = (group: FusedResponse): void => {
    const { outbox, onAnswered } = this.#options;
    this.#fused.delete(group.request);
    this.#count -= group.slots.length;
    outbox.complete(group.request);
    if (onAnswered !== undefined) for (const { stepId, key } of group.slots) onAnswered(stepId, key);
  };

  #answered(response: TensorResponse): void {
    const { standing, request, stepId, key } = response;
    this.#options.onAnswered?.(stepId, key);
    if (standing === undefined) {
      this.#responses.delete(request);
      this.#count--;
    } else standing.answered[standing.slots.indexOf(response)] = true;
  }
}

function fits({ metadata: { bytes } }: WritableTensor, destination: Destination): boolean {
  return bytes === 0 || (destination !== nowhere && bytes <= destination.bytes);
}
