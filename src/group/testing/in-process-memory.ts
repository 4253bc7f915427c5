/** Memory that the ranks of an in-process world share, as processes of one host do: each maps what another has made, by what it was
 *  told of it, for as long as its maker has it. */
import { ShoalError } from '../../base/errors.ts';
import type { Region, RegionAllocator, RegionShare } from '../../memory/region.ts';

export class InProcessMemory {
  readonly #regions = new Map<string, SharedArrayBuffer>();
  /** Ranks whose processes were killed: they go on until the end of their turn. */
  readonly #gone = new Set<number>();
  #next = 1;

  /** Regions that their makers have not closed. */
  get size(): number {
    return this.#regions.size;
  }

  /** Drops the rank's regions, as its killed process would: what others have mapped stays with them. */
  forget(rank: number): void {
    this.#gone.add(rank);
    for (const id of this.#regions.keys()) if (id.startsWith(`${rank}:`)) this.#regions.delete(id);
  }

  /** Memory as one rank sees it. */
  allocator(rank: number): RegionAllocator {
    return {
      kind: 'shared',
      create: (bytes) => {
        const [fd, buffer] = [this.#next++, new SharedArrayBuffer(bytes)];
        const id = `${rank}:${fd}`;
        if (!this.#gone.has(rank)) this.#regions.set(id, buffer);
        return regionOf({ kind: 'shared', id, pid: rank, fd, bytes }, buffer, () => this.#regions.delete(id));
      },
      checkBudget: () => {},
      open: (share) => {
        const buffer = this.#regions.get(share.id);
        if (!buffer) throw new ShoalError('unsupported', `region ${share.id} cannot be mapped: it is gone`);
        return regionOf(share, buffer, () => {});
      },
    };
  }
}

function regionOf(share: RegionShare, buffer: SharedArrayBuffer, close: () => void): Region {
  return { id: share.id, bytes: share.bytes, buffer, share, close, retire: close };
}
