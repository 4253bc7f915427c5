/** Regions: the memory that tensors, staging and control blocks live in.
 *
 *  A region is one contiguous range of bytes that several threads of a process, and with the addon several processes of a host,
 *  can map. It must not know its contents.
 *
 *    kind 'shared'  anonymous file (memfd), mapped by descriptor in this process, through /proc/<pid>/fd by others.
 *                   It has no name in any file system: when the last process is gone, so is it.
 *    kind 'thread'  a SharedArrayBuffer: threads of this process only. The suite uses it without the addon. */

/** A description by which another thread or process maps a region; structured-cloneable. */
export type RegionShare =
  | { readonly kind: 'shared'; readonly id: string; readonly pid: number; readonly fd: number; readonly bytes: number }
  | { readonly kind: 'thread'; readonly id: string; readonly bytes: number; readonly buffer: SharedArrayBuffer };

export interface Region {
  /** Unique on this host for the life of the region: names the region, not the mapping. */
  readonly id: string;
  readonly bytes: number;
  /** The mapping in this thread, page-aligned. `buffer.byteLength >= bytes`. */
  readonly buffer: ArrayBuffer | SharedArrayBuffer;
  readonly share: RegionShare;
  /** True once its owner has taken it back: no operation may use it. */
  readonly released?: boolean;
  /** Holds the memory for an operation; pooled memory is not given out again while it is held. */
  hold?(): void;
  /** Ends a hold: the operation has ended. @param touched true if other ranks may still be using the memory. */
  letGo?(how: { readonly touched: boolean }): void;
  /** Releases this mapping (and, for the creator, the descriptor). Views must not be used afterwards. Idempotent. */
  close(): void;
  /** Leaves the mapping to the garbage collector: it stays for as long as something refers to its buffer. */
  retire(): void;
}

/** Creates regions and maps those of others. One per thread. */
export interface RegionAllocator {
  /** 'shared' when other processes of this host can map regions that `create` returns. */
  readonly kind: 'shared' | 'thread';
  /** Makes a region of zeros. Pages are reserved now, so that a full machine is an error here and not a SIGBUS later.
   *  @throws ShoalError `unsupported` above the size one ArrayBuffer can have on this Node version, `out-of-memory` when the
   *          host, its limits or the budget refuse. */
  create(bytes: number): Region;
  /** Checks that the budget has room for another `bytes`; the host is not asked. @throws ShoalError `out-of-memory` like `create`. */
  checkBudget(bytes: number): void;
  /** @throws ShoalError `unsupported` when the region cannot be mapped from here (another host, container or user). */
  open(share: RegionShare): Region;
}
