/** A tensor on its way into a device's memory. Pieces are copied there as they come, beside those that are still on the wire:
 *
 *      wire      piece 0 │ piece 1 │ piece 2 │ …
 *      device              piece 0 │ piece 1 │ piece 2 │ …
 *
 *  Nothing is copied any more when its receive has ended, however it ends: the buffer is the caller's again. */
import { ShoalError } from '../../base/errors.ts';
import { createDeviceBuffer } from '../../memory/device/device-buffer.ts';
import { DeviceTensor } from '../../memory/device/device-tensor.ts';
import { bufferUsage, copyAlignment, type GpuBuffer, type GpuDevice } from '../../memory/device/gpu.ts';
import type { DType } from '../../memory/dtype.ts';
import type { PieceSink } from '../protocol/tensor-carrier.ts';
import { stagedPieceBytes } from '../value/staged-tensor.ts';
import type { TensorMetadata } from '../value/tensor-metadata.ts';
import type { TensorValue } from '../value/tensor-value.ts';
import type { WorkerDevice, WorkerDevices } from './worker-devices.ts';

/** Where it goes: into a tensor's memory, or into a buffer that is made for it. */
export type ArrivalTarget = { readonly into: DeviceTensor } | { readonly device: GpuDevice };

/** Asks for the tensor. Its receive ends with `aborted` when the signal is. */
type Ask = (sink: PieceSink, signal: AbortSignal) => Promise<TensorValue | undefined>;

/** @returns the tensor where it is then; undefined: it is dead, and nothing was written.
 *  @throws ShoalError `mismatch` for another dtype or size than that of `into`, `unsupported` for what devices have not, as
 *  `DeviceCopies`. */
export async function receiveOnDevice(
  devices: WorkerDevices,
  target: ArrivalTarget,
  signal: AbortSignal | undefined,
  ask: Ask,
): Promise<DeviceTensor | undefined> {
  const worker = devices.of('into' in target ? target.into.device : target.device);
  const arrival = new DeviceArrival(devices, worker, target);
  const onAbort = (): void => arrival.giveUp(signal!.reason);
  if (signal?.aborted === true) onAbort();
  signal?.addEventListener('abort', onAbort, { once: true });
  worker.onEnd.add(arrival.fail);
  try {
    const value = await ask(arrival, arrival.signal);
    try {
      return value && (await arrival.complete(value));
    } finally {
      value?.release?.();
    }
  } catch (thrown) {
    throw await arrival.abandon(thrown);
  } finally {
    worker.onEnd.delete(arrival.fail);
    signal?.removeEventListener('abort', onAbort);
  }
}

class DeviceArrival implements PieceSink {
  readonly pieceBytes = stagedPieceBytes;
  readonly expected: TensorMetadata | undefined;
  readonly #devices: WorkerDevices;
  readonly #worker: WorkerDevice;
  readonly #target: ArrivalTarget;
  readonly #ending = new AbortController();
  readonly #copies: Promise<void>[] = [];
  /** Offsets of pieces that are copied. */
  readonly #copied = new Set<number>();
  #place: Promise<DeviceTensor> | undefined;
  /** The buffer that is made here. */
  #buffer: GpuBuffer | undefined;
  #failure: ShoalError | undefined;

  constructor(devices: WorkerDevices, worker: WorkerDevice, target: ArrivalTarget) {
    this.#devices = devices;
    this.#worker = worker;
    this.#target = target;
    this.expected = 'into' in target ? metadataOf(target.into) : undefined;
  }

  get signal(): AbortSignal {
    return this.#ending.signal;
  }

  giveUp(reason: unknown): void {
    this.#ending.abort(reason);
  }

  /** Fails the receive at once, with the first cause. */
  readonly fail = (cause: ShoalError): void => {
    this.#failure ??= cause;
    this.#ending.abort(cause);
  };

  receive(metadata: TensorMetadata, at: number, bytes: Uint8Array): void {
    if (this.#copied.has(at) || this.#failure || this.#ending.signal.aborted || this.#misfit(metadata)) return;
    this.#copied.add(at);
    this.#copy(metadata, at, bytes);
  }

  /** All of it has come. */
  async complete(value: TensorValue): Promise<DeviceTensor> {
    const { dtype, shape } = value;
    const data = value.data as ArrayBufferView;
    const metadata = { dtype, shape, bytes: dtype === 'string' ? 0 : data.byteLength };
    const misfit = this.#misfit(metadata);
    if (misfit) throw misfit;
    for (let at = 0; at < metadata.bytes; at += this.pieceBytes) {
      const bytes = new Uint8Array(data.buffer, data.byteOffset + at, Math.min(this.pieceBytes, metadata.bytes - at));
      this.receive(metadata, at, bytes);
    }
    const place = await this.#placeOf(metadata);
    await Promise.all(this.#copies);
    if (this.#failure) throw this.#failure;
    const { device, buffer, byteOffset } = place;
    return new DeviceTensor({ device, buffer, byteOffset, dtype: dtype as DType, shape });
  }

  /** When nothing is copied any more. @returns why there is no tensor. */
  async abandon(thrown: unknown): Promise<ShoalError> {
    await Promise.allSettled([...this.#copies, this.#place]);
    this.#buffer?.destroy();
    return this.#failure ?? ShoalError.from(thrown);
  }

  #copy(metadata: TensorMetadata, at: number, bytes: Uint8Array): void {
    const copied = this.#placeOf(metadata).then(({ buffer, byteOffset }) => {
      this.#devices.bytesCopied += bytes.length;
      return this.#worker.copies.write({ buffer, byteOffset: byteOffset + at }, bytes);
    });
    this.#copies.push(copied);
    copied.catch((thrown: unknown) => this.fail(ShoalError.from(thrown)));
  }

  #placeOf(metadata: TensorMetadata): Promise<DeviceTensor> {
    this.#place ??= 'into' in this.#target ? Promise.resolve(this.#target.into) : this.#make(this.#target.device, metadata);
    return this.#place;
  }

  async #make(device: GpuDevice, { dtype, shape, bytes }: TensorMetadata): Promise<DeviceTensor> {
    const usage = bufferUsage.copySource | bufferUsage.copyTarget | bufferUsage.storage;
    this.#buffer = await createDeviceBuffer(device, 'a received tensor', { size: Math.max(copyAlignment, bytes), usage });
    return new DeviceTensor({ device, buffer: this.#buffer, dtype: dtype as DType, shape });
  }

  #misfit(metadata: TensorMetadata): ShoalError | undefined {
    const { dtype, shape, bytes } = metadata;
    const what = `the tensor is ${dtype}[${shape.join(', ')}]`;
    if (this.expected !== undefined) {
      if (this.expected.dtype === dtype && this.expected.bytes === bytes) return undefined;
      const message = `${what}, but \`into\` is ${this.expected.dtype}[${this.expected.shape.join(', ')}]; nothing was written`;
      return new ShoalError('mismatch', message);
    }
    if (dtype === 'string') return new ShoalError('unsupported', `${what}: strings have no place in a device's memory; receive it without`);
    if (bytes % copyAlignment === 0) return undefined;
    const message = `${what}, which has ${bytes} bytes: copies of devices end at multiples of ${copyAlignment} bytes; pad it, or receive it without`;
    return new ShoalError('unsupported', message);
  }
}

function metadataOf({ dtype, shape, bytes }: DeviceTensor): TensorMetadata {
  return { dtype, shape, bytes };
}
