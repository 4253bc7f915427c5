/** Picks the allocator of this thread: shared memory with the addon, SharedArrayBuffers without. */
import { systemRandom, type Random } from '../../base/random.ts';
import type { Native } from '../native.ts';
import type { RegionAllocator, RegionShare } from '../region.ts';
import { availableMemory, type AvailableMemory } from './available-memory.ts';
import { RegionBudget } from './region-budget.ts';
import { SharedRegionAllocator } from './shared.ts';
import { ThreadRegionAllocator } from './thread.ts';

export interface RegionAllocatorOptions {
  readonly native?: Native | undefined;
  /** Most bytes that open regions created here may have together. Default: as many as the host allows. */
  readonly budget?: number;
  /** Available memory. Default: the machine's and its control groups', read before every creation. */
  readonly available?: () => AvailableMemory;
  /** Owner of the memory, as errors name it. Default: this process. */
  readonly owner?: string;
  /** Source of unique ids. Default: the system's. */
  readonly random?: Random;
}

/** Makes the allocator. `open` accepts both kinds of share, when it can. */
export function createRegionAllocator(options: RegionAllocatorOptions = {}): RegionAllocator {
  const { native, owner = 'this process', random = systemRandom, available = () => availableMemory() } = options;
  const budget = new RegionBudget({ available, owner, ...(options.budget === undefined ? {} : { budget: options.budget }) });
  const thread = new ThreadRegionAllocator({ budget, random });
  if (native === undefined) return thread;
  const shared = new SharedRegionAllocator({ native, budget, random, owner });
  return {
    kind: 'shared',
    create: (bytes) => shared.create(bytes),
    checkBudget: (bytes: number) => budget.check(bytes),
    open: (share: RegionShare) => (share.kind === 'thread' ? thread : shared).open(share),
  };
}
