/** The memory that values of this process lie in, as one thread sees it: regions made by several threads of the process,
 *  each under its number. A thread numbers its own regions; others map them.
 *
 *  And the memory of another process, as far as it was announced to us and can be mapped. */
import { must } from '../../base/assert.ts';
import { isShoalError, ShoalError } from '../../base/errors.ts';
import { decodeHandle, encodeHandle } from '../../fabric/region-handle.ts';
import type { FramePlaces } from '../../messaging/backends/fabric/frame-places.ts';
import { TensorMemory } from '../../group/caller/tensor-memory.ts';
import type { Region, RegionAllocator, RegionShare } from '../../memory/region.ts';
import type { OwnValues, RemoteValues, ValueBlock, ValueRef } from './value-space.ts';

/** Freed large blocks whose memory is kept for the next ones. */
const cacheBytesMax = 256 * 2 ** 20;
/** Most regions of one peer that are mapped. */
const peerRegionsMax = 4096;
/** Numbers of one thread's regions. */
const regionsPerThread = 2 ** 24;

export interface ProcessValuesOptions {
  readonly allocator: RegionAllocator;
  /** The number of this thread among those of the process that make regions: 0, 1, … */
  readonly thread: number;
  /** Other threads must map a region before anybody refers to it. */
  readonly onCreate: (region: number, share: RegionShare) => void;
  readonly onDrop: (region: number) => void;
  /** Places that messages' frames may be written to. Default: none. */
  readonly places?: FramePlaces | undefined;
}

export class ProcessValues implements OwnValues {
  readonly #allocator: RegionAllocator;
  readonly #memory: TensorMemory;
  readonly #first: number;
  readonly #byNumber = new Map<number, { region: Region; own: boolean }>();
  readonly #places: FramePlaces | undefined;
  /** The key of each region's place, by number. */
  readonly #keys = new Map<number, number>();

  constructor({ allocator, thread, onCreate, onDrop, places }: ProcessValuesOptions) {
    this.#places = places;
    this.#allocator = allocator;
    this.#first = thread * regionsPerThread;
    this.#memory = new TensorMemory({
      allocator,
      cacheBytesMax,
      onCreate: (region, key) => {
        this.#byNumber.set(this.#first + key, { region, own: true });
        onCreate(this.#first + key, region.share);
      },
      onDrop: (region) => {
        const number = this.#numberOf(region);
        this.#dropPlace(number, { inFlight: false });
        this.#byNumber.delete(number);
        onDrop(number);
      },
    });
  }

  /** Maps a region of another thread. */
  adopt(number: number, share: RegionShare): void {
    this.#byNumber.set(number, { region: this.#allocator.open(share), own: false });
  }

  release(number: number): void {
    const mapped = this.#byNumber.get(number);
    if (mapped === undefined || mapped.own) return;
    this.#dropPlace(number, { inFlight: false });
    this.#byNumber.delete(number);
    mapped.region.close();
  }

  /** True for regions of this thread. */
  owns(region: Region): boolean {
    return this.#memory.owns(region);
  }

  /** A part of a region of this thread. */
  refOf(region: Region, offset: number, bytes: number): ValueRef {
    return { region: this.#numberOf(region), offset, bytes };
  }

  regionOf(number: number): Region {
    const mapped = this.#byNumber.get(number);
    if (mapped === undefined) throw new ShoalError('closed', `memory ${number} of this process has been released`);
    return mapped.region;
  }

  allocate(bytes: number): ValueBlock {
    const block = this.#memory.allocate(bytes);
    let freed = false;
    const view = new Uint8Array(block.region.buffer, block.offset, bytes);
    return {
      ref: this.refOf(block.region, block.offset, bytes),
      view,
      free: () => {
        if (!freed) this.#memory.free(block);
        freed = true;
      },
    };
  }

  view({ region, offset, bytes }: ValueRef): Uint8Array {
    return new Uint8Array(this.regionOf(region).buffer, offset, bytes);
  }

  handleOf(number: number): string | undefined {
    const { region } = must(this.#byNumber.get(number), () => `region ${number} belongs to this process`);
    return region.share.kind === 'shared' ? encodeHandle(region) : undefined;
  }

  bytesOf(number: number): number {
    return this.regionOf(number).bytes;
  }

  placeOf(number: number): number {
    const known = this.#keys.get(number);
    if (known !== undefined || this.#places === undefined) return known ?? 0;
    const key = this.#places.open(this.regionOf(number));
    if (key !== 0) this.#keys.set(number, key);
    return key;
  }

  closePlace(number: number): void {
    this.#dropPlace(number, { inFlight: true });
  }

  #dropPlace(number: number, how: { readonly inFlight: boolean }): void {
    const key = this.#keys.get(number);
    if (key === undefined) return;
    this.#keys.delete(number);
    this.#places?.close(key, how);
  }

  close(): void {
    for (const number of this.#keys.keys()) this.#dropPlace(number, { inFlight: false });
    this.#memory.close();
    for (const { region, own } of this.#byNumber.values()) if (!own) region.close();
    this.#byNumber.clear();
  }

  #numberOf(region: Region): number {
    return this.#first + this.#memory.lookUp(region.id).key;
  }
}

export class PeerValues implements RemoteValues {
  readonly #allocator: RegionAllocator;
  readonly #mapped = new Map<number, { readonly handle: string; readonly region: Region }>();

  constructor(allocator: RegionAllocator) {
    this.#allocator = allocator;
  }

  view({ region, offset, bytes }: ValueRef): Uint8Array {
    const mapped = this.#mapped.get(region)?.region;
    if (mapped === undefined) throw new ShoalError('protocol', `region ${region} was not announced`);
    if (!Number.isSafeInteger(offset) || !Number.isSafeInteger(bytes) || offset < 0 || bytes < 0 || offset + bytes > mapped.bytes) {
      throw new ShoalError('protocol', `bytes ${offset} to ${offset + bytes} are not in region ${region} of ${mapped.bytes} bytes`);
    }
    return new Uint8Array(mapped.buffer, offset, bytes);
  }

  attach(region: number, handle: string, bytes: number): boolean {
    if (this.#mapped.get(region)?.handle === handle) return true;
    // Its number was given to other memory while we were not there to hear that the first was released.
    this.detach(region);
    if (this.#mapped.size >= peerRegionsMax) return false;
    const share = decodeHandle(handle);
    if (share.bytes !== bytes) throw new ShoalError('protocol', `region ${region} is announced with ${bytes} bytes and has ${share.bytes}`);
    try {
      this.#mapped.set(region, { handle, region: this.#allocator.open(share) });
      return true;
    } catch (error) {
      // Another host, container or user; or the process is gone already.
      if (isShoalError(error)) return false;
      throw error;
    }
  }

  detach(region: number): void {
    this.#mapped.get(region)?.region.close();
    this.#mapped.delete(region);
  }

  /** Nothing is found there any more; what somebody reads still stays for so long. */
  retire(): void {
    for (const { region } of this.#mapped.values()) region.retire();
    this.#mapped.clear();
  }

  close(): void {
    for (const { region } of this.#mapped.values()) region.close();
    this.#mapped.clear();
  }
}
