/** The receiver's end of RecvTensor: caches each tensor's metadata, allocates the destination before it sends the request, and learns by the
 *  immediate that the tensor has arrived. A state machine: calls, records and immediates in; records and calls of waiters out.
 *
 *  When the waiter of a request gives up, the request is cancelled, and its buffer stays in quarantine until the sender confirms that it
 *  will not write to it: only then may the buffer's key be revoked, and its memory be reused. */
import { assert } from '../../base/assert.ts';
import type { Clock, Timer } from '../../base/clock.ts';
import { errorCodes, ShoalError, type ErrorCode } from '../../base/errors.ts';
import type { Cancel, Waiter } from '../table/rendezvous.ts';
import { describeKey } from '../table/rendezvous-key.ts';
import type { TensorMetadata } from '../value/tensor-metadata.ts';
import type { TensorValue } from '../value/tensor-value.ts';
import type { TensorCounters } from './counters.ts';
import type { ReceiveMemory, ReceiveBuffer } from './tensor-memory.ts';
import { NameTable } from './name-table.ts';
import type { Outbox } from './outbox.ts';
import type { ByteReader } from '../../base/bytes.ts';
import {
  errorBytesMax,
  MetadataNext,
  piecesMax,
  readMetadata,
  RecordType,
  slotsMax,
  SlotStatus,
  standingDepthMax,
  writeDestination,
  writeMetadata,
  writePlan,
  writeRegion,
} from './records.ts';
import { StandingRequest } from './standing-request.ts';
import { missing, type FusedWaiter, type PieceSink, type SlotOutcome, type Unanswered } from './tensor-carrier.ts';
import { placeFor, TensorRequest } from './tensor-request.ts';

export interface TensorReceiverOptions {
  readonly outbox: Outbox;
  readonly memory: ReceiveMemory;
  readonly counters: TensorCounters;
  readonly clock: Clock;
  /** The name of the peer in messages: `/job:ps/task:0 (tcp 10.0.0.4:7000)`. */
  readonly peer: () => string;
  /** Requests that are not answered, slots counted. */
  readonly requestsMax: number;
  /** Tensors whose metadata are kept. */
  readonly namesMax: number;
  /** Time limit of a request, from when it is posted. */
  readonly timeoutMs: number;
  /** Index of the first request; others follow, around 2^32. Default 0. */
  readonly firstRequest?: number;
}

/** Everything that an index stands for. */
type Pending = TensorRequest | FusedRequest | StandingRequest | Cancelling;

interface FusedRequest {
  readonly kind: 'fused';
  readonly slots: readonly TensorRequest[];
  readonly outcomes: (SlotOutcome | undefined)[];
  readonly waiter: FusedWaiter;
  readonly deadlineMs: number;
  /** The request that goes on after the connection has ended. */
  moved: Unanswered | undefined;
}

/** Nobody waits for it; the sender may still write. */
interface Cancelling {
  readonly kind: 'cancelling';
  readonly buffers: readonly ReceiveBuffer[];
  /** Indices that answers may still come for. */
  readonly count: number;
}

export class TensorReceiver {
  readonly #options: TensorReceiverOptions;
  readonly #names: NameTable;
  readonly #pending = new Map<number, Pending>();
  readonly #standing = new Map<string, StandingRequest>();
  /** rkeys that the peer was told of. */
  readonly #regions = new Set<number>();
  #next: number;
  #count = 0;
  #timer: Timer | undefined;
  #timerMs = Infinity;
  #closed: ShoalError | undefined;

  constructor(options: TensorReceiverOptions) {
    this.#options = options;
    this.#next = options.firstRequest ?? 0;
    this.#names = new NameTable({ namesMax: options.namesMax, outbox: options.outbox });
  }

  /** Requests that are not answered, cancelled ones included. */
  get unanswered(): number {
    return this.#pending.size;
  }

  /** @param sink told of pieces of a large tensor, before the waiter is told of the whole. */
  recv(stepId: number, key: string, waiter: Waiter<TensorValue>, sink?: PieceSink): Cancel {
    if (this.#closed !== undefined) return fail(waiter, this.#closed);
    const standing = this.#standing.size === 0 ? undefined : this.#standing.get(key);
    if (standing?.covers(stepId) === true) return standing.recv(stepId, waiter);
    let request: TensorRequest;
    try {
      const { name, suffix } = this.#names.find(key);
      const indices = sink === undefined ? 1 : this.#indicesOf(Math.max(name.room, sink.expected?.bytes ?? 0), sink);
      if (this.#count + indices > this.#options.requestsMax) throw this.#full(indices);
      request = new TensorRequest({
        index: this.#takeIndex(indices),
        stepId,
        name,
        suffix,
        deadlineMs: this.#deadline(),
        waiter,
        sink,
        indices,
      });
      request.start(this.#options.memory);
    } catch (thrown) {
      return fail(waiter, ShoalError.from(thrown));
    }
    this.#add(request.index, request, request.indices);
    this.#options.counters.requests++;
    this.#announce(request);
    const { outbox } = this.#options;
    const writer = outbox.record(request.indices === 1 ? RecordType.Request : RecordType.RequestInPieces);
    if (request.indices > 1) writePlan(writer, { bytes: sink!.pieceBytes, count: request.indices });
    writer.u32(request.index);
    writer.varint(stepId);
    request.write(writer);
    return () => this.#cancel(request.index, request);
  }

  recvFused(stepId: number, keys: readonly string[], waiter: FusedWaiter): Cancel {
    if (this.#closed !== undefined) return fail(waiter, this.#closed);
    if (keys.length === 0 || keys.length > slotsMax)
      return fail(waiter, new ShoalError('usage', `a fused receive must have 1 to ${slotsMax} keys, not ${keys.length}`));
    if (this.#count + keys.length > this.#options.requestsMax) return fail(waiter, this.#full(keys.length));
    const { memory, counters, outbox } = this.#options;
    const slots: TensorRequest[] = [];
    const deadlineMs = this.#deadline();
    const index = this.#takeIndex(1);
    try {
      for (const { name, suffix } of this.#names.findAll(keys)) {
        const slot = new TensorRequest({ index, stepId, name, suffix, deadlineMs, waiter: undefined });
        slot.start(memory);
        slots.push(slot);
      }
    } catch (thrown) {
      for (const { buffer } of slots) if (buffer !== undefined) memory.free(buffer);
      return fail(waiter, ShoalError.from(thrown));
    }
    const fused: FusedRequest = { kind: 'fused', slots, outcomes: slots.map(() => undefined), waiter, deadlineMs, moved: undefined };
    this.#pending.set(index, fused);
    this.#count += slots.length;
    counters.requests++;
    for (const slot of slots) this.#announce(slot);
    const writer = outbox.record(RecordType.FusedRequest);
    writer.u32(index);
    writer.varint(stepId);
    writer.u16(slots.length);
    for (const slot of slots) slot.write(writer);
    return () => this.#cancel(index, fused);
  }

  /** Asks for a key in every step from `firstStep` on, `depth` steps ahead. Metadata must be known: the key was received before.
   *  @throws ShoalError `usage`, `out-of-memory`. */
  stand(key: string, firstStep: number, depth: number): StandingRequest {
    if (this.#closed !== undefined) throw this.#closed;
    if (!Number.isInteger(depth) || depth < 1 || depth > standingDepthMax)
      throw new ShoalError('usage', `a standing request is for 1 to ${standingDepthMax} steps at a time, not ${depth}`);
    if (this.#standing.has(key)) throw new ShoalError('usage', `${describeKey(key)} has a standing request already`);
    if (this.#count + depth > this.#options.requestsMax) throw this.#full(depth);
    const { memory, outbox, counters } = this.#options;
    const { name, suffix } = this.#names.find(key);
    const { metadata } = name;
    const index = this.#takeIndex(depth);
    const buffers: (ReceiveBuffer | undefined)[] = [];
    try {
      for (let k = 0; k < depth; k++) buffers.push(placeFor(memory, name, metadata));
    } catch (thrown) {
      for (const buffer of buffers) if (buffer !== undefined) memory.free(buffer);
      throw thrown;
    }
    const standing: StandingRequest = new StandingRequest({
      index,
      key,
      name,
      firstStep,
      buffers,
      metadata,
      memory,
      renew: (count) => {
        const writer = outbox.record(RecordType.Renew);
        writer.u32(index);
        writer.u16(count);
      },
      stop: () => this.#stop(standing),
    });
    this.#standing.set(key, standing);
    this.#add(index, standing, depth);
    counters.requests++;
    for (const buffer of buffers) this.#tellRegion(buffer);
    this.#names.tell(name);
    const writer = outbox.record(RecordType.Standing);
    writer.u32(index);
    writer.varint(firstStep);
    name.writeKey(writer, suffix);
    writeMetadata(writer, metadata);
    writer.u16(depth);
    for (const buffer of buffers) writeDestination(writer, buffer);
    return standing;
  }

  /** A step has ended here: what standing requests have for it is not wanted any more. */
  endStep(stepId: number): void {
    for (const standing of this.#standing.values()) standing.endStep(stepId);
  }

  // ── what the sender says ───────────────────────────────────────────────────────────────────────────────────────

  /** @returns false when the record is not for a receiver. @throws ShoalError `protocol`. */
  onRecord(type: number, reader: ByteReader): boolean {
    switch (type) {
      case RecordType.Metadata:
        this.#onMetadata(reader.u32(), reader.u8(), readMetadata(reader));
        return true;
      case RecordType.Dead:
        this.#onEnd(reader.u32(), undefined);
        return true;
      case RecordType.Done:
        for (let count = reader.u16(); count > 0; count--) this.onImmediate(reader.u32());
        return true;
      case RecordType.Error:
        this.#onEnd(reader.u32(), this.#readError(reader));
        return true;
      case RecordType.Cancelled:
        this.#onCancelled(reader.u32());
        return true;
      case RecordType.FusedStatus:
        this.#onFusedStatus(reader.u32(), reader);
        return true;
      default:
        return false;
    }
  }

  /** The tensor of this request is in its place. @throws ShoalError `protocol` when nobody has asked. */
  onImmediate(index: number): void {
    const pending = this.#find(index);
    if (pending.kind === 'cancelling') return;
    const { memory } = this.#options;
    if (pending.kind === 'standing') return pending.onContent(index);
    if (pending.kind === 'fused') return this.#completeFused(index, pending);
    if (index !== pending.index) return pending.recvPiece(index);
    const value = pending.recvTensorContent(memory);
    this.#remove(index, pending.indices);
    pending.waiter!.receive(value);
  }

  /** The connection is over. @param takeOver takes each request that is not answered, in their order. Default: it fails. */
  close(cause: ShoalError, takeOver?: (asked: Unanswered) => void): void {
    if (this.#closed !== undefined) return;
    this.#closed = cause;
    this.#timer?.cancel();
    const all = new Set(this.#pending.values());
    this.#pending.clear();
    this.#standing.clear();
    for (const pending of all) {
      if (pending.kind === 'cancelling') continue;
      for (const asked of pending.kind === 'standing' ? pending.close() : [unanswered(pending)])
        if (takeOver === undefined) asked.fail(cause);
        else takeOver(asked);
    }
  }

  #onMetadata(index: number, next: number, metadata: TensorMetadata | undefined): void {
    if (metadata === undefined || next > MetadataNext.Empty) throw new ShoalError('protocol', `the metadata for request ${index} are none`);
    const pending = this.#find(index);
    if (pending.kind === 'cancelling') return;
    if (pending.kind === 'fused') throw new ShoalError('protocol', `metadata for request ${index}, which is a fused one`);
    if (pending.kind === 'plain') checkWhole(pending, index);
    const { memory, outbox, counters } = this.#options;
    const request = pending.kind === 'standing' ? pending.slotOf(index) : pending;
    try {
      request.recvTensorMetadata(memory, metadata, next);
    } catch (thrown) {
      const cause = ShoalError.from(thrown);
      if (cause.code === 'protocol') throw cause;
      if (pending.kind === 'standing') pending.stop(cause);
      else this.#cancel(index, pending, cause);
      return;
    }
    if (next === MetadataNext.Empty) return this.onImmediate(index);
    if (next === MetadataNext.Written) return;
    counters.rerequests++;
    this.#tellRegion(request.buffer);
    const writer = outbox.record(RecordType.Rerequest);
    writer.u32(index);
    writeDestination(writer, request.buffer);
  }

  #onEnd(index: number, cause: ShoalError | undefined): void {
    const pending = this.#find(index);
    if (pending.kind === 'cancelling') return;
    if (pending.kind === 'fused') throw new ShoalError('protocol', `an answer to request ${index} as to a plain one; it is fused`);
    if (pending.kind === 'standing') return pending.onEnd(index, cause);
    checkWhole(pending, index);
    this.#remove(index, pending.indices);
    if (pending.buffer !== undefined) this.#options.memory.free(pending.buffer);
    if (cause === undefined) pending.waiter!.receive(undefined);
    else pending.waiter!.fail(cause);
  }

  #onFusedStatus(index: number, reader: ByteReader): void {
    const pending = this.#find(index);
    if (pending.kind !== 'fused' && pending.kind !== 'cancelling')
      throw new ShoalError('protocol', `a status of slots for request ${index}, which is not fused`);
    const { memory, outbox, counters } = this.#options;
    const fused = pending.kind === 'fused' ? pending : undefined;
    const wanting: number[] = [];
    let lack: ShoalError | undefined;
    for (let count = reader.u16(); count > 0; count--) {
      const slot = reader.u16();
      const status = reader.u8();
      const request = fused?.slots[slot];
      if (fused !== undefined && (request === undefined || fused.outcomes[slot] !== undefined))
        throw new ShoalError('protocol', `a status for slot ${slot} of request ${index}`);
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
      } else if (status === SlotStatus.Dead || status === SlotStatus.Error) {
        const cause = status === SlotStatus.Error ? this.#readError(reader) : undefined;
        if (fused !== undefined) fused.outcomes[slot] = cause === undefined ? { value: undefined } : { cause };
      } else throw new ShoalError('protocol', `slot ${slot} of request ${index} has status ${status}`);
    }
    if (fused === undefined) return;
    if (lack !== undefined) return this.#cancel(index, fused, lack);
    if (wanting.length === 0) return;
    counters.rerequests++;
    for (const slot of wanting) this.#tellRegion(fused.slots[slot].buffer);
    const writer = outbox.record(RecordType.FusedRerequest);
    writer.u32(index);
    writer.u16(wanting.length);
    for (const slot of wanting) {
      writer.u16(slot);
      writeDestination(writer, fused.slots[slot].buffer);
    }
  }

  #completeFused(index: number, { slots, outcomes, waiter }: FusedRequest): void {
    const { memory } = this.#options;
    const received = slots.map((slot, k): SlotOutcome => {
      const known = outcomes[k];
      if (known === undefined) return { value: slot.recvTensorContent(memory) };
      if (slot.buffer !== undefined) memory.free(slot.buffer);
      return known;
    });
    this.#pending.delete(index);
    this.#count -= slots.length;
    waiter.receive(received);
  }

  #onCancelled(index: number): void {
    const pending = this.#pending.get(index);
    if (pending?.kind !== 'cancelling')
      throw new ShoalError('protocol', `request ${index} is said to be cancelled, which nobody has asked for`);
    this.#count -= pending.count;
    for (let k = 0; this.#pending.get((index + k) >>> 0) === pending; k++) this.#pending.delete((index + k) >>> 0);
    for (const buffer of pending.buffers) this.#options.memory.revoke(buffer);
  }

  #readError(reader: ByteReader): ShoalError {
    const code = errorCodes[reader.u8()] as ErrorCode | undefined;
    if (code === undefined) throw new ShoalError('protocol', 'an error has a code that is none');
    const text = reader.text(errorBytesMax).replace(/[^\x20-\x7e]/g, '?');
    return new ShoalError(code, `${this.#options.peer()}: ${text}`);
  }

  // ── requests ───────────────────────────────────────────────────────────────────────────────────────────────────

  /** @param cause that the waiter is told; undefined when it has lost interest by itself. */
  #cancel(index: number, pending: TensorRequest | FusedRequest, cause?: ShoalError): void {
    if (this.#pending.get(index) !== pending) return pending.moved?.cancel();
    const slots = pending.kind === 'fused' ? pending.slots : [pending];
    const buffers = slots.flatMap(({ buffer }) => (buffer === undefined ? [] : [buffer]));
    const count = pending.kind === 'fused' ? slots.length : pending.indices;
    this.#setPending(index, { kind: 'cancelling', buffers, count }, pending.kind === 'fused' ? 1 : count);
    this.#options.outbox.record(RecordType.Cancel).u32(index);
    if (cause !== undefined) pending.waiter!.fail(cause);
  }

  #stop(standing: StandingRequest): void {
    const { index, depth, key } = standing;
    if (this.#standing.get(key) !== standing) return;
    this.#standing.delete(key);
    const cancelling: Cancelling = { kind: 'cancelling', buffers: standing.quarantined(), count: depth };
    this.#setPending(index, cancelling, depth);
    this.#options.outbox.record(RecordType.Cancel).u32(index);
  }

  #announce(request: TensorRequest): void {
    this.#names.tell(request.name);
    this.#tellRegion(request.buffer);
  }

  #tellRegion(buffer: ReceiveBuffer | undefined): void {
    if (buffer === undefined || this.#regions.has(buffer.registered.rkey)) return;
    this.#regions.add(buffer.registered.rkey);
    writeRegion(this.#options.outbox.record(RecordType.Region), buffer.registered);
  }

  /** The region is no more. */
  forget(rkey: number): void {
    if (this.#closed !== undefined || !this.#regions.delete(rkey)) return;
    this.#options.outbox.record(RecordType.Forget).u32(rkey);
  }

  /** `count` indices in a row that stand for nothing. */
  #takeIndex(count: number): number {
    for (let attempt = 0; attempt <= this.#pending.size; attempt++) {
      const index = this.#next;
      let used = 0;
      while (used < count && !this.#pending.has((index + used) >>> 0)) used++;
      this.#next = (index + Math.max(1, used)) >>> 0;
      if (used === count) return index;
    }
    assert(false, () => 'there are more indices than requests');
    return 0;
  }

  /** @param count of its indices. */
  #add(index: number, pending: Pending, count: number): void {
    this.#pending.set(index, pending);
    if (count > 1) this.#setPending(index, pending, count);
    this.#count += count;
  }

  #remove(index: number, count: number): void {
    this.#pending.delete(index);
    for (let k = 1; k < count; k++) this.#pending.delete((index + k) >>> 0);
    this.#count -= count;
  }

  #setPending(index: number, pending: Pending, count: number): void {
    for (let k = 0; k < count; k++) this.#pending.set((index + k) >>> 0, pending);
  }

  /** One for the whole, and one for each piece but the last. */
  #indicesOf(bytes: number, { pieceBytes }: PieceSink): number {
    return Math.min(piecesMax, Math.max(1, Math.ceil(bytes / pieceBytes)));
  }

  #find(index: number): Pending {
    const pending = this.#pending.get(index);
    if (pending === undefined) throw new ShoalError('protocol', `an answer to request ${index}, which is none or was answered`);
    return pending;
  }

  #full(count: number): ShoalError {
    return new ShoalError(
      'out-of-memory',
      `${count} more requests to ${this.#options.peer()}: ${this.#count} of at most ${this.#options.requestsMax} are not answered`,
    );
  }

  // ── time ───────────────────────────────────────────────────────────────────────────────────────────────────────

  #deadline(): number {
    const { clock, timeoutMs } = this.#options;
    const deadlineMs = clock.now() + timeoutMs;
    if (this.#timerMs === Infinity) this.#setTimer(deadlineMs);
    return deadlineMs;
  }

  /** One timer for all: requests have one time limit, so the oldest is the first. */
  #setTimer(atMs: number): void {
    const { clock } = this.#options;
    this.#timerMs = atMs;
    this.#timer = clock.setTimer(Math.max(1, atMs - clock.now()), () => this.#onTimer());
  }

  #onTimer(): void {
    this.#timerMs = Infinity;
    const nowMs = this.#options.clock.now();
    let nextMs = Infinity;
    for (const [index, pending] of [...this.#pending]) {
      if (pending.kind === 'cancelling' || pending.kind === 'standing') continue;
      if (pending.kind === 'plain' && pending.index !== index) continue;
      if (pending.deadlineMs > nowMs) nextMs = Math.min(nextMs, pending.deadlineMs);
      else this.#cancel(index, pending, this.#late(pending));
    }
    if (nextMs < Infinity) this.#setTimer(nextMs);
  }

  #late(pending: TensorRequest | FusedRequest): ShoalError {
    const { timeoutMs, peer } = this.#options;
    const [what, stepId] = describe(pending);
    return new ShoalError('timeout', `${what} did not come from ${peer()} within ${timeoutMs} ms of step ${stepId}; was it sent?`, {
      timeoutMs,
    });
  }
}

/** A text for messages: the tensor that is asked for, and the step. */
function describe(pending: TensorRequest | FusedRequest): [what: string, stepId: number] {
  if (pending.kind === 'plain') return [describeKey(pending.key), pending.stepId];
  const { slots } = pending;
  return [`${slots.length} tensors, the first of them ${describeKey(slots[0].key)},`, slots[0].stepId];
}

function unanswered(pending: TensorRequest | FusedRequest): Unanswered {
  const { waiter } = pending;
  const asked: Unanswered = {
    ask(carrier) {
      if (pending.kind === 'plain') return carrier.recv(pending.stepId, pending.key, pending.waiter!, pending.sink);
      return carrier.recvFused(
        pending.slots[0].stepId,
        pending.slots.map(({ key }) => key),
        pending.waiter,
      );
    },
    fail: (cause) => waiter!.fail(missing(...describe(pending), cause)),
    cancel: () => {},
  };
  pending.moved = asked;
  return asked;
}

/** @throws ShoalError `protocol` for the index of a piece, where that of the whole is meant. */
function checkWhole(request: TensorRequest, index: number): void {
  if (index !== request.index) throw new ShoalError('protocol', `an answer to request ${index}, which is that of a piece`);
}

function fail(waiter: { fail(cause: ShoalError): void }, cause: ShoalError): Cancel {
  waiter.fail(cause);
  return () => {};
}
