/** The memory that values lie in. A value travels inside a message, or, between processes that can map each other's memory, stays where
 *  it is and a reference travels: the server reads a gradient from the worker's memory, and writes the new value there.
 *  This interface hides which of the two happens; it must not know protocols. */
import { dtypeInfo, viewOf, type DType, type TypedArray } from '../../memory/dtype.ts';

/** Bytes in a region of the process that made the reference. `region` is a number of that process, announced before. */
export interface ValueRef {
  readonly region: number;
  /** Bytes. */
  readonly offset: number;
  readonly bytes: number;
}

/** The memory of one other process, as far as it has been announced to us. */
export interface RemoteValues {
  /** @throws ShoalError `protocol` for a region that was not announced or a range outside it. */
  view(ref: ValueRef): Uint8Array;
  /** Maps a region. @returns false when regions of that process cannot be mapped here: its values come in messages. */
  attach(region: number, handle: string, bytes: number): boolean;
  detach(region: number): void;
  close(): void;
}

/** The memory of this process that values are kept in. */
export interface OwnValues {
  /** 8-byte aligned; what is in it may be anything. Of no bytes, too. @throws ShoalError `out-of-memory`. */
  allocate(bytes: number): ValueBlock;
  view(ref: ValueRef): Uint8Array;
  /** The handle by which another process maps a region; undefined when it cannot be mapped by others. */
  handleOf(region: number): string | undefined;
  /** Bytes of the whole region, as `attach` wants it. */
  bytesOf(region: number): number;
  /** The key by which servers on other hosts may write to it; 0 when they cannot. */
  placeOf(region: number): number;
  /** Closes the place: values that were asked for may still be on their way there, and must not arrive. */
  closePlace(region: number): void;
}

/** Counts bytes copied in user space, beside those that kernels compute: the tests' instrument. */
export interface ValueCounters {
  /** Bytes of values that were copied into messages, out of them, or because a message still needed the memory. */
  bytesCopied: number;
}

export interface ValueBlock {
  readonly ref: ValueRef;
  readonly view: Uint8Array;
  /** Idempotent. */
  free(): void;
}

/** Elements of a range of bytes, which must be aligned. */
export function elements(dtype: DType, bytes: Uint8Array): TypedArray {
  return viewOf(dtype, bytes.buffer, bytes.byteOffset, bytes.byteLength / dtypeInfo(dtype).bytes);
}
