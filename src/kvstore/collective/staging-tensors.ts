/** Memory of a process group that values are packed into for one operation, reused: the group clears what it makes. */
import { pushTo } from '../../base/collections/lists.ts';
import type { ProcessGroup } from '../../group/caller/types.ts';
import { dtypeInfo, type DType } from '../../memory/dtype.ts';
import { Tensor } from '../../memory/tensor.ts';

const leastBytes = 4096;

export class StagingTensors {
  readonly #group: ProcessGroup;
  readonly #idleBytesMax: number;
  /** Idle blocks by their size, a power of two. */
  readonly #idle = new Map<number, Tensor[]>();
  #idleBytes = 0;

  /** `idleBytesMax`: kept for the next operation. */
  constructor(group: ProcessGroup, { idleBytesMax }: { readonly idleBytesMax: number }) {
    this.#group = group;
    this.#idleBytesMax = idleBytesMax;
  }

  /** Anything may be in it. */
  take<D extends DType>(dtype: D, count: number): Staging<D> {
    const bytes = Math.max(leastBytes, 2 ** Math.ceil(Math.log2(Math.max(1, count * dtypeInfo(dtype).bytes))));
    const idle = this.#idle.get(bytes)?.pop();
    if (idle !== undefined) this.#idleBytes -= bytes;
    const block = idle ?? this.#group.tensor('uint8', [bytes]);
    return { tensor: new Tensor(dtype, [count], block.region, block.byteOffset), giveBack: () => this.#giveBack(block) };
  }

  #giveBack(block: Tensor): void {
    if (this.#idleBytes + block.bytes > this.#idleBytesMax) {
      this.#group.release(block);
      return;
    }
    this.#idleBytes += block.bytes;
    pushTo(this.#idle, block.bytes, block);
  }
}

export interface Staging<D extends DType = DType> {
  readonly tensor: Tensor<D>;
  /** After success only: when an operation failed, others may still write. */
  giveBack(): void;
}
