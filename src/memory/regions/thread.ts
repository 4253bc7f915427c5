/** Regions of kind 'thread': SharedArrayBuffers, for the threads of one process. Needs no addon. */
import { ShoalError } from '../../base/errors.ts';
import type { Random } from '../../base/random.ts';
import type { Region, RegionAllocator, RegionShare } from '../region.ts';
import type { RegionBudget } from './region-budget.ts';

export interface ThreadRegionOptions {
  readonly budget: RegionBudget;
  readonly random: Random;
}

export class ThreadRegionAllocator implements RegionAllocator {
  readonly kind = 'thread';
  readonly #budget: RegionBudget;
  readonly #random: Random;

  constructor(options: ThreadRegionOptions) {
    this.#budget = options.budget;
    this.#random = options.random;
  }

  create(bytes: number): Region {
    this.#budget.take(bytes);
    try {
      const buffer = new SharedArrayBuffer(bytes);
      const id = `thread:${process.pid}:${Buffer.from(this.#random.bytes(8)).toString('hex')}`;
      return threadRegion({ kind: 'thread', id, bytes, buffer }, () => this.#budget.giveBack(bytes));
    } catch (error) {
      this.#budget.giveBack(bytes);
      throw ShoalError.from(error, 'out-of-memory', { bytes });
    }
  }

  checkBudget(bytes: number): void {
    this.#budget.check(bytes);
  }

  open(share: RegionShare): Region {
    if (share.kind !== 'thread') {
      throw new ShoalError(
        'unsupported',
        `region ${share.id} is shared memory, which needs the native addon to be mapped; shoal info says why it is not loaded`,
      );
    }
    return threadRegion(share, () => {});
  }
}

function threadRegion(share: Extract<RegionShare, { kind: 'thread' }>, onClose: () => void): Region {
  let open = true;
  const close = (): void => {
    if (open) onClose();
    open = false;
  };
  return {
    id: share.id,
    bytes: share.bytes,
    buffer: share.buffer,
    share,
    close,
    retire: close,
  };
}
