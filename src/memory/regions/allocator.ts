/** Picks the allocator of this thread: shared memory with the addon, SharedArrayBuffers without. */
import { systemClock, type Clock } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import { systemRandom, type Random } from '../../base/random.ts';
import type { Native } from '../native.ts';
import type { RegionAllocator } from '../region.ts';
import { availableMemory, type AvailableMemory } from './available-memory.ts';
import { RegionBudget } from './region-budget.ts';
import { createSharedRegion, openSharedRegion } from './shared.ts';
import { createThreadRegion, threadRegion } from './thread.ts';

export interface RegionAllocatorOptions {
  readonly native?: Native | undefined;
  /** Most bytes that open regions created here may have together. Default: as many as the host allows. */
  readonly budget?: number;
  /** Available memory. Default: the machine's and its control groups'. */
  readonly available?: () => AvailableMemory;
  readonly clock?: Pick<Clock, 'now'>;
  /** Owner of the memory, as errors name it. Default: this process. */
  readonly owner?: string;
  /** Source of unique ids. Default: the system's. */
  readonly random?: Random;
}

/** Makes the allocator. `open` accepts both kinds of share, when it can. */
export function createRegionAllocator(options: RegionAllocatorOptions = {}): RegionAllocator {
  const { native, owner = 'this process', random = systemRandom, clock = systemClock, available = () => availableMemory() } = options;
  const budget = new RegionBudget({ available, clock, owner, budget: options.budget });
  const shared = native && { native, random, owner };
  return {
    kind: shared ? 'shared' : 'thread',
    create(bytes) {
      budget.take(bytes);
      const giveBack = (): void => budget.giveBack(bytes);
      try {
        return shared ? createSharedRegion(shared, bytes, giveBack) : createThreadRegion(random, bytes, giveBack);
      } catch (thrown) {
        giveBack();
        throw thrown;
      }
    },
    checkBudget: (bytes) => budget.check(bytes),
    open(share) {
      if (share.kind === 'thread') return threadRegion(share, () => {});
      if (shared) return openSharedRegion(shared, share);
      const what = `region ${share.id} is shared memory, which needs the native addon to be mapped`;
      throw new ShoalError('unsupported', `${what}; shoal info says why it is not loaded`);
    },
  };
}
