/** Temporary values of one evaluator: a stack of blocks that stay in the L1 cache, seen as every value type. */

/** Number of elements per block. */
export const blockCount = 512;
const blockBytes = blockCount * 8;

export interface ScratchArrays {
  readonly float64: Float64Array;
  readonly float32: Float32Array;
  readonly int32: Int32Array;
  readonly uint32: Uint32Array;
  readonly int64: BigInt64Array;
}

export class Scratch {
  #arrays = arraysOf(4);

  /** All views lie over the same bytes; a stack position starts at element `position * blockCount` of any of them. */
  arrays(depth: number): ScratchArrays {
    if (this.#arrays.float64.length < depth * blockCount) this.#arrays = arraysOf(depth);
    return this.#arrays;
  }
}

function arraysOf(depth: number): ScratchArrays {
  const buffer = new ArrayBuffer(depth * blockBytes);
  return {
    float64: new Float64Array(buffer),
    float32: new Float32Array(buffer),
    int32: new Int32Array(buffer),
    uint32: new Uint32Array(buffer),
    int64: new BigInt64Array(buffer),
  };
}
