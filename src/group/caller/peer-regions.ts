/** Memory of other ranks of this host, as the main thread maps it, on demand. Mappings of regions that are gone are left to
 *  the garbage collector: a bound operation may still hold a view. */
import type { RegionAllocator, RegionShare } from '../../memory/region.ts';

interface PeerRegion {
  readonly share: RegionShare;
  view: Uint8Array | undefined;
}

export class PeerRegions {
  readonly #regions = new Map<string, PeerRegion>();

  update(rank: number, key: number, share: RegionShare | undefined): void {
    if (share) this.#regions.set(`${rank}:${key}`, { share, view: undefined });
    else this.#regions.delete(`${rank}:${key}`);
  }

  /** The bytes of another rank's region; undefined while it has not been announced, or when its owner is gone. */
  view(rank: number, key: number, allocator: RegionAllocator): Uint8Array | undefined {
    const region = this.#regions.get(`${rank}:${key}`);
    if (!region) return undefined;
    region.view ??= mapped(region.share, allocator);
    return region.view;
  }
}

/** Maps a region; undefined when that is not possible, or not any more. */
function mapped(share: RegionShare, allocator: RegionAllocator): Uint8Array | undefined {
  try {
    const region = allocator.open(share);
    return new Uint8Array(region.buffer, 0, region.bytes);
  } catch {
    // The comm thread meets the same obstacle and knows who is gone.
    return undefined;
  }
}
