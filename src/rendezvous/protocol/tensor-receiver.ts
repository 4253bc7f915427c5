/** The receiver's end of RecvTensor: caches each tensor's metadata, allocates the destination before it sends the request, and learns by
 *  the immediate that the tensor has arrived. A state machine: calls, records and immediates in; records and calls of waiters out.
 *
 *  When the waiter of a request gives up, the request is cancelled, and its buffer stays in quarantine until the sender confirms that it
 *  will not write to it: only then may the buffer's key be revoked, and its memory be reused. */
import type { Clock, Timer } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import type { Cancel, Waiter } from '../table/rendezvous.ts';
import { describeKey, describeKeys } from '../table/rendezvous-key.ts';
import type { TensorMetadata } from '../value/tensor-metadata.ts';
import type { TensorValue } from '../value/tensor-value.ts';
import type { ReceiveMemory, ReceiveBuffer } from './pooled-memory.ts';
import { FusedRequest, readFusedStatus } from './fused-request.ts';
import { NameTable } from './name-table.ts';
import { PendingTable, type Indexed } from './pending-table.ts';
import type { ByteReader } from '../../base/bytes.ts';
import {
  MetadataNext,
  piecesMax,
  readError,
  readMetadata,
  RecordType,
  slotsMax,
  standingDepthMax,
  writeDestination,
  writeMetadata,
  writePlan,
  writeRegion,
} from './records.ts';
import type { TensorSenderOptions } from './tensor-sender.ts';
import { StandingRequest } from './standing-request.ts';
import type { FusedWaiter, PieceSink, Unanswered } from './tensor-carrier.ts';
import { placeFor, TensorRequest } from './tensor-request.ts';

/** `requestsMax` bounds the requests of this end; `namesMax` the tensors whose metadata are kept. */
export interface TensorReceiverOptions extends Pick<TensorSenderOptions, 'outbox' | 'counters' | 'requestsMax' | 'namesMax'> {
  readonly memory: ReceiveMemory;
  readonly clock: Clock;
  /** The name of the peer in messages: `/job:ps/task:0 (tcp 10.0.0.4:7000)`. */
  readonly peer: () => string;
  /** Time limit of a request, from when it is posted. */
  readonly timeoutMs: number;
  /** Index of the first request; others follow, around 2^32. Default 0. */
  readonly firstRequest?: number;
}

/** Everything that an index stands for. */
type Pending = TensorRequest | FusedRequest | StandingRequest | Cancelling;

/** Nobody waits for it; the sender may still write. */
interface Cancelling extends Indexed {
  readonly kind: 'cancelling';
  readonly buffers: readonly ReceiveBuffer[];
}

export class TensorReceiver {
  readonly #options: TensorReceiverOptions;
  readonly #names: NameTable;
  readonly #pending: PendingTable<Pending>;
  readonly #standing = new Map<string, StandingRequest>();
  /** rkeys that the peer was told of. */
  readonly #regions = new Set<number>();
  #timer: Timer | undefined;
  #timerMs = Infinity;
  #closed: ShoalError | undefined;
  /** Records that are for a receiver, by type. */
  readonly #records: Readonly<Record<number, (reader: ByteReader) => void>> = {
    [RecordType.Metadata]: (reader) => this.#onMetadata(reader.u32(), reader.u8(), readMetadata(reader)),
    [RecordType.Dead]: (reader) => this.#onEnd(reader.u32(), undefined),
    [RecordType.Done]: (reader) => this.#onDone(reader),
    [RecordType.Error]: (reader) => this.#onEnd(reader.u32(), readError(reader, this.#options.peer())),
    [RecordType.Cancelled]: (reader) => this.#onCancelled(reader.u32()),
    [RecordType.FusedStatus]: (reader) => this.#onFusedStatus(reader.u32(), reader),
  };

  constructor(options: TensorReceiverOptions) {
    this.#options = options;
    this.#pending = new PendingTable(options);
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
      this.#pending.checkRoom(indices);
      request = new TensorRequest({
        index: this.#pending.takeIndex(indices),
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
    this.#pending.add(request);
    this.#options.counters.requests++;
    this.#announce(request);
    const { outbox } = this.#options;
    const writer = outbox.record(request.indices === 1 ? RecordType.Request : RecordType.RequestInPieces);
    if (request.indices > 1) writePlan(writer, { bytes: sink!.pieceBytes, count: request.indices });
    writer.u32(request.index);
    writer.varint(stepId);
    request.write(writer);
    return () => this.#cancel(request);
  }

  recvFused(stepId: number, keys: readonly string[], waiter: FusedWaiter): Cancel {
    if (this.#closed !== undefined) return fail(waiter, this.#closed);
    if (keys.length === 0 || keys.length > slotsMax)
      return fail(waiter, new ShoalError('usage', `a fused receive must have 1 to ${slotsMax} keys, not ${keys.length}`));
    const { memory, counters, outbox } = this.#options;
    const slots: TensorRequest[] = [];
    const deadlineMs = this.#deadline();
    try {
      this.#pending.checkRoom(keys.length);
      const index = this.#pending.takeIndex(1);
      for (const { name, suffix } of this.#names.findAll(keys)) {
        const slot = new TensorRequest({ index, stepId, name, suffix, deadlineMs, waiter: undefined });
        slot.start(memory);
        slots.push(slot);
      }
    } catch (thrown) {
      for (const { buffer } of slots) if (buffer !== undefined) memory.free(buffer);
      return fail(waiter, ShoalError.from(thrown));
    }
    const fused = new FusedRequest(slots, waiter, deadlineMs);
    this.#pending.add(fused);
    counters.requests++;
    for (const slot of slots) this.#announce(slot);
    const writer = outbox.record(RecordType.FusedRequest);
    writer.u32(fused.index);
    writer.varint(stepId);
    writer.u16(slots.length);
    for (const slot of slots) slot.write(writer);
    return () => this.#cancel(fused);
  }

  /** Asks for a key in every step from `firstStep` on, `depth` steps ahead. Metadata must be known: the key was received before.
   *  @throws ShoalError `usage`, `out-of-memory`. */
  stand(key: string, firstStep: number, depth: number): StandingRequest {
    if (this.#closed !== undefined) throw this.#closed;
    if (!Number.isInteger(depth) || depth < 1 || depth > standingDepthMax)
      throw new ShoalError('usage', `a standing request is for 1 to ${standingDepthMax} steps at a time, not ${depth}`);
    if (this.#standing.has(key)) throw new ShoalError('usage', `${describeKey(key)} has a standing request already`);
    this.#pending.checkRoom(depth);
    const { memory, outbox, counters } = this.#options;
    const { name, suffix } = this.#names.find(key);
    const { metadata } = name;
    const index = this.#pending.takeIndex(depth);
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
    this.#pending.add(standing);
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
    const take = this.#records[type];
    take?.(reader);
    return take !== undefined;
  }

  /** The tensor of this request is in its place. @throws ShoalError `protocol` when nobody has asked. */
  onImmediate(index: number): void {
    const pending = this.#pending.find(index);
    if (pending.kind === 'cancelling') return;
    const { memory } = this.#options;
    if (pending.kind === 'standing') return pending.onContent(index);
    if (pending.kind === 'fused') {
      const received = pending.complete(memory);
      this.#pending.remove(pending);
      return pending.waiter.receive(received);
    }
    if (index !== pending.index) return pending.recvPiece(index);
    const value = pending.recvTensorContent(memory);
    this.#pending.remove(pending);
    pending.waiter!.receive(value);
  }

  /** The connection is over. @param takeOver takes each request that is not answered, in their order. Default: it fails. */
  close(cause: ShoalError, takeOver?: (asked: Unanswered) => void): void {
    if (this.#closed !== undefined) return;
    this.#closed = cause;
    this.#timer?.cancel();
    const all = this.#pending.all();
    this.#pending.clear();
    this.#standing.clear();
    for (const pending of all) {
      if (pending.kind === 'cancelling') continue;
      for (const asked of pending.kind === 'standing' ? pending.close() : [pending.unanswered()])
        if (takeOver === undefined) asked.fail(cause);
        else takeOver(asked);
    }
  }

  #onDone(reader: ByteReader): void {
    for (let count = reader.u16(); count > 0; count--) this.onImmediate(reader.u32());
  }

  #onMetadata(index: number, next: number, metadata: TensorMetadata | undefined): void {
    if (metadata === undefined || next > MetadataNext.Empty) throw new ShoalError('protocol', `the metadata for request ${index} are none`);
    const pending = this.#pending.find(index);
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
      else this.#cancel(pending, cause);
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
    const pending = this.#pending.find(index);
    if (pending.kind === 'cancelling') return;
    if (pending.kind === 'fused') throw new ShoalError('protocol', `an answer to request ${index} as to a plain one; it is fused`);
    if (pending.kind === 'standing') return pending.onEnd(index, cause);
    checkWhole(pending, index);
    this.#pending.remove(pending);
    if (pending.buffer !== undefined) this.#options.memory.free(pending.buffer);
    if (cause === undefined) pending.waiter!.receive(undefined);
    else pending.waiter!.fail(cause);
  }

  #onFusedStatus(index: number, reader: ByteReader): void {
    const pending = this.#pending.find(index);
    if (pending.kind !== 'fused' && pending.kind !== 'cancelling')
      throw new ShoalError('protocol', `a status of slots for request ${index}, which is not fused`);
    const { outbox, counters } = this.#options;
    const fused = pending.kind === 'fused' ? pending : undefined;
    const { wanting, lack } = readFusedStatus(reader, index, fused, this.#options);
    if (fused === undefined) return;
    if (lack !== undefined) return this.#cancel(fused, lack);
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

  #onCancelled(index: number): void {
    const pending = this.#pending.get(index);
    if (pending?.kind !== 'cancelling')
      throw new ShoalError('protocol', `request ${index} is said to be cancelled, which nobody has asked for`);
    this.#pending.remove(pending);
    for (const buffer of pending.buffers) this.#options.memory.revoke(buffer);
  }

  // ── requests ───────────────────────────────────────────────────────────────────────────────────────────────────

  /** @param cause that the waiter is told; undefined when it has lost interest by itself. */
  #cancel(pending: TensorRequest | FusedRequest, cause?: ShoalError): void {
    if (this.#pending.get(pending.index) !== pending) return pending.moved?.cancel();
    this.#quarantine(pending, pending.buffers);
    if (cause !== undefined) pending.waiter!.fail(cause);
  }

  #stop(standing: StandingRequest): void {
    if (this.#standing.get(standing.key) !== standing) return;
    this.#standing.delete(standing.key);
    this.#quarantine(standing, standing.quarantined());
  }

  /** @param buffers that the sender may still write to. */
  #quarantine({ index, indices, count }: Indexed, buffers: readonly ReceiveBuffer[]): void {
    this.#pending.replace({ kind: 'cancelling', index, indices, count, buffers });
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

  /** One for the whole, and one for each piece but the last. */
  #indicesOf(bytes: number, { pieceBytes }: PieceSink): number {
    return Math.min(piecesMax, Math.max(1, Math.ceil(bytes / pieceBytes)));
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
    for (const pending of this.#pending.all()) {
      if (pending.kind === 'cancelling' || pending.kind === 'standing') continue;
      if (pending.deadlineMs > nowMs) nextMs = Math.min(nextMs, pending.deadlineMs);
      else this.#cancel(pending, this.#late(pending));
    }
    if (nextMs < Infinity) this.#setTimer(nextMs);
  }

  #late(pending: TensorRequest | FusedRequest): ShoalError {
    const { timeoutMs, peer } = this.#options;
    const { keys, stepId } = pending;
    const message = `${describeKeys(keys)} did not come from ${peer()} within ${timeoutMs} ms of step ${stepId}; was it sent?`;
    return new ShoalError('timeout', message, { timeoutMs });
  }
}

/** @throws ShoalError `protocol` for the index of a piece, where that of the whole is meant. */
function checkWhole(request: TensorRequest, index: number): void {
  if (index !== request.index) throw new ShoalError('protocol', `an answer to request ${index}, which is that of a piece`);
}

function fail(waiter: { fail(cause: ShoalError): void }, cause: ShoalError): Cancel {
  waiter.fail(cause);
  return () => {};
}
