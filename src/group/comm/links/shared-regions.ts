/** The memory of this rank that others may reach. Each region gets one key for the whole world, is registered with every
 *  fabric in use, and is announced on every link before anything refers to it. */
import { must } from '../../../base/assert.ts';
import { ShoalError } from '../../../base/errors.ts';
import type { Fabric, RegisteredRegion } from '../../../fabric/fabric.ts';
import type { Region, RegionAllocator, RegionShare } from '../../../memory/region.ts';
import type { PeerLink } from './peer-link.ts';
import { encodeControl } from './control-message.ts';

interface SharedRegion {
  readonly key: number;
  readonly region: Region;
  readonly registered: ReadonlyMap<string, RegisteredRegion>;
}

/** True for the key of memory that its owner's calling thread has made, not its comm thread. */
export function isOfMainThread(key: number): boolean {
  return key % 2 === 0;
}

export class SharedRegions {
  readonly #allocator: RegionAllocator;
  readonly #fabrics: readonly Fabric[];
  readonly #links: () => Iterable<PeerLink>;
  readonly #byKey = new Map<number, SharedRegion>();
  readonly #keyById = new Map<string, number>();
  /** Regions of another thread that could not be mapped, and why. */
  readonly #unmapped = new Map<string, ShoalError>();
  #bytes = 0;
  /** Keys made here are odd; those of the main thread are even. */
  #nextKey = 1;

  constructor(allocator: RegionAllocator, fabrics: readonly Fabric[], links: () => Iterable<PeerLink>) {
    this.#allocator = allocator;
    this.#fabrics = fabrics;
    this.#links = links;
  }

  /** Bytes of all regions. */
  get bytes(): number {
    return this.#bytes;
  }

  /** A new region, already announced. */
  create(bytes: number): { key: number; region: Region } {
    const key = this.#nextKey;
    this.#nextKey += 2;
    return this.#add(key, this.#allocator.create(bytes));
  }

  /** A region of another thread of this process, mapped here and announced. Where it cannot be, whoever needs it hears why. */
  adopt(key: number, share: RegionShare): void {
    try {
      this.#add(key, this.#allocator.open(share));
    } catch (thrown) {
      this.#unmapped.set(share.id, ShoalError.from(thrown));
    }
  }

  /** The other thread has given it back. */
  abandon(id: string): void {
    if (!this.#unmapped.delete(id)) this.remove(this.byId(id).key);
  }

  /** @throws ShoalError why it could not be mapped. */
  byId(id: string): { key: number; region: Region } {
    const unmapped = this.#unmapped.get(id);
    if (unmapped) throw unmapped;
    const key = must(this.#keyById.get(id), () => `region ${id} is known to the comm thread`);
    return this.byKey(key);
  }

  byKey(key: number): { key: number; region: Region } {
    const shared = this.#byKey.get(key);
    if (!shared) throw new ShoalError('closed', `memory ${key} has been released`);
    return shared;
  }

  /** Sends what there is to a link that has just been made. */
  announceTo(link: PeerLink): void {
    for (const shared of this.#byKey.values()) this.#announce(link, shared);
  }

  remove(key: number): void {
    const shared = this.#byKey.get(key);
    if (!shared) return;
    this.#byKey.delete(key);
    this.#bytes -= shared.region.bytes;
    this.#keyById.delete(shared.region.id);
    const message = encodeControl({ type: 'withdraw', key });
    for (const link of this.#links()) link.post(message);
    for (const registered of shared.registered.values()) registered.deregister();
    shared.region.close();
  }

  close(): void {
    for (const shared of this.#byKey.values()) shared.region.close();
    this.#byKey.clear();
    this.#bytes = 0;
    this.#keyById.clear();
  }

  #add(key: number, region: Region): { key: number; region: Region } {
    const registered = new Map(this.#fabrics.map((fabric) => [fabric.name, fabric.register(region)]));
    const shared = { key, region, registered };
    this.#byKey.set(shared.key, shared);
    this.#bytes += region.bytes;
    this.#keyById.set(region.id, shared.key);
    for (const link of this.#links()) this.#announce(link, shared);
    return shared;
  }

  #announce(link: PeerLink, shared: SharedRegion): void {
    const { rkey, bytes, handle } = must(shared.registered.get(link.fabric), () => `fabric ${link.fabric} is one of the world's`);
    link.post(encodeControl({ type: 'region', key: shared.key, remote: { rkey, bytes, handle } }));
  }
}
