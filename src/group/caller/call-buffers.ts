/** Makes a call's arguments reachable for communication. Tensors of this world are used in place. Other arrays are used in place while
 *  the call runs on this thread and its plan lets only their owner access them; otherwise through a staging block, with one
 *  copy in and, for results, one copy out. */
import { describeForeign } from '../../memory/foreign-value.ts';
import { ShoalError } from '../../base/errors.ts';
import { dtypeInfo, dtypeOfArray, type DType, type NativeFloat16Array, type TypedArray } from '../../memory/dtype.ts';
import { DeviceTensor } from '../../memory/device/device-tensor.ts';
import { Tensor } from '../../memory/tensor.ts';
import type { BufferName } from '../../plan/ir.ts';
import type { SharedBuffer } from '../shared/comm-protocol.ts';
import { privateKey, type LocalBuffers } from '../../call/local-buffers.ts';
import { TensorBlock } from './tensor-block.ts';
import type { TensorMemory } from './tensor-memory.ts';
import type { CollectiveData, TensorLike } from './types.ts';
import type { WorkHooks } from '../../comm/caller/work.ts';
import type { Span } from '../../fabric/fabric.ts';

/** An argument whose dtype and size are known. */
export interface Operand {
  readonly value: CollectiveData;
  readonly dtype: DType;
  readonly count: number;
}

/** Checks one argument. @throws ShoalError `usage` or `unsupported`, naming the argument. */
export function operand(value: CollectiveData, role: string): Operand {
  if (value instanceof Tensor) {
    if (value.released) throw new ShoalError('usage', `${role} has been released`);
    return { value, dtype: value.dtype, count: value.count };
  }
  if (value instanceof DeviceTensor) return { value, dtype: value.dtype, count: value.count };
  if (!ArrayBuffer.isView(value) || value instanceof DataView) {
    throw new ShoalError('usage', `${role} must be a tensor or a typed array, not ${describeForeign(value)}`);
  }
  checkAttached(value, role);
  return { value, dtype: dtypeOfArray(value), count: value.length };
}

/** Elements of an argument, from one on. */
export function partOf({ value, dtype }: Operand, first: number, count: number): Operand {
  const whole = onHost(value);
  if (!(whole instanceof Tensor)) return { value: (whole as Float32Array).subarray(first, first + count), dtype, count };
  return { value: new Tensor(dtype, [count], whole.region, whole.byteOffset + first * dtypeInfo(dtype).bytes), dtype, count };
}

/** An argument of a call that reaches host memory only. @throws ShoalError `unsupported`. */
export function onHost(value: CollectiveData): TensorLike {
  if (!(value instanceof DeviceTensor)) return value;
  const message =
    'tensors of a device are data of single collectives: not of send, recv, batch and scheduled groups; read it into a tensor first';
  throw new ShoalError('unsupported', message);
}

/** The bytes of an argument. */
export function bytesOf(value: TensorLike): Uint8Array {
  const { buffer, byteOffset, byteLength } = value instanceof Tensor ? value.data : value;
  return new Uint8Array(buffer, byteOffset, byteLength);
}

/** An argument and its use by an operation. */
export interface BufferUse {
  readonly name: Exclude<BufferName, 'scratch' | 'mailbox'>;
  readonly operand: Operand;
  readonly reads: boolean;
  /** It receives a result. */
  readonly writes: boolean;
  /** It is this rank's part of the call's other argument, which has it at its place already. Default: they lie apart. */
  readonly isInPlace?: boolean;
}

/** An argument with its bytes on this thread. */
interface Placed extends BufferUse {
  readonly value: TensorLike;
  readonly view: Uint8Array;
  /** The buffer as other threads reach it; undefined: only this thread does. */
  readonly shared: SharedBuffer | undefined;
}

interface Staged {
  readonly block: Span;
  readonly copyOut: (() => void) | undefined;
}

/** Memory of a tensor that an argument is, or is a view of. */
interface HeldBlock {
  readonly block: TensorBlock;
  /** Other ranks reach it: it is not staged. */
  readonly isReached: boolean;
}

/** The buffers of one call, and what to do when it has ended. */
export class CallBuffers {
  readonly #memory: TensorMemory;
  readonly #placed: readonly Placed[];
  /** Blocks of tensors that arguments are, or are views of; found when they are first held. */
  #blocks: readonly HeldBlock[] | undefined;
  #staged: Staged[] = [];
  #shared: Partial<Record<BufferName, SharedBuffer>> | undefined;

  /** Moves nothing yet. @throws ShoalError `usage` when a result lies over another argument, wherever they are. */
  constructor(memory: TensorMemory, uses: readonly BufferUse[]) {
    this.#memory = memory;
    this.#placed = uses.map((use) => this.#place(use));
    this.#checkApart();
  }

  /** The arguments where they are, for a call that runs on this thread and lets each rank touch only its own. When one is private
   *  all are announced as that. */
  get local(): LocalBuffers {
    const isPrivate = !this.#shared && this.#placed.some(({ shared }) => !shared);
    const buffers: LocalBuffers = {};
    for (const { name, view, shared: own } of this.#placed) {
      const shared = this.#shared?.[name] ?? own;
      if (isPrivate || !shared) buffers[name] = { key: privateKey, offset: 0, view };
      else {
        const { offset, bytes } = shared;
        const { key, region } = this.#memory.lookUp(shared.regionId);
        buffers[name] = { key, offset, view: new Uint8Array(region.buffer, offset, bytes) };
      }
    }
    return buffers;
  }

  /** The arguments where other threads and ranks reach them: copied to staging unless they are there already. `withResults`: also what lies
   *  where results go, part of which have come. */
  share({ withResults = false } = {}): Partial<Record<BufferName, SharedBuffer>> {
    if (this.#shared) return this.#shared;
    const buffers: Partial<Record<BufferName, SharedBuffer>> = {};
    try {
      for (const placed of this.#placed) buffers[placed.name] = placed.shared ?? this.#stage(placed, withResults || placed.reads);
    } catch (thrown) {
      this.#release();
      throw thrown;
    }
    this.#shared = buffers;
    return buffers;
  }

  /** The call goes on after it has returned: until it has ended, memory of its arguments is not given to other tensors. */
  pend(): WorkHooks {
    this.#blocks ??= this.#placed.flatMap((placed) => this.#blockOf(placed));
    for (const { block } of this.#blocks) block.hold();
    return { onSuccess: this.staged ? () => this.#copyOut() : undefined, onSettled: (touched) => this.#letGo(touched) };
  }

  /** The call has ended well before it returned. @throws ShoalError `usage` when an array for a result is gone. */
  end(): void {
    try {
      this.#copyOut();
    } finally {
      this.#release();
    }
  }

  get staged(): boolean {
    return this.#staged.length > 0;
  }

  /** Results go to the caller's arrays. */
  #copyOut(): void {
    for (const { copyOut } of this.#staged) copyOut?.();
  }

  /** @param touched as WorkHooks has it: other ranks may still be writing to what they reach, which then is given to nobody. */
  #letGo(touched: boolean): void {
    for (const { block, isReached } of this.#blocks ?? []) block.letGo({ touched: touched && isReached });
    if (!touched) this.#release();
  }

  /** Staging may be reused. */
  #release(): void {
    for (const { block } of this.#staged) this.#memory.free(block);
    this.#staged = [];
    this.#shared = undefined;
  }

  #blockOf({ value, view, shared }: Placed): HeldBlock[] {
    const region = value instanceof Tensor ? value.region : this.#memory.blockAt(view.buffer, view.byteOffset);
    return region instanceof TensorBlock ? [{ block: region, isReached: shared !== undefined }] : [];
  }

  #place(use: BufferUse): Placed {
    const { dtype, count } = use.operand;
    const value = onHost(use.operand.value);
    const bytes = count * dtypeInfo(dtype).bytes;
    if (value instanceof Tensor && this.#memory.owns(value.region)) {
      const view = new Uint8Array(value.region.buffer, value.byteOffset, bytes);
      return { ...use, value, view, shared: { regionId: value.region.id, offset: value.byteOffset, bytes } };
    }
    return { ...use, value, view: bytesOf(value), shared: undefined };
  }

  #stage({ value, view, writes }: Placed, copiesIn: boolean): SharedBuffer {
    const bytes = view.length;
    const block = this.#memory.allocate(bytes);
    const staging = new Uint8Array(block.region.buffer, block.offset, bytes);
    if (copiesIn && bytes > 0) staging.set(view);
    const array = value instanceof Tensor ? value.data : value;
    const copyOut = (): void => {
      if (!isDetached(array.buffer) && array.byteLength !== bytes) {
        const message = `the array for the result was resized from ${bytes} to ${array.byteLength} bytes while the operation ran; its contents are undefined`;
        throw new ShoalError('usage', message);
      }
      checkAttached(array, 'the array for the result');
      new Uint8Array(array.buffer, array.byteOffset, bytes).set(staging);
    };
    this.#staged.push({ block, copyOut: writes ? copyOut : undefined });
    return { regionId: block.region.id, offset: block.offset, bytes };
  }

  #checkApart(): void {
    if (!overlapping(this.#placed)) return;
    const message = 'input and output lie over each other: results would overwrite what is still to be read; use two tensors';
    throw new ShoalError('usage', message);
  }
}

/** One that is written lies over another. */
function overlapping(placed: readonly Placed[]): boolean {
  return placed.some((a, index) =>
    placed.slice(index + 1).some((b) => {
      if ((!a.writes && !b.writes) || a.isInPlace || b.isInPlace) return false;
      const [from, to] = [a.view, b.view];
      return from.buffer === to.buffer && from.byteOffset < to.byteOffset + to.length && to.byteOffset < from.byteOffset + from.length;
    }),
  );
}

/** A view that its buffer no longer covers says that it has no elements: it must not be taken for an empty array. */
function checkAttached(array: TypedArray | NativeFloat16Array, role: string): void {
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
