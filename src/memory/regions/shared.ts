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
import type { Native, NativeMapping } from '../native.ts';
import type { Region, RegionShare } from '../region.ts';
import { checkRegionBytes } from './region-budget.ts';

export interface SharedRegionOptions {
  readonly native: Native;
  readonly random: Random;
  /** Name of the memory's owner, for people. */
  readonly owner: string;
}

type SharedShare = Extract<RegionShare, { kind: 'shared' }>;

/** @param onClose called once, when the region is closed. */
export function createSharedRegion({ native, random, owner }: SharedRegionOptions, bytes: number, onClose: () => void): Region {
  const doing = `making shared memory of ${bytes} bytes`;
  let mapping: NativeMapping;
  try {
    // The region keeps one descriptor; another thread that maps it needs one for a moment.
    checkDescriptors(owner, 2, doing, { bytes });
    mapping = native.createRegion(Math.max(bytes, 1));
  } catch (error) {
    const ranOut = exhaustion(owner, error, doing, { bytes });
    throw ranOut ?? new ShoalError('system', `a region of ${bytes} bytes cannot be created: ${messageOf(error)}`, { bytes, cause: error });
  }
  const nonce = Buffer.from(random.bytes(8)).toString('hex');
  const id = `${mapping.device}:${mapping.inode}:${nonce}`;
  return new SharedRegion(native, mapping, { kind: 'shared', id, pid: process.pid, fd: mapping.fd, bytes }, onClose);
}

/** Maps another thread's or process' region. */
export function openSharedRegion({ native, owner }: SharedRegionOptions, share: SharedShare): Region {
  const { id, bytes, fd, pid } = share;
  checkRegionBytes(bytes);
  const [device, inode] = id.split(':').map(Number);
  if (![pid, fd, device, inode].every(Number.isSafeInteger))
    throw new ShoalError('usage', `region ${id} has a malformed share: pid ${pid}, descriptor ${fd}`);
  try {
    return new SharedRegion(native, native.openRegion(`/proc/${pid}/fd/${fd}`, Math.max(bytes, 1), device, inode), share, () => {});
  } catch (error) {
    const ranOut = exhaustion(owner, error, `mapping shared memory of ${bytes} bytes`, { bytes });
    if (ranOut) throw ranOut;
    const message = `region ${id} (${bytes} bytes, descriptor ${fd} of process ${pid}) cannot be mapped: ${messageOf(error)}; it must belong to a living process of this host, container and user`;
    throw new ShoalError('unsupported', message, { bytes, cause: error });
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
