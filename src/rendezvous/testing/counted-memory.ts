/** Memory for received tensors, with the bytes that are given out. */
import { PooledMemory, type PooledMemoryOptions, type ReceiveBuffer } from '../protocol/pooled-memory.ts';

export class CountedMemory extends PooledMemory {
  readonly #budget: PooledMemoryOptions['budget'];
  #inUse = 0;

  constructor(options: PooledMemoryOptions) {
    super(options);
    this.#budget = options.budget;
  }

  get usage(): { readonly bytes: number; readonly inUse: number } {
    return { bytes: this.#budget.bytes, inUse: this.#inUse };
  }

  override allocate(bytes: number): ReceiveBuffer {
    const buffer = super.allocate(bytes);
    this.#inUse += buffer.bytes;
    return buffer;
  }

  override free(buffer: ReceiveBuffer): void {
    this.#inUse -= buffer.bytes;
    super.free(buffer);
  }

  override revoke(buffer: ReceiveBuffer): void {
    this.#inUse -= buffer.bytes;
    super.revoke(buffer);
  }
}
