/** Memory that peers write tensors into, registered once and reused: with fabrics whose peers map the memory, registering for each request
 *  would cost round trips. Large buffers are separate regions; small ones share slabs.
 *
 *     size classes   64 B, 80, 96, 112, 128, 160 …          four per doubling: at most a fifth of a buffer is unused
 *     slabs          4 MiB, for classes up to 256 KiB        one descriptor for many buffers
 *
 *  One per connection: no other peer can write there, and when the connection ends its memory is never reused, so that a late write
 *  does no harm. Before that, the holder of a buffer frees it when the peer has replied, not earlier. What a peer was asked not to write
 *  any more is *revoked*: nothing is put there until the key of its region is gone, which is when half of the region is revoked and the
 *  rest unused. */
import { pushTo } from '../../base/collections/lists.ts';
import { ShoalError } from '../../base/errors.ts';
import type { RegisteredRegion } from '../../fabric/fabric.ts';
import type { Region } from '../../memory/region.ts';

/** All regions of a worker together. */
export interface MemoryBudget {
  readonly bytesMax: number;
  bytes: number;
}

export interface PooledMemoryOptions {
  /** Makes a region. */
  create(bytes: number): Region;
  register(region: Region): RegisteredRegion;
  readonly budget: MemoryBudget;
  /** Shared by buffers of up to a sixteenth of it. Default 4 MiB. */
  readonly slabBytes?: number;
}

/** Where tensors arrive: pooled (PooledMemory), or handed over for good (ArenaMemory). */
export interface ReceiveMemory {
  /** Told of regions that the peer may forget. */
  onDeregister: ((rkey: number) => void) | undefined;
  /** @throws ShoalError `out-of-memory`. */
  allocate(bytes: number): ReceiveBuffer;
  /** No peer will write to it any more, and no value lies in it. */
  free(buffer: ReceiveBuffer): void;
  /** Frees, like `free`, a buffer that the peer was told not to write to, and says that it will not: it may not keep to that. */
  revoke(buffer: ReceiveBuffer): void;
  /** The same as `free`, but a value lies in it. @returns what gives the memory back when the value is no longer used; undefined: it is the
   *  value's. */
  handOver(buffer: ReceiveBuffer): (() => void) | undefined;
  /** Nothing is written there any more. Values stay readable. */
  close(): void;
}

/** Part of a registered region. */
export interface ReceiveBuffer {
  readonly registered: RegisteredRegion;
  readonly offset: number;
  /** Bytes of its size class: at least as many as were asked for. */
  readonly bytes: number;
}

/** One region. */
interface Use {
  /** Buffers that are given out. */
  buffers: number;
  /** Bytes that are not given out again. */
  revokedBytes: number;
}

const smallestBytes = 64;
/** A budget has room for one, or no small tensor could be received. */
export const defaultSlabBytes = 4 * 1024 * 1024;
const slabShare = 16;
const alignment = 64;

export class PooledMemory implements ReceiveMemory {
  onDeregister: ReceiveMemory['onDeregister'];
  readonly #options: PooledMemoryOptions;
  readonly #slabBytes: number;
  readonly #free = new Map<number, ReceiveBuffer[]>();
  readonly #regions = new Map<RegisteredRegion, Use>();
  #slab: { registered: RegisteredRegion; used: number } | undefined;
  #inUse = 0;
  #closed = false;

  constructor(options: PooledMemoryOptions) {
    this.#options = options;
    this.#slabBytes = options.slabBytes ?? defaultSlabBytes;
  }

  /** @throws ShoalError `out-of-memory` when `bytesMax` does not allow another, or the host has no more. */
  allocate(bytes: number): ReceiveBuffer {
    const size = sizeClass(bytes);
    const buffer = this.#free.get(size)?.pop() ?? this.#make(size);
    this.#inUse += size;
    this.#regions.get(buffer.registered)!.buffers++;
    return buffer;
  }

  /** No peer will write to it any more. */
  free(buffer: ReceiveBuffer): void {
    if (this.#takeBack(buffer, 0)) pushTo(this.#free, buffer.bytes, buffer);
  }

  revoke(buffer: ReceiveBuffer): void {
    this.#takeBack(buffer, buffer.bytes);
  }

  handOver(buffer: ReceiveBuffer): () => void {
    let isReleased = false;
    return () => {
      if (isReleased) return;
      isReleased = true;
      this.free(buffer);
    };
  }

  /** Values that were received stay readable. */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    for (const registered of [...this.#regions.keys()]) this.#giveUp(registered);
    this.#free.clear();
  }

  /** @returns whether the region goes on. */
  #takeBack({ registered, bytes }: ReceiveBuffer, revokedBytes: number): boolean {
    this.#inUse -= bytes;
    const use = this.#regions.get(registered);
    if (use === undefined) return false;
    use.buffers--;
    use.revokedBytes += revokedBytes;
    if (use.revokedBytes * 2 < registered.bytes) return true;
    if (revokedBytes > 0) {
      if (this.#slab?.registered === registered) this.#slab = undefined;
      const isElsewhere = (buffer: ReceiveBuffer): boolean => buffer.registered !== registered;
      for (const [size, free] of this.#free) this.#free.set(size, free.filter(isElsewhere));
    }
    if (use.buffers === 0) this.#giveUp(registered);
    return false;
  }

  #make(size: number): ReceiveBuffer {
    if (this.#closed) throw new ShoalError('closed', 'memory for received tensors is closed');
    if (size > this.#slabBytes / slabShare) {
      return { registered: this.#addRegion(size, size), offset: 0, bytes: size };
    }
    if (this.#slab === undefined || this.#slab.used + size > this.#slabBytes)
      this.#slab = { registered: this.#addRegion(this.#slabBytes, size), used: 0 };
    const { registered, used: offset } = this.#slab;
    this.#slab.used += Math.ceil(size / alignment) * alignment;
    return { registered, offset, bytes: size };
  }

  /** @param size of the buffer that it is for. */
  #addRegion(bytes: number, size: number): RegisteredRegion {
    const { create, register, budget } = this.#options;
    const { bytesMax } = budget;
    if (budget.bytes + bytes > bytesMax) this.#evict(budget.bytes + bytes - bytesMax);
    if (budget.bytes + bytes > bytesMax) {
      const message = `no memory for a received tensor of ${size} bytes${bytes === size ? '' : `, which shares a new slab of ${bytes} with others`}: ${budget.bytes} of ${bytesMax} bytes are taken, ${this.#inUse} by tensors of this peer; release what was received, or raise memoryBytesMax`;
      throw new ShoalError('out-of-memory', message, { bytes: size });
    }
    const region = create(bytes);
    try {
      const registered = register(region);
      this.#regions.set(registered, { buffers: 0, revokedBytes: 0 });
      budget.bytes += bytes;
      return registered;
    } catch (thrown) {
      region.close();
      throw thrown;
    }
  }

  /** Gives back free regions, the largest first. */
  #evict(bytes: number): void {
    let left = bytes;
    for (const size of [...this.#free.keys()].filter((each) => each > this.#slabBytes / slabShare).sort((a, b) => b - a)) {
      const free = this.#free.get(size)!;
      for (let buffer = free.pop(); buffer !== undefined; buffer = free.pop()) {
        this.#giveUp(buffer.registered);
        left -= size;
        if (left <= 0) return;
      }
    }
  }

  #giveUp(registered: RegisteredRegion): void {
    if (!this.#regions.delete(registered)) return;
    this.#options.budget.bytes -= registered.bytes;
    registered.deregister();
    // Views of it may be in use.
    registered.region.retire();
    this.onDeregister?.(registered.rkey);
  }
}

/** The smallest class that holds so many bytes. */
export function sizeClass(bytes: number): number {
  if (bytes <= smallestBytes) return smallestBytes;
  const doubling = 2 ** Math.floor(Math.log2(bytes - 1));
  const step = Math.max(16, doubling / 4);
  return Math.ceil(bytes / step) * step;
}
