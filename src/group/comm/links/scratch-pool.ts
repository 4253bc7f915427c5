/** Scratch for operations in flight: blocks of power-of-two size, kept for reuse up to a budget. An operation larger
 *  than the budget still gets its block; it is given back when the operation ends. */
import { pushTo } from '../../../base/collections/lists.ts';
import type { BoundBuffer } from '../../../call/local-buffers.ts';
import type { SharedRegions } from './shared-regions.ts';

export type ScratchBlock = Omit<BoundBuffer, 'offset'>;

const smallestBytes = 4096;

export class ScratchPool {
  readonly #regions: SharedRegions;
  readonly #budgetBytes: number;
  readonly #free = new Map<number, ScratchBlock[]>();
  #freeBytes = 0;

  constructor(regions: SharedRegions, budgetBytes: number) {
    this.#regions = regions;
    // Blocks are rounded up, so the budget is: an operation that uses all of it must find its block again.
    this.#budgetBytes = roundUp(budgetBytes);
  }

  take(bytes: number): ScratchBlock {
    const size = roundUp(bytes);
    const block = this.#free.get(size)?.pop();
    if (!block) return { ...this.#regions.create(size), bytes: size };
    this.#freeBytes -= size;
    return block;
  }

  give(block: ScratchBlock): void {
    if (this.#freeBytes + block.bytes > this.#budgetBytes) {
      this.#regions.remove(block.key);
      return;
    }
    this.#freeBytes += block.bytes;
    pushTo(this.#free, block.bytes, block);
  }
}

function roundUp(bytes: number): number {
  return Math.max(smallestBytes, 2 ** Math.ceil(Math.log2(bytes)));
}
