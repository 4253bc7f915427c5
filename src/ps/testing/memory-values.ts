/** Memory of simulated processes: regions that others can or cannot map, without shared memory. */
import { must } from '../../base/assert.ts';
import { ShoalError } from '../../base/errors.ts';
import type { OwnValues, RemoteValues, ValueBlock, ValueRef } from '../protocol/value-space.ts';

/** Every region of every process, by handle. */
export type RegionRegistry = Map<string, Uint8Array>;

const placeKeys = { next: 1 };

/** Memory that messages' frames may be written to, by key. */
export type PlaceRegistry = Map<number, Uint8Array>;

export class MemoryValues implements OwnValues {
  readonly #name: string;
  readonly #registry: RegionRegistry;
  readonly #mappable: boolean;
  readonly #places: PlaceRegistry;
  readonly #keys = new Map<number, number>();
  readonly #regions = new Map<number, Uint8Array>();
  #next = 1;

  constructor(
    name: string,
    registry: RegionRegistry,
    { mappable, places = new Map() }: { readonly mappable: boolean; readonly places?: PlaceRegistry },
  ) {
    this.#places = places;
    this.#name = name;
    this.#registry = registry;
    this.#mappable = mappable;
  }

  get allocated(): number {
    return this.#regions.size;
  }

  allocate(bytes: number): ValueBlock {
    const region = this.#next++;
    const view = new Uint8Array(new ArrayBuffer(bytes));
    this.#regions.set(region, view);
    this.#registry.set(`${this.#name}/${region}`, view);
    return {
      ref: { region, offset: 0, bytes },
      view,
      free: () => {
        this.closePlace(region);
        // Whoever still reads or writes it is found out.
        if (this.#regions.delete(region)) view.fill(0xee);
      },
    };
  }

  view({ region, offset, bytes }: ValueRef): Uint8Array {
    return must(this.#regions.get(region), () => `region ${region} of ${this.#name} is in use`).subarray(offset, offset + bytes);
  }

  handleOf(region: number): string | undefined {
    return this.#mappable ? `${this.#name}/${region}` : undefined;
  }

  placeOf(region: number): number {
    let key = this.#keys.get(region);
    if (key === undefined) {
      const memory = must(this.#regions.get(region), () => `region ${region} of ${this.#name} is in use`);
      // Keys are never used again.
      key = placeKeys.next++;
      this.#keys.set(region, key);
      this.#places.set(key, memory);
    }
    return key;
  }

  closePlace(region: number): void {
    this.#places.delete(this.#keys.get(region) ?? 0);
    this.#keys.delete(region);
  }

  bytesOf(region: number): number {
    return must(this.#regions.get(region), () => `region ${region} of ${this.#name} is in use`).byteLength;
  }
}

export class MappedValues implements RemoteValues {
  readonly #registry: RegionRegistry;
  readonly #regions = new Map<number, Uint8Array>();

  constructor(registry: RegionRegistry) {
    this.#registry = registry;
  }

  view({ region, offset, bytes }: ValueRef): Uint8Array {
    const view = this.#regions.get(region);
    if (view === undefined || !Number.isSafeInteger(offset) || offset < 0 || offset + bytes > view.byteLength) {
      throw new ShoalError('protocol', `bytes ${offset} to ${offset + bytes} of region ${region} were not announced`);
    }
    return view.subarray(offset, offset + bytes);
  }

  attach(region: number, handle: string): boolean {
    const view = this.#registry.get(handle);
    if (view === undefined) return false;
    this.#regions.set(region, view);
    return true;
  }

  detach(region: number): void {
    this.#regions.delete(region);
  }

  close(): void {
    this.#regions.clear();
  }
}
