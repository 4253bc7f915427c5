/** Regions of kind 'shared': anonymous files (memfd) that threads and processes of this host map.
 *
 *    creator                               another process (or thread)
 *    memfd 7 ── mmap ── buffer             open /proc/<pid>/fd/7 ── mmap ── buffer, descriptor closed at once
 *
 *  The id is `<device>:<inode>:<nonce>`: who opens a share checks that the descriptor still leads to that very file, so
 *  that a recycled pid or descriptor is refused instead of mapped. The kernel allows the opening only to processes of the
 *  same user that see the same pid. ArrayBuffers must not be transferred to other threads (Node copies them): each thread
 *  opens the share itself. */
import { ShoalError, messageOf, type ErrorCode } from '../../base/errors.ts';
import type { Random } from '../../base/random.ts';
import type { Native, NativeError, NativeMapping } from '../native.ts';
import type { Region, RegionAllocator, RegionShare } from '../region.ts';
import { checkRegionBytes, type RegionBudget } from './region-budget.ts';

export interface SharedRegionOptions {
  readonly native: Native;
  readonly budget: RegionBudget;
  readonly random: Random;
}

type SharedShare = Extract<RegionShare, { kind: 'shared' }>;

export class SharedRegionAllocator implements RegionAllocator {
  readonly kind = 'shared';
  readonly #native: Native;
  readonly #budget: RegionBudget;
  readonly #random: Random;

  constructor(options: SharedRegionOptions) {
    this.#native = options.native;
    this.#budget = options.budget;
    this.#random = options.random;
  }

  create(bytes: number): Region {
    this.#budget.take(bytes);
    let mapping: NativeMapping;
    try {
      mapping = this.#native.createRegion(Math.max(bytes, 1));
    } catch (error) {
      this.#budget.giveBack(bytes);
      throw createError(error as NativeError, bytes);
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
      throw openError(error as NativeError, share);
    }
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

  /** Mapping and descriptor go when handle and buffer are collected. */
  retire(): void {
    this.#onClose?.();
    this.#onClose = undefined;
  }
}

const memoryErrors: readonly string[] = ['ENOMEM', 'ENOSPC', 'EFBIG', 'EMFILE', 'ENFILE'];

function createError(error: NativeError, bytes: number): ShoalError {
  const limit =
    error.code === 'EFBIG'
      ? 'the largest file size allowed (ulimit -f) is too small; raise it'
      : error.code === 'EMFILE' || error.code === 'ENFILE'
        ? 'no file descriptor is left (ulimit -n); raise the limit or release tensors'
        : 'memory is exhausted; use fewer or smaller tensors';
  if (memoryErrors.includes(error.code)) {
    return new ShoalError('out-of-memory', `a region of ${bytes} bytes cannot be created (${error.message}): ${limit}`, {
      bytes,
      cause: error,
    });
  }
  return new ShoalError('system', `a region of ${bytes} bytes cannot be created: ${messageOf(error)}`, { bytes, cause: error });
}

function openError(error: NativeError, share: SharedShare): ShoalError {
  const code: ErrorCode = memoryErrors.includes(error.code) ? 'out-of-memory' : 'unsupported';
  const next =
    code === 'unsupported' ? 'it must belong to a living process of this host, container and user' : 'raise the limit or release tensors';
  const message = `region ${share.id} (${share.bytes} bytes, descriptor ${share.fd} of process ${share.pid}) cannot be mapped: ${messageOf(error)}; ${next}`;
  return new ShoalError(code, message, { bytes: share.bytes, cause: error });
}
