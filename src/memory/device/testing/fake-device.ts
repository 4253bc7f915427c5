/** A WebGPU device in this thread's memory, with the specification's rules for copies and mappings: for tests without a driver,
 *  and of events that are rare with drivers. It computes nothing. */
import { bufferUsage, type GpuBuffer, type GpuCommandEncoder, type GpuDevice, type GpuError, type GpuLostInfo } from '../gpu.ts';

class FakeBuffer implements GpuBuffer {
  readonly size: number;
  readonly usage: number;
  readonly memory: Uint8Array;
  readonly #device: FakeDevice;
  #mapped: ArrayBuffer | undefined;
  #pending: ((error: Error) => void) | undefined;
  destroyed = false;

  constructor(device: FakeDevice, size: number, usage: number, isMapped: boolean) {
    this.#device = device;
    this.size = size;
    this.usage = usage;
    this.memory = new Uint8Array(size);
    if (isMapped) this.#mapped = new ArrayBuffer(size);
  }

  mapAsync(mode: number, offset = 0, size = this.size - offset): Promise<void> {
    const wanted = mode === 1 ? bufferUsage.mapRead : bufferUsage.mapWrite;
    if (this.destroyed || this.#mapped || this.#pending || (this.usage & wanted) === 0 || offset + size > this.size)
      return Promise.reject(new Error('OperationError: the buffer cannot be mapped'));
    if (this.#device.isLost) return Promise.reject(new Error('AbortError'));
    return new Promise((resolve, reject) => {
      this.#pending = reject;
      this.#device.later(() => {
        if (this.#pending === undefined) return;
        this.#pending = undefined;
        this.#mapped = this.memory.slice(0, offset + size).buffer;
        resolve();
      });
    });
  }

  getMappedRange(offset = 0, size = this.size - offset): ArrayBuffer {
    if (!this.#mapped || offset !== 0 || size > this.size) throw new Error('OperationError: not mapped');
    // Supports one range at a time, from the start, which is all that is used.
    this.#mapped = size === this.#mapped.byteLength ? this.#mapped : this.#mapped.slice(0, size);
    return this.#mapped;
  }

  unmap(): void {
    if (this.#mapped && (this.usage & bufferUsage.mapRead) === 0) this.memory.set(new Uint8Array(this.#mapped));
    this.#mapped = this.#mapped && (structuredClone(this.#mapped, { transfer: [this.#mapped] }), undefined);
  }

  destroy(): void {
    this.destroyed = true;
    this.abort();
  }

  abort(): void {
    this.#pending?.(new Error('AbortError'));
    this.#pending = undefined;
  }

  /** The reason why the queue may not use the buffer. */
  get unusable(): string | undefined {
    if (this.destroyed) return 'used in submit while destroyed';
    return this.#mapped || this.#pending ? 'used in submit while mapped' : undefined;
  }
}

export class FakeDevice implements GpuDevice {
  readonly limits = { maxBufferSize: 2 ** 28 };
  readonly lost: Promise<GpuLostInfo>;
  #tellLost!: (info: GpuLostInfo) => void;
  readonly #scopes: { readonly filter: string; error: GpuError | null }[] = [];
  readonly #buffers = new Set<FakeBuffer>();
  isLost = false;
  /** Bytes that there is room for. */
  room = Infinity;
  /** Number of buffers that were made. */
  made = 0;

  constructor() {
    this.lost = new Promise((resolve) => (this.#tellLost = resolve));
  }

  readonly queue = {
    submit: (commands: object[]): void => {
      for (const command of commands) (command as { run(): void }).run();
    },
  };

  createBuffer({ size, usage, mappedAtCreation = false }: { size: number; usage: number; mappedAtCreation?: boolean }): GpuBuffer {
    const buffer = new FakeBuffer(this, size, usage, mappedAtCreation);
    this.made += 1;
    this.room -= size;
    if (this.room < 0) this.#report('out-of-memory', 'no room in the device');
    this.#buffers.add(buffer);
    return buffer;
  }

  createCommandEncoder(): GpuCommandEncoder {
    const copies: (() => void)[] = [];
    return {
      copyBufferToBuffer: (source, sourceOffset, target, targetOffset, bytes) => {
        copies.push(() => this.#copy(source as FakeBuffer, sourceOffset, target as FakeBuffer, targetOffset, bytes));
      },
      finish: () => ({ run: () => copies.forEach((copy) => copy()) }),
    };
  }

  pushErrorScope(filter: string): void {
    this.#scopes.push({ filter, error: null });
  }

  async popErrorScope(): Promise<GpuError | null> {
    const scope = this.#scopes.pop();
    await new Promise<void>((resolve) => this.later(resolve));
    return scope?.error ?? null;
  }

  destroy(): void {
    this.lose('destroyed', 'device was destroyed');
  }

  lose(reason: string, message: string): void {
    this.isLost = true;
    for (const buffer of this.#buffers) buffer.abort();
    this.#tellLost({ reason, message });
  }

  /** Calls back when the device has come to it. */
  later(done: () => void): void {
    setImmediate(done);
  }

  #copy(source: FakeBuffer, sourceOffset: number, target: FakeBuffer, targetOffset: number, bytes: number): void {
    const wrong = [sourceOffset, targetOffset, bytes].some((at) => at % 4 !== 0)
      ? 'not a multiple of 4'
      : (source.unusable ?? target.unusable);
    const outside = sourceOffset + bytes > source.size || targetOffset + bytes > target.size ? 'outside the buffer' : undefined;
    const usage =
      (source.usage & bufferUsage.copySource) === 0 || (target.usage & bufferUsage.copyTarget) === 0 ? 'lacks usage' : undefined;
    const error = wrong ?? outside ?? usage;
    if (error !== undefined) this.#report('validation', error);
    else if (!this.isLost) target.memory.set(source.memory.subarray(sourceOffset, sourceOffset + bytes), targetOffset);
  }

  #report(filter: string, message: string): void {
    const scope = this.#scopes.findLast((each) => each.filter === filter);
    if (!scope) throw new Error(`uncaptured: ${message}`);
    scope.error ??= { message };
  }
}

/** A buffer for tensors. @param data its contents; fewer bytes than `size` are followed by zeros. */
export function bufferOf(device: GpuDevice, data: ArrayBufferView, size = data.byteLength): GpuBuffer {
  const usage = bufferUsage.copySource | bufferUsage.copyTarget | bufferUsage.storage;
  const buffer = device.createBuffer({ size: Math.max(4, size), usage, mappedAtCreation: true });
  new Uint8Array(buffer.getMappedRange()).set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
  buffer.unmap();
  return buffer;
}
