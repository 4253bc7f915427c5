/** The checks that every new region passes, whatever its memory: a valid size, one ArrayBuffer, the budget, the host. One per
 *  allocator; counts the bytes of the regions that it has let through and that are still open. */
import { constants } from 'node:buffer';
import type { Clock } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import type { AvailableMemory } from './available-memory.ts';

export interface RegionBudgetOptions {
  /** Most bytes that all open regions of the allocator may have together. Default: no limit of its own. */
  readonly budget?: number | undefined;
  readonly available: () => AvailableMemory;
  readonly clock: Pick<Clock, 'now'>;
  /** Owner of the memory, for people. */
  readonly owner: string;
}

/** Time for which a look at the available memory is believed: it reads a dozen files. */
const believedMs = 1000;
/** Regions below this size, such as control blocks of groups, are made without another look after that time. */
const smallBytes = 1 << 20;
/** Share of the memory found by a look that is taken without another look, because other processes take some, too. */
const believedShare = 1 / 64;

export class RegionBudget {
  readonly #options: RegionBudgetOptions;
  /** Bytes for which the last look is believed, and when that was. */
  #believedBytes = 0;
  #lookedMs = -Infinity;
  #usedBytes = 0;

  constructor(options: RegionBudgetOptions) {
    this.#options = options;
  }

  /** Counts `bytes` as used, or throws: `usage`, `unsupported` or `out-of-memory` as in RegionAllocator.create. */
  take(bytes: number): void {
    checkRegionBytes(bytes);
    this.check(bytes);
    const now = this.#options.clock.now();
    if (bytes > this.#believedBytes || (bytes >= smallBytes && now > this.#lookedMs + believedMs)) this.#look(bytes, now);
    this.#believedBytes -= bytes;
    this.#usedBytes += bytes;
  }

  #look(bytes: number, now: number): void {
    const { bytes: availableBytes, limitedBy } = this.#options.available();
    if (bytes > availableBytes) {
      const message = `${this.#options.owner} ran out of memory: a region of ${bytes} bytes does not fit, ${limitedBy} leaves ${availableBytes} bytes; use fewer or smaller tensors or raise the limit`;
      throw new ShoalError('out-of-memory', message, { bytes, resource: 'memory' });
    }
    this.#believedBytes = availableBytes * believedShare;
    this.#lookedMs = now;
  }

  /** @throws ShoalError `out-of-memory` when all would be more than the budget. */
  check(bytes: number): void {
    const { owner, budget = Infinity } = this.#options;
    if (bytes > budget - this.#usedBytes) {
      const message = `${owner} ran out of shared memory: a region of ${bytes} bytes does not fit the budget, ${this.#usedBytes} of ${budget} bytes are in use; release tensors or raise the budget (SHOAL_SHARED_MEMORY_MAX)`;
      throw new ShoalError('out-of-memory', message, { bytes, resource: 'shared memory' });
    }
  }

  giveBack(bytes: number): void {
    this.#usedBytes -= bytes;
  }
}

/** @throws ShoalError `usage` when not a size, `unsupported` when above what one ArrayBuffer can have here. */
export function checkRegionBytes(bytes: number): void {
  if (!Number.isSafeInteger(bytes) || bytes < 0) {
    throw new ShoalError('usage', `a region of ${bytes} bytes is not valid: the size is a non-negative integer`);
  }
  if (bytes > constants.MAX_LENGTH) {
    const message = `a region of ${bytes} bytes is too large: one ArrayBuffer has at most ${constants.MAX_LENGTH} bytes on Node ${process.version}; split the tensor or use a newer Node`;
    throw new ShoalError('unsupported', message, { bytes });
  }
}
