/** The memory of one tensor, from `tensor` to its last use. It is the tensor's region, and that of every view of the tensor.
 *
 *      live ── release ────────▶ released: refused everywhere      ─ no use left ─▶ the next tensor's
 *       └──── its group ends ──▶ left: memory like any other array ─ no use left ─▶ never another's; goes when nothing refers to it
 *
 *  A use is an operation of any group that has not ended. Memory that a failed operation has touched is never reused, because other
 *  ranks may still write to it. It must not know operations or groups. */
import type { Region, RegionShare } from '../../memory/region.ts';
import type { Span } from '../../fabric/fabric.ts';

/** The owner that takes blocks back. */
export interface BlockOwner {
  /** Takes the block for the next tensor. */
  free(block: Span): void;
  /** Gives the block to nobody: it may still be read. */
  retire(block: Span): void;
}

export class TensorBlock implements Region {
  readonly id: string;
  readonly bytes: number;
  readonly buffer: ArrayBuffer | SharedArrayBuffer;
  readonly share: RegionShare;
  readonly #owner: BlockOwner;
  readonly #block: Span;
  #state: 'live' | 'released' | 'left' = 'live';
  #uses = 0;
  #touched = false;
  #givenBack = false;

  constructor(owner: BlockOwner, block: Span) {
    ({ id: this.id, bytes: this.bytes, buffer: this.buffer, share: this.share } = block.region);
    this.#owner = owner;
    this.#block = block;
  }

  get live(): boolean {
    return this.#state === 'live';
  }

  get released(): boolean {
    return this.#state === 'released';
  }

  /** Operations of the owner's world reach it in place. */
  isLiveIn(owner: BlockOwner): boolean {
    return this.live && this.#owner === owner;
  }

  /** The user needs it no more. */
  release(): void {
    this.#end('released');
  }

  /** Its group is gone; the user may still read it. */
  leave(): void {
    this.#end('left');
  }

  /** An operation uses it from now on. */
  hold(): void {
    this.#uses += 1;
  }

  /** The operation has ended. @param touched and other ranks may still be at it. */
  letGo({ touched }: { readonly touched: boolean }): void {
    this.#uses -= 1;
    if (touched) this.#touched = true;
    this.#giveBack();
  }

  /** The region is its owner's. */
  close(): void {}

  /** The region is its owner's. */
  retire(): void {}

  #end(state: 'released' | 'left'): void {
    if (!this.live) return;
    this.#state = state;
    this.#giveBack();
  }

  #giveBack(): void {
    // A block that was left may be used again, as any array.
    if (this.live || this.#uses > 0 || this.#touched || this.#givenBack) return;
    this.#givenBack = true;
    if (this.released) this.#owner.free(this.#block);
    else this.#owner.retire(this.#block);
  }
}
