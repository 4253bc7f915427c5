/** Regions of kind 'shared': anonymous files (memfd) that threads and processes of this host map.
 *
 *    creator                               another process (or thread)
 *    memfd 7 ── mmap ── buffer             open /proc/<pid>/fd/7 ── mmap ── buffer, descriptor closed at once
 *
 *  The id is `<device>:<inode>:<nonce>`: a process that opens a share checks that the descriptor still leads to that very file, so that a
 *  recycled pid or descriptor is refused instead of mapped. The kernel allows the opening only to processes of the same user that see the
 *  same pid. ArrayBuffers must not be transferred to other threads (Node copies them): each thread opens the share itself. */
import { ShoalError, messageOf } from '../../base/errors.ts';
import { checkDescriptors, exhaustion } from '../../base/exhaustion.ts';
import type { Random } from '../../base/random.ts';
import type { Native, NativeError, NativeMapping } from '../native.ts';
import type { Region, RegionAllocator, RegionShare } from '../region.ts';
import { checkRegionBytes, type RegionBudget } from './region-budget.ts';

export interface SharedRegionOptions {
  readonly native: Native;
  readonly budget: RegionBudget;
  readonly random: Random;
  /** Name of the memory's owner, for people. */
  readonly owner: string;
}

type SharedShare = Extract<RegionShare, { kind: 'shared' }>;

export class SharedRegionAllocator implements RegionAllocator {
  readonly kind = 'shared';
  readonly #native: Native;
  readonly #budget: RegionBudget;
  readonly #random: Random;
  readonly #owner: string;

  constructor(options: SharedRegionOptions) {
    this.#native = options.native;
    this.#budget = options.budget;
    this.#random = options.random;
    this.#owner = options.owner;
  }

  create(bytes: number): Region {
    this.#budget.take(bytes);
    let mapping: NativeMapping;
    try {
      // The region keeps one descriptor; another thread that maps it needs one for a moment.
      checkDescriptors(this.#owner, 2, `making shared memory of ${bytes} bytes`, { bytes });
      mapping = this.#native.createRegion(Math.max(bytes, 1));
    } catch (error) {
      this.#budget.giveBack(bytes);
      throw this.#createError(error as NativeError, bytes);
    }
    const nonce = Buffer.from(this.#random.bytes(8)).toString('hex');
    const id = `${mapping.device}:${mapping.inode}:${nonce}`;
    const share: RegionShare = { kind: 'shared', id, pid: process.pid, fd: mapping.fd, bytes };
    return new SharedRegion(this.#native, mapping, share, () => this.#budget.giveBack(bytes));
  }

  checkBudget(bytes: number): void {
    this.#budget.check(bytes);
  }

  open(share: RegionShare): Region {
    if (share.kind !== 'shared') {
      throw new ShoalError('unsupported', `region ${share.id} belongs to the threads of one process and cannot be mapped as shared memory`);
    }
    checkRegionBytes(share.bytes);
    const [device, inode] = share.id.split(':').map(Number);
    if (
      !Number.isSafeInteger(share.pid) ||
      !Number.isSafeInteger(share.fd) ||
      !Number.isSafeInteger(device) ||
      !Number.isSafeInteger(inode)
    ) {
      throw new ShoalError('usage', `region ${share.id} has a malformed share: pid ${share.pid}, descriptor ${share.fd}`);
    }
    try {
      const mapping = this.#native.openRegion(`/proc/${share.pid}/fd/${share.fd}`, Math.max(share.bytes, 1), device, inode);
      return new SharedRegion(this.#native, mapping, share, () => {});
    } catch (error) {
      throw this.#openError(error as NativeError, share);
    }
  }

  #createError(error: NativeError, bytes: number): ShoalError {
    const ranOut = exhaustion(this.#owner, error, `making shared memory of ${bytes} bytes`, { bytes });
    return ranOut ?? new ShoalError('system', `a region of ${bytes} bytes cannot be created: ${messageOf(error)}`, { bytes, cause: error });
  }

  #openError(error: NativeError, share: SharedShare): ShoalError {
    const { id, bytes, fd, pid } = share;
    const ranOut = exhaustion(this.#owner, error, `mapping shared memory of ${bytes} bytes`, { bytes });
    if (ranOut) return ranOut;
    const message = `region ${id} (${bytes} bytes, descriptor ${fd} of process ${pid}) cannot be mapped: ${messageOf(error)}; it must belong to a living process of this host, container and user`;
    return new ShoalError('unsupported', message, { bytes, cause: error });
  }
}

class SharedRegion implements Region {
  readonly id: string;
  readonly bytes: number;
  readonly buffer: ArrayBuffer;
  readonly share: SharedShare;
  readonly #native: Native;
  readonly #handle: NativeMapping['handle'];
  #onClose: (() => void) | undefined;

  constructor(native: Native, mapping: NativeMapping, share: SharedShare, onClose: () => void) {
    this.id = share.id;
    this.bytes = share.bytes;
    this.buffer = mapping.buffer;
    this.share = share;
    this.#native = native;
    this.#handle = mapping.handle;
    this.#onClose = onClose;
  }

  close(): void {
    const onClose = this.#onClose;
    if (onClose === undefined) return;
    this.#onClose = undefined;
    this.#native.closeRegion(this.#handle, this.buffer);
    onClose();
  }

  /** Mapping and descriptor are released when handle and buffer are collected. */
  retire(): void {
    this.#onClose?.();
    this.#onClose = undefined;
  }
}
