/** Memory for tensors and for staging foreign arrays, on the main thread; every region is also mapped by the comm thread.
 *
 *    ≤ 512 KiB    blocks of a power of two (128 B and up) cut from 1 MiB slabs, so that small tensors share regions
 *    larger       a region each, size rounded up to a page
 *
 *  Freed blocks are reused; freed large regions are kept up to a budget, because mapping memory costs more than copying it.
 *  Retired blocks are not reused. A region of which nothing but retired blocks is left is dropped: the comm thread and other ranks
 *  unmap it, and on this thread it is mapped for as long as something refers to it. */
import { must } from '../../base/assert.ts';
import { ShoalError } from '../../base/errors.ts';
import { pushTo } from '../../base/collections/lists.ts';
import type { Region, RegionAllocator } from '../../memory/region.ts';
import { TensorBlock, type BlockOwner } from './tensor-block.ts';
import type { Span } from '../../fabric/fabric.ts';

const smallestBytes = 128;
const slabBytes = 2 ** 20;
/** Larger ones are regions of their own. */
export const largestBlockBytes = slabBytes / 2;
const pageBytes = 4096;

export interface TensorMemoryOptions {
  readonly allocator: RegionAllocator;
  /** Freed large regions kept for reuse, bytes. */
  readonly cacheBytesMax: number;
  /** `key` names the region to all ranks; even numbers, never reused. */
  readonly onCreate: (region: Region, key: number) => void;
  readonly onDrop: (region: Region) => void;
}

/** A region and what it is cut into. */
interface Cut {
  readonly region: Region;
  readonly key: number;
  /** Size of its blocks; of a large one: its own. */
  blockBytes: number;
  /** Blocks that somebody has. */
  taken: number;
  /** Blocks that somebody can get. */
  free: number;
  /** The blocks of tensors, by offset. */
  readonly tensors: Map<number, TensorBlock>;
}

export class TensorMemory implements BlockOwner {
  readonly #options: TensorMemoryOptions;
  readonly #regions = new Map<string, Cut>();
  readonly #byBuffer = new Map<ArrayBufferLike, Cut>();
  #nextKey = 2;
  readonly #freeBlocks = new Map<number, Span[]>();
  readonly #freeRegions = new Map<number, Region[]>();
  #cachedBytes = 0;
  #closed = false;

  constructor(options: TensorMemoryOptions) {
    this.#options = options;
  }

  /** True for memory of this world, which communication reaches in place. */
  owns(region: Region): boolean {
    if (region instanceof TensorBlock) return !this.#closed && region.isLiveIn(this);
    return this.#regions.get(region.id)?.region === region;
  }

  /** The memory of the tensor that lies there; undefined where there is none. */
  blockAt(buffer: ArrayBufferLike, offset: number): TensorBlock | undefined {
    const cut = this.#byBuffer.get(buffer);
    return cut?.tensors.get(offset - (offset % cut.blockBytes));
  }

  /** The region and the name under which ranks know it. */
  lookUp(regionId: string): { region: Region; key: number } {
    return this.#cutOf(regionId);
  }

  /** Garbage or zeros. @throws ShoalError `out-of-memory`, `unsupported`, `closed`. */
  allocate(bytes: number): Span {
    if (this.#closed) throw new ShoalError('closed', 'the process group was destroyed; make tensors before');
    if (bytes > largestBlockBytes) {
      const size = Math.ceil(bytes / pageBytes) * pageBytes;
      const region = this.#takeRegion(size);
      this.#cutOf(region.id).taken = 1;
      return { region, offset: 0, bytes: size };
    }
    const size = Math.max(smallestBytes, 2 ** Math.ceil(Math.log2(Math.max(1, bytes))));
    const block = must(this.#freeBlocks.get(size)?.pop() ?? this.#cutSlab(size).pop(), () => 'a slab has blocks');
    const cut = this.#cutOf(block.region.id);
    cut.free -= 1;
    cut.taken += 1;
    return block;
  }

  /** The memory of a tensor. Garbage or zeros. @throws ShoalError as `allocate`. */
  allocateTensor(bytes: number): { readonly block: TensorBlock; readonly offset: number } {
    const memory = this.allocate(bytes);
    const block = new TensorBlock(this, memory);
    this.#cutOf(memory.region.id).tensors.set(memory.offset, block);
    return { block, offset: memory.offset };
  }

  /** Whether the budget has room for a block of so many bytes, which may be needed later. @throws ShoalError `out-of-memory`. */
  checkFits(bytes: number): void {
    // Smaller ones come from slabs, most of the time one that is there.
    if (bytes <= largestBlockBytes) return;
    const size = Math.ceil(bytes / pageBytes) * pageBytes;
    if (!this.#freeRegions.get(size)?.length) this.#options.allocator.checkBudget(size);
  }

  free(block: Span): void {
    if (this.#closed) return;
    const cut = this.#takeBack(block);
    if (block.bytes <= largestBlockBytes) {
      cut.free += 1;
      this.#freeBlocks.get(block.bytes)?.push(block);
      return;
    }
    if (this.#cachedBytes + block.bytes > this.#options.cacheBytesMax) {
      this.#drop(block.region);
      block.region.close();
      return;
    }
    this.#cachedBytes += block.bytes;
    pushTo(this.#freeRegions, block.bytes, block.region);
  }

  /** Retires a block: nobody gets it again, and its contents stay for those who still refer to them. */
  retire(block: Span): void {
    if (this.#closed) return;
    const cut = this.#takeBack(block);
    if (cut.taken + cut.free > 0) return;
    this.#drop(block.region);
    block.region.retire();
  }

  close(): void {
    this.#closed = true;
    this.#freeBlocks.clear();
    this.#freeRegions.clear();
    // Mappings are left to the garbage collector: the caller may still read its tensors.
    this.#regions.clear();
    this.#byBuffer.clear();
  }

  #cutOf(regionId: string): Cut {
    return must(this.#regions.get(regionId), () => `region ${regionId} belongs to this memory`);
  }

  #takeBack({ region, offset }: Span): Cut {
    const cut = this.#cutOf(region.id);
    cut.taken -= 1;
    cut.tensors.delete(offset);
    return cut;
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
    const cut: Cut = { region, key, blockBytes: bytes, taken: 0, free: 0, tensors: new Map() };
    this.#regions.set(region.id, cut);
    this.#byBuffer.set(region.buffer, cut);
    this.#options.onCreate(region, key);
    return region;
  }

  #cutSlab(size: number): Span[] {
    const region = this.#takeRegion(slabBytes);
    const cut = this.#cutOf(region.id);
    cut.blockBytes = size;
    cut.free = slabBytes / size;
    const blocks = this.#freeBlocks.get(size) ?? [];
    this.#freeBlocks.set(size, blocks);
    for (let offset = slabBytes - size; offset >= 0; offset -= size) blocks.push({ region, offset, bytes: size });
    return blocks;
  }

  #drop(region: Region): void {
    this.#options.onDrop(region);
    this.#regions.delete(region.id);
    this.#byBuffer.delete(region.buffer);
  }
}
