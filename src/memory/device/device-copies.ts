/** Copies bytes between a device's buffers and host memory, through proxy buffers: staging that both the device and this thread reach.
 *
 *      read    device buffer ─ copy ─▶ proxy (MAP_READ) ─ mapped, memcpy ─▶ host memory
 *      write   host memory ─ memcpy, mapped ─▶ proxy (MAP_WRITE) ─ copy ─▶ device buffer
 *
 *  Bytes that do not fit a proxy are cut into pieces, several of which are under way at a time. Proxies are kept, and their number is
 *  bounded: a caller that finds all in use waits in line. When a device is lost, copies under way and all later ones fail.
 *
 *  Mapping needs the event loop of the thread that has the device. It must not know the meaning of the bytes, or their destination. */
import { BoundedPool } from './bounded-pool.ts';
import { ShoalError } from '../../base/errors.ts';
import { createDeviceBuffer } from './device-buffer.ts';
import { checkDevice } from './device-tensor.ts';
import { bufferUsage, mapMode, type GpuBuffer, type GpuCommandEncoder, type GpuDevice, type GpuError } from './gpu.ts';

/** Largest proxy. Every piece is a wake-up of several threads, and in collectives of all ranks: smaller ones cost more than they
 *  overlap. */
export const devicePieceBytes = 16 * 2 ** 20;
/** Number of proxies of each direction: one is copied by the device, one is sent on, one comes back. */
export const devicePieces = 3;
const smallestProxyBytes = 2 ** 16;

/** A place in a device's memory. */
export interface DevicePlace {
  readonly buffer: GpuBuffer;
  readonly byteOffset: number;
}

/** A range of bytes in a buffer; offset and length are multiples of 4. */
export interface DeviceSpan {
  readonly byteOffset: number;
  readonly bytes: number;
}

export interface DeviceCopiesOptions {
  readonly pieceBytes?: number;
  /** Most proxies of each direction. */
  readonly pieces?: number;
  /** Called once with the reason why nothing more is copied: the device is lost, or these copies are closed. */
  readonly onEnd?: (error: ShoalError) => void;
}

/** A place for a proxy, which is as large as was needed so far. */
interface Seat {
  readonly usage: number;
  proxy: GpuBuffer | undefined;
}

export class DeviceCopies {
  readonly device: GpuDevice;
  readonly #pieceBytes: number;
  readonly #reads: BoundedPool<Seat>;
  readonly #writes: BoundedPool<Seat>;
  readonly #onEnd: ((error: ShoalError) => void) | undefined;
  #ended: ShoalError | undefined;

  constructor(device: GpuDevice, { pieceBytes = devicePieceBytes, pieces = devicePieces, onEnd }: DeviceCopiesOptions = {}) {
    checkDevice('DeviceCopies', device);
    this.device = device;
    this.#onEnd = onEnd;
    this.#pieceBytes = pieceBytes;
    this.#reads = new BoundedPool<Seat>(pieces, () => ({ usage: bufferUsage.mapRead | bufferUsage.copyTarget, proxy: undefined }));
    this.#writes = new BoundedPool<Seat>(pieces, () => ({ usage: bufferUsage.mapWrite | bufferUsage.copySource, proxy: undefined }));
    void device.lost.then((info) => this.#end(lostError(info)));
  }

  /** Copies the bytes at `source` into `target`. Both are the caller's again when it resolves.
   *  @throws ShoalError `closed` when the device was destroyed, `system` when it was lost, `out-of-memory`, `usage` when it refused. */
  async read({ buffer, byteOffset }: DevicePlace, target: Uint8Array): Promise<void> {
    await this.#pieces(target.length, (at, bytes) => this.gather(buffer, [{ byteOffset: byteOffset + at, bytes }], target.subarray(at)));
  }

  /** Copies `source` to the bytes at `target`. Errors as in `read`. */
  async write({ buffer, byteOffset }: DevicePlace, source: Uint8Array): Promise<void> {
    await this.#pieces(source.length, (at, bytes) => this.scatter(source.subarray(at), buffer, [{ byteOffset: byteOffset + at, bytes }]));
  }

  /** Copies the spans, one after the other, into `target`, by one proxy. @param spans together at most `pieceBytes`. */
  gather(buffer: GpuBuffer, spans: readonly DeviceSpan[], target: Uint8Array): Promise<void> {
    const total = totalOf(spans);
    if (total === 0) return Promise.resolve();
    return this.#lend(this.#reads, total, async (proxy) => {
      const copied = this.#copy(spans, (encoder, byteOffset, at, bytes) =>
        encoder.copyBufferToBuffer(buffer, byteOffset, proxy, at, bytes),
      );
      await Promise.all([copied, proxy.mapAsync(mapMode.read, 0, total)]);
      target.set(new Uint8Array(proxy.getMappedRange(0, total)));
      proxy.unmap();
    });
  }

  /** Copies `source` into the spans, one after the other. Limits as in `gather`. */
  scatter(source: Uint8Array, buffer: GpuBuffer, spans: readonly DeviceSpan[]): Promise<void> {
    const total = totalOf(spans);
    if (total === 0) return Promise.resolve();
    return this.#lend(this.#writes, total, async (proxy) => {
      new Uint8Array(proxy.getMappedRange()).set(source.subarray(0, total));
      proxy.unmap();
      const copied = this.#copy(spans, (encoder, byteOffset, at, bytes) =>
        encoder.copyBufferToBuffer(proxy, at, buffer, byteOffset, bytes),
      );
      // Mapping again resolves when the device has read the proxy, and prepares it for the next copy.
      await Promise.all([copied, proxy.mapAsync(mapMode.write)]);
    });
  }

  /** Gives the proxies back. Copies under way go on; later ones are refused. Idempotent. */
  close(): void {
    this.#end(new ShoalError('closed', 'these copies of a device were closed'));
  }

  async #pieces(length: number, move: (at: number, bytes: number) => Promise<void>): Promise<void> {
    const works: Promise<void>[] = [];
    for (let at = 0; at < length; at += this.#pieceBytes) works.push(move(at, Math.min(this.#pieceBytes, length - at)));
    // It waits for all pieces: none touches the caller's memory after that.
    const failed = (await Promise.allSettled(works)).find((work) => work.status === 'rejected');
    if (failed) throw failed.reason;
  }

  async #lend(pool: BoundedPool<Seat>, bytes: number, use: (proxy: GpuBuffer) => Promise<void>): Promise<void> {
    const seat = await pool.take();
    try {
      if (seat.proxy === undefined || seat.proxy.size < bytes) {
        seat.proxy?.destroy();
        seat.proxy = undefined;
        seat.proxy = await this.#createProxy(
          seat.usage,
          Math.min(this.#pieceBytes, Math.max(smallestProxyBytes, 2 ** Math.ceil(Math.log2(bytes)))),
        );
      }
      await use(seat.proxy);
    } catch (thrown) {
      // The proxy may be mapped, or about to be.
      seat.proxy?.destroy();
      pool.forget();
      throw await this.#failure(thrown);
    }
    if (!pool.give(seat)) seat.proxy.destroy();
  }

  /** Submits the copy of the spans, which in the proxy begin at `at`, before it returns. @returns a promise that resolves when the device
   *  has accepted it. */
  async #copy(
    spans: readonly DeviceSpan[],
    encode: (encoder: GpuCommandEncoder, byteOffset: number, at: number, bytes: number) => void,
  ): Promise<void> {
    const { device } = this;
    let refused: Promise<GpuError | null>;
    device.pushErrorScope('validation');
    try {
      const encoder = device.createCommandEncoder();
      let at = 0;
      for (const { byteOffset, bytes } of spans) {
        if (bytes > 0) encode(encoder, byteOffset, at, bytes);
        at += bytes;
      }
      device.queue.submit([encoder.finish()]);
    } finally {
      refused = device.popErrorScope();
    }
    const error = await refused;
    const bytes = totalOf(spans);
    if (error) throw new ShoalError('usage', `the device refused a copy of ${bytes} bytes: ${error.message}`, { bytes });
  }

  async #createProxy(usage: number, size: number): Promise<GpuBuffer> {
    const mappedAtCreation = (usage & bufferUsage.mapWrite) !== 0;
    const proxy = await createDeviceBuffer(this.device, 'a proxy buffer', { size, usage, mappedAtCreation });
    if (!this.#ended) return proxy;
    proxy.destroy();
    throw this.#ended;
  }

  /** The error of a failed copy. A device that is lost fails mappings first and reports its loss next, so it waits one turn. */
  async #failure(thrown: unknown): Promise<ShoalError> {
    const turn = new Promise<void>((resolve) => void setImmediate(resolve));
    await Promise.race([this.device.lost, turn]);
    return this.#ended ?? ShoalError.from(thrown, 'usage');
  }

  #end(error: ShoalError): void {
    if (this.#ended) return;
    this.#ended = error;
    this.#onEnd?.(error);
    for (const pool of [this.#reads, this.#writes]) for (const { proxy } of pool.close(error)) proxy?.destroy();
  }
}

function totalOf(spans: readonly DeviceSpan[]): number {
  return spans.reduce((total, { bytes }) => total + bytes, 0);
}

function lostError({ reason, message }: { readonly reason: string; readonly message: string }): ShoalError {
  if (reason === 'destroyed') return new ShoalError('closed', 'the device was destroyed; destroy it after its last use');
  const why = message === '' ? '' : `: ${message}`;
  return new ShoalError('system', `the device was lost${why}; make another, and its buffers again`);
}
