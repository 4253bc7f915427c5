/** Memory for tensors whose last use is unknown: a value keeps its memory for good, and the garbage
 *  collector frees it. Memory is never copied, reused or overwritten.
 *
 *     small tensors   one behind the other in an arena of 256 KiB: one registration for many
 *     large ones      a region each: a reference to one keeps no other memory alive
 *
 *  A region is registered for as long as peers may write to it: until its last requested tensor has arrived. One per connection. */
import { ShoalError } from '../../base/errors.ts';
import type { RegisteredRegion } from '../../fabric/fabric.ts';
import type { Region } from '../../memory/region.ts';
import { allocated } from '../value/tensor-value.ts';
import type { MemoryBudget, ReceiveBuffer, ReceiveMemory } from './pooled-memory.ts';
import { memoryRegion } from '../../memory/regions/thread.ts';

export interface ArenaMemoryOptions {
  register(region: Region): RegisteredRegion;
  /** Bytes of places that wait for their tensors, of all peers together. */
  readonly budget: MemoryBudget;
  /** Shared by tensors of up to a sixteenth of it. Default 256 KiB. */
  readonly arenaBytes?: number;
}

interface Arena {
  readonly registered: RegisteredRegion;
  /** Bytes that have been given out. */
  used: number;
  /** Places whose tensors have not come. */
  awaited: number;
}

const defaultArenaBytes = 256 * 1024;
const arenaShare = 16;
/** The alignment of every dtype's elements, and of a cache line. */
const alignment = 64;

export class ArenaMemory implements ReceiveMemory {
  onDeregister: ReceiveMemory['onDeregister'];
  readonly #options: ArenaMemoryOptions;
  readonly #arenaBytes: number;
  /** Regions that peers may write to. */
  readonly #arenas = new Map<number, Arena>();
  #open: Arena | undefined;
  #awaitedBytes = 0;
  #closed = false;

  constructor(options: ArenaMemoryOptions) {
    this.#options = options;
    this.#arenaBytes = options.arenaBytes ?? defaultArenaBytes;
  }

  allocate(bytes: number): ReceiveBuffer {
    const { budget } = this.#options;
    const size = Math.ceil(bytes / alignment) * alignment;
    if (this.#closed) throw new ShoalError('closed', 'memory for received tensors is closed');
    if (budget.bytes + size > budget.bytesMax) {
      const message = `no memory for a received tensor of ${bytes} bytes: ${budget.bytes} of ${budget.bytesMax} bytes are waited for already`;
      throw new ShoalError('out-of-memory', message, { bytes });
    }
    const isLarge = size > this.#arenaBytes / arenaShare;
    const arena = isLarge ? this.#make(size) : this.#arenaFor(size);
    const offset = arena.used;
    arena.used += size;
    arena.awaited++;
    budget.bytes += size;
    this.#awaitedBytes += size;
    return { registered: arena.registered, offset, bytes: size };
  }

  free(buffer: ReceiveBuffer): void {
    this.handOver(buffer);
  }

  revoke(buffer: ReceiveBuffer): void {
    this.handOver(buffer);
  }

  handOver({ registered, bytes }: ReceiveBuffer): undefined {
    if (this.#closed) return;
    this.#options.budget.bytes -= bytes;
    this.#awaitedBytes -= bytes;
    const arena = this.#arenas.get(registered.rkey);
    if (arena === undefined || --arena.awaited > 0 || arena === this.#open) return;
    this.#giveUp(arena);
  }

  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#options.budget.bytes -= this.#awaitedBytes;
    this.#awaitedBytes = 0;
    for (const arena of [...this.#arenas.values()]) this.#giveUp(arena);
  }

  #arenaFor(size: number): Arena {
    const open = this.#open;
    if (open !== undefined && open.used + size <= this.#arenaBytes) return open;
    this.#open = this.#make(this.#arenaBytes);
    if (open?.awaited === 0) this.#giveUp(open);
    return this.#open;
  }

  #make(bytes: number): Arena {
    const arena = { registered: this.#options.register(memoryRegion(allocated(bytes))), used: 0, awaited: 0 };
    this.#arenas.set(arena.registered.rkey, arena);
    return arena;
  }

  #giveUp({ registered }: Arena): void {
    this.#arenas.delete(registered.rkey);
    registered.deregister();
    this.onDeregister?.(registered.rkey);
  }
}
