/** From what the user passes to what communication can reach: tensors of this world as they are, anything else by way of
 *  a staging block, with one copy in and, for results, one copy out. */
import { ShoalError } from '../base/errors.ts';
import { dtypeInfo, dtypeOfArray, type DType, type TypedArray } from '../memory/dtype.ts';
import { Tensor } from '../memory/tensor.ts';
import type { SharedBuffer } from './comm-protocol.ts';
import type { MemoryBlock, TensorMemory } from './tensor-memory.ts';
import type { TensorLike } from './types.ts';

/** An argument whose dtype and size are known. */
export interface Operand {
  readonly value: TensorLike;
  readonly dtype: DType;
  readonly count: number;
}

/** Checks one argument. @throws ShoalError `usage` or `unsupported`, naming the argument. */
export function operand(value: TensorLike, role: string): Operand {
  if (value instanceof Tensor) return { value, dtype: value.dtype, count: value.count };
  if (!ArrayBuffer.isView(value) || value instanceof DataView) {
    throw new ShoalError('usage', `${role} must be a tensor or a typed array, not ${value === null ? 'null' : typeof value}`);
  }
  checkAttached(value, role);
  return { value, dtype: dtypeOfArray(value), count: value.length };
}

/** The buffers of one call, and what to do when it has ended. */
export class CallBuffers {
  readonly #memory: TensorMemory;
  readonly #staged: { block: MemoryBlock; copyOut: (() => void) | undefined }[] = [];
  /** What the operation reads and writes in place; a second buffer must not lie over it. */
  readonly #inPlace: { buffer: SharedBuffer; writes: boolean }[] = [];

  constructor(memory: TensorMemory) {
    this.#memory = memory;
  }

  /** Makes an argument reachable. `reads`: the operation reads it; `writes`: it receives a result. */
  add({ value, dtype, count }: Operand, access: { reads: boolean; writes: boolean }): SharedBuffer {
    if (value instanceof Tensor && this.#memory.owns(value.region)) {
      const buffer = { regionId: value.region.id, offset: value.byteOffset, bytes: value.bytes };
      this.#checkApart(buffer, access.writes);
      this.#inPlace.push({ buffer, writes: access.writes });
      return buffer;
    }
    const array = value instanceof Tensor ? value.data : value;
    const bytes = count * dtypeInfo(dtype).bytes;
    const block = this.#memory.allocate(bytes);
    const staging = new Uint8Array(block.region.buffer, block.offset, bytes);
    if (access.reads && bytes > 0) staging.set(new Uint8Array(array.buffer, array.byteOffset, bytes));
    const copyOut = access.writes
      ? (): void => {
          if (!isDetached(array.buffer) && array.byteLength !== bytes) {
            throw new ShoalError(
              'usage',
              `the array for the result was resized from ${bytes} to ${array.byteLength} bytes while the operation ran; its contents are undefined`,
            );
          }
          checkAttached(array, 'the array for the result');
          new Uint8Array(array.buffer, array.byteOffset, bytes).set(staging);
        }
      : undefined;
    this.#staged.push({ block, copyOut });
    return { regionId: block.region.id, offset: block.offset, bytes };
  }

  /** Results go to the caller's arrays. @throws ShoalError `usage` when one of them is gone; nothing is left staged then. */
  copyOut(): void {
    try {
      for (const { copyOut } of this.#staged) copyOut?.();
    } catch (thrown) {
      this.release();
      throw thrown;
    }
  }

  /** Staging may be reused. Not after a failure: peers may still be writing. */
  release(): void {
    for (const { block } of this.#staged) this.#memory.free(block);
    this.#staged.length = 0;
  }

  get staged(): boolean {
    return this.#staged.length > 0;
  }

  #checkApart({ regionId, offset, bytes }: SharedBuffer, writes: boolean): void {
    for (const { buffer, writes: writesOther } of this.#inPlace) {
      const apart = buffer.regionId !== regionId || offset + bytes <= buffer.offset || buffer.offset + buffer.bytes <= offset;
      if (apart || (!writes && !writesOther)) continue;
      this.release();
      throw new ShoalError(
        'usage',
        'input and output lie over each other: results would overwrite what is still to be read; use two tensors',
      );
    }
  }
}

/** A view that its buffer no longer covers says that it has no elements: it must not be taken for an empty array. */
function checkAttached(array: TypedArray, role: string): void {
  try {
    array.keys();
  } catch (cause) {
    const detached = isDetached(array.buffer);
    throw new ShoalError(
      'usage',
      detached
        ? `${role} is a view of a detached buffer (it was transferred away); pass an array that is still here`
        : `${role} is a view of a buffer that shrank to ${array.buffer.byteLength} bytes and no longer has all of it; make a new view`,
      { cause },
    );
  }
}

function isDetached(buffer: ArrayBufferLike): boolean {
  try {
    void new Uint8Array(buffer, 0, 0);
    return false;
  } catch {
    return true;
  }
}
