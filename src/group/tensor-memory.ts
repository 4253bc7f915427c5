/** Memory for tensors and for staging foreign arrays, on the main thread; every region is also mapped by the comm thread.
 *
 *    ≤ 512 KiB    blocks of a power of two (128 B and up) cut from 1 MiB slabs, so that small tensors share regions
 *    larger       a region each, size rounded up to a page
 *
 *  Freed blocks are reused; freed large regions are kept up to a budget, because mapping memory costs more than copying it. */
import { must } from '../base/assert.ts';
import { ShoalError } from '../base/errors.ts';
import type { Region, RegionAllocator } from '../memory/region.ts';

const smallestBytes = 128;
const slabBytes = 2 ** 20;
/** Larger ones are regions of their own. */
export const largestBlockBytes = slabBytes / 2;
const pageBytes = 4096;

export interface MemoryBlock {
  readonly region: Region;
  readonly offset: number;
  readonly bytes: number;
}

export interface TensorMemoryOptions {
  readonly allocator: RegionAllocator;
  /** Freed large regions kept for reuse, bytes. */
  readonly cacheBytesMax: number;
  /** `key` names the region to all ranks; even numbers, never reused. */
  readonly onCreate: (region: Region, key: number) => void;
  readonly onDrop: (region: Region) => void;
}

export class TensorMemory {
  readonly #options: TensorMemoryOptions;
  readonly #regions = new Map<string, { region: Region; key: number }>();
  #nextKey = 2;
  readonly #freeBlocks = new Map<number, MemoryBlock[]>();
  readonly #freeRegions = new Map<number, Region[]>();
  #cachedBytes = 0;
  #closed = false;

  constructor(options: TensorMemoryOptions) {
    this.#options = options;
  }

  /** True for memory of this world, which communication reaches in place. */
  owns(region: Region): boolean {
    return this.#regions.get(region.id)?.region === region;
  }

  /** The region and the name under which ranks know it. */
  lookUp(regionId: string): { region: Region; key: number } {
    return must(this.#regions.get(regionId), () => `region ${regionId} belongs to this memory`);
  }

  /** Garbage or zeros. @throws ShoalError `out-of-memory`, `unsupported`, `closed`. */
  allocate(bytes: number): MemoryBlock {
    if (this.#closed) throw new ShoalError('closed', 'the process group was destroyed; make tensors before');
    if (bytes > largestBlockBytes) {
      const size = Math.ceil(bytes / pageBytes) * pageBytes;
      return { region: this.#takeRegion(size), offset: 0, bytes: size };
    }
    const size = Math.max(smallestBytes, 2 ** Math.ceil(Math.log2(Math.max(1, bytes))));
    const free = this.#freeBlocks.get(size) ?? this.#cutSlab(size);
    const block = free.pop();
    if (block) return block;
    return this.#cutSlab(size).pop() as MemoryBlock;
  }

  /** Whether the budget has room for a block of so many bytes, which may be needed later. @throws ShoalError `out-of-memory`. */
  checkFits(bytes: number): void {
    // Smaller ones come from slabs, most of the time one that is there.
    if (bytes <= largestBlockBytes) return;
    const size = Math.ceil(bytes / pageBytes) * pageBytes;
    if (!this.#freeRegions.get(size)?.length) this.#options.allocator.checkBudget(size);
  }

  free(block: MemoryBlock): void {
    if (this.#closed) return;
    if (block.bytes <= largestBlockBytes) {
      this.#freeBlocks.get(block.bytes)?.push(block);
      return;
    }
    if (this.#cachedBytes + block.bytes > this.#options.cacheBytesMax) {
      this.#drop(block.region);
      return;
    }
    this.#cachedBytes += block.bytes;
    const cached = this.#freeRegions.get(block.bytes);
    if (cached) cached.push(block.region);
    else this.#freeRegions.set(block.bytes, [block.region]);
  }

  close(): void {
    this.#closed = true;
    this.#freeBlocks.clear();
    this.#freeRegions.clear();
    // Mappings are left to the garbage collector: the caller may still read its tensors.
    this.#regions.clear();
  }

  #takeRegion(bytes: number): Region {
    const cached = this.#freeRegions.get(bytes)?.pop();
    if (cached) {
      this.#cachedBytes -= bytes;
      return cached;
    }
    const region = this.#options.allocator.create(bytes);
    const key = this.#nextKey;
    this.#nextKey += 2;
    this.#regions.set(region.id, { region, key });
    this.#options.onCreate(region, key);
    return region;
  }

  #cutSlab(size: number): MemoryBlock[] {
    const region = this.#takeRegion(slabBytes);
    const blocks = this.#freeBlocks.get(size) ?? [];
    this.#freeBlocks.set(size, blocks);
    for (let offset = slabBytes - size; offset >= 0; offset -= size) blocks.push({ region, offset, bytes: size });
    return blocks;
  }

  #drop(region: Region): void {
    this.#regions.delete(region.id);
    this.#options.onDrop(region);
    region.close();
  }
}
