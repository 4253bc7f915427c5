/** One tensor that is asked for, through its whole receive: RdmaTensorRequest of the document.
 *
 *     start ──▶ asked ──recvTensorMetadata──▶ asked again ──recvTensorContent──▶ a value
 *                 └─────────────────recvTensorContent────────────────────────────▶ */
import { ShoalError } from '../../base/errors.ts';
import type { Waiter } from '../table/rendezvous.ts';
import { readTensor, type TensorMetadata } from '../value/tensor-metadata.ts';
import type { TensorValue } from '../value/tensor-value.ts';
import type { ReceiveBuffer, ReceiveMemory } from './pooled-memory.ts';
import type { KeySuffix, TensorName } from './name-table.ts';
import type { Indexed } from './pending-table.ts';
import { unanswered, type PieceSink, type Unanswered } from './tensor-carrier.ts';
import type { ByteWriter } from '../../base/bytes.ts';
import { MetadataNext, writeDestination, writeMetadata } from './records.ts';

type TensorRequestOptions = Pick<TensorRequest, 'index' | 'stepId' | 'name' | 'deadlineMs' | 'waiter'> &
  Partial<Pick<TensorRequest, 'sink' | 'indices'>> & { readonly suffix: KeySuffix };

/** Where one tensor is to come, and what is known of it: others may change what is known by its name meanwhile. */
export class TensorPlace {
  readonly name: TensorName;
  metadata: TensorMetadata | undefined;
  buffer: ReceiveBuffer | undefined;

  constructor(name: TensorName) {
    this.name = name;
  }

  /** The tensor is another than expected. Its place is made larger where the sender asks for that.
   *  @throws ShoalError `protocol` when what is said to fit does not, `out-of-memory`. */
  recvTensorMetadata(memory: ReceiveMemory, metadata: TensorMetadata, next: number): void {
    const placeBytes = this.buffer?.bytes ?? 0;
    const isFitting = metadata.bytes <= placeBytes;
    if (isFitting !== (next !== MetadataNext.Rerequest) || (next === MetadataNext.Empty) !== (metadata.bytes === 0))
      throw new ShoalError('protocol', `a tensor of ${metadata.bytes} bytes for a place of ${placeBytes} is announced wrongly`);
    this.metadata = metadata;
    this.name.metadata = metadata;
    if (next !== MetadataNext.Rerequest) return;
    // The sender writes to the old place no more.
    if (this.buffer !== undefined) memory.free(this.buffer);
    this.buffer = undefined;
    this.buffer = memory.allocate(metadata.bytes);
  }

  /** The metadata of the tensor that has come. @throws ShoalError `protocol` when nothing is known of it, or it has no place. */
  contentOf(index: number): TensorMetadata {
    if (this.metadata === undefined || this.metadata.bytes > (this.buffer?.bytes ?? 0))
      throw new ShoalError('protocol', `request ${index} is said to be answered, but has no place for the tensor`);
    this.name.received(this.metadata.bytes);
    return this.metadata;
  }
}

export class TensorRequest extends TensorPlace implements Indexed {
  readonly kind = 'plain';
  readonly index: number;
  readonly stepId: number;
  readonly deadlineMs: number;
  /** Undefined for slots of a fused request. */
  readonly waiter: Waiter<TensorValue> | undefined;
  /** Number of indices in a row from `index`: its own, and those of pieces. */
  readonly indices: number;
  /** The user of pieces. */
  readonly sink: PieceSink | undefined;
  /** The request that goes on after the connection has ended. */
  moved: Unanswered | undefined;
  readonly #suffix: KeySuffix;

  constructor({ index, stepId, name, suffix, deadlineMs, waiter, sink, indices = 1 }: TensorRequestOptions) {
    super(name);
    this.index = index;
    this.stepId = stepId;
    this.deadlineMs = deadlineMs;
    this.waiter = waiter;
    this.indices = indices;
    this.#suffix = suffix;
    this.sink = sink;
  }

  get key(): string {
    return `${this.name.text};${this.#suffix.frame}:${this.#suffix.iteration}`;
  }

  get keys(): readonly string[] {
    return [this.key];
  }

  get count(): number {
    return this.indices;
  }

  get buffers(): readonly ReceiveBuffer[] {
    return this.buffer === undefined ? [] : [this.buffer];
  }

  /** Its connection has ended. */
  unanswered(): Unanswered {
    const { stepId, key, sink } = this;
    const waiter = this.waiter!;
    this.moved = unanswered([key], stepId, waiter, (carrier) => carrier.recv(stepId, key, waiter, sink));
    return this.moved;
  }

  /** A place for the tensor as it was the last time. @throws ShoalError `out-of-memory`. */
  start(memory: ReceiveMemory): void {
    this.metadata = this.name.metadata ?? this.sink?.expected;
    this.buffer = placeFor(memory, this.name, this.metadata);
  }

  write(writer: ByteWriter): void {
    this.name.writeKey(writer, this.#suffix);
    writeDestination(writer, this.buffer);
    writeMetadata(writer, this.metadata);
  }

  /** A piece is in its place. @throws ShoalError `protocol` when there is no such piece. */
  recvPiece(index: number): void {
    const { sink, metadata, buffer } = this;
    if (sink === undefined || metadata === undefined || buffer === undefined || metadata.bytes > buffer.bytes)
      throw new ShoalError('protocol', `a piece for request ${this.index}, which has no place for it`);
    const at = (((index - this.index) >>> 0) - 1) * sink.pieceBytes;
    if (at >= metadata.bytes) throw new ShoalError('protocol', `a piece at byte ${at} of a tensor of ${metadata.bytes} bytes`);
    sink.receive(metadata, at, bytesOf(buffer, metadata.bytes).subarray(at, at + sink.pieceBytes));
  }

  /** The tensor is in its place. @throws ShoalError `protocol` when nothing is known of it. */
  recvTensorContent(memory: ReceiveMemory): TensorValue {
    const { buffer } = this;
    const metadata = this.contentOf(this.index);
    this.buffer = undefined;
    return receivedValue(memory, metadata, buffer);
  }
}

/** Beyond, a second round trip costs less than memory that stays unused. */
const roomFactor = 4;
const smallBytes = 64 * 1024;

/** A place as large as the tensor has been of late, up to `roomFactor` times as large as `metadata` say; as these say where memory does not
 *  suffice. Undefined: nothing is known of it, or it has no bytes. @throws ShoalError `out-of-memory`. */
export function placeFor(memory: ReceiveMemory, name: TensorName, metadata: TensorMetadata | undefined): ReceiveBuffer | undefined {
  const bytes = metadata?.bytes ?? 0;
  const room = Math.min(name.room, Math.max(roomFactor * bytes, smallBytes));
  try {
    if (room > bytes) return memory.allocate(room);
  } catch (thrown) {
    if (ShoalError.from(thrown).code !== 'out-of-memory') throw thrown;
  }
  return bytes === 0 ? undefined : memory.allocate(bytes);
}

/** The value in a buffer, which goes back when the value is released. */
export function receivedValue(memory: ReceiveMemory, metadata: TensorMetadata, buffer: ReceiveBuffer | undefined): TensorValue {
  if (buffer === undefined) return readTensor(metadata, { buffer: nothing, offset: 0 });
  const value = readTensor(metadata, { buffer: buffer.registered.region.buffer, offset: buffer.offset });
  if (metadata.dtype === 'string') {
    memory.free(buffer);
    return value;
  }
  const release = memory.handOver(buffer);
  return release === undefined ? value : { dtype: value.dtype, shape: value.shape, data: value.data, release };
}

export function bytesOf({ registered, offset }: ReceiveBuffer, bytes: number): Uint8Array {
  return new Uint8Array(registered.region.buffer, offset, bytes);
}

const nothing = new ArrayBuffer(0);
