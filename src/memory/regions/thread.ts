/** Regions of kind 'thread': SharedArrayBuffers, for the threads of one process. Needs no addon. */
import { ShoalError } from '../../base/errors.ts';
import type { Random } from '../../base/random.ts';
import type { Region, RegionShare } from '../region.ts';

/** @param onClose called once, when the region is closed. */
export function createThreadRegion(random: Random, bytes: number, onClose: () => void): Region {
  try {
    const buffer = new SharedArrayBuffer(bytes);
    const id = `thread:${process.pid}:${Buffer.from(random.bytes(8)).toString('hex')}`;
    return threadRegion({ kind: 'thread', id, bytes, buffer }, onClose);
  } catch (error) {
    throw ShoalError.from(error, 'out-of-memory', { bytes });
  }
}

/** A region of this or another thread's memory. */
export function threadRegion(share: Extract<RegionShare, { kind: 'thread' }>, onClose: () => void): Region {
  let open = true;
  const close = (): void => {
    if (open) onClose();
    open = false;
  };
  const { id, bytes, buffer } = share;
  return { id, bytes, buffer, share, close, retire: close };
}

/** Memory of this thread, not to be shared with anybody. */
export function memoryRegion(buffer: ArrayBufferLike): Region {
  return threadRegion({ kind: 'thread', id: '', bytes: buffer.byteLength, buffer: buffer as SharedArrayBuffer }, () => undefined);
}
