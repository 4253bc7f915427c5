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
  /** Bytes that open regions created here may have together. Default: what the host allows. */
  readonly budget?: number;
  /** Default: the machine and its control groups, looked at before every creation. */
  readonly available?: () => AvailableMemory;
  /** Whose memory it is, as errors say. Default: this process's. */
  readonly owner?: string;
  /** Makes ids unique. Default: the system's. */
  readonly random?: Random;
}

/** `open` takes both kinds of share, when it can. */
export function createRegionAllocator(options: RegionAllocatorOptions = {}): RegionAllocator {
  const { native, owner = 'this process', random = systemRandom, available = () => availableMemory() } = options;
  const budget = new RegionBudget({ available, ...(options.budget === undefined ? {} : { budget: options.budget }) });
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
