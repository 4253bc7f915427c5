/** `RemoteRegion.handle` of memory that processes of one host map: a region's share as text, `m1:<pid>:<fd>:<bytes>:<id>`. */
import { ShoalError } from '../base/errors.ts';
import type { Region, RegionShare } from '../memory/region.ts';

const handleCharacters = 256;

/** @throws ShoalError `unsupported` for regions that only threads of this process can map. */
export function encodeHandle(region: Region): string {
  const { share } = region;
  if (share.kind !== 'shared') {
    const message = `region ${region.id} belongs to the threads of this process; shm needs regions that other processes can map`;
    throw new ShoalError('unsupported', message);
  }
  return `m1:${share.pid}:${share.fd}:${share.bytes}:${share.id}`;
}

/** @throws ShoalError `protocol` for text that is not a handle. */
export function decodeHandle(handle: string): RegionShare {
  const parts = handle.length <= handleCharacters ? /^m1:(\d{1,10}):(\d{1,10}):(\d{1,16}):([\w:.-]{1,128})$/.exec(handle) : null;
  if (parts === null) throw new ShoalError('protocol', `'${handle.slice(0, 40)}' does not say how to map a region`);
  const [, pid, fd, bytes, id] = parts as unknown as [string, string, string, string, string];
  return { kind: 'shared', pid: Number(pid), fd: Number(fd), bytes: Number(bytes), id };
}
