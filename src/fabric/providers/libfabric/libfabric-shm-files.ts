/** Names of the files in /dev/shm that libfabric's `shm` makes for endpoints. The library removes them when an endpoint is
 *  closed; files that a killed process has left are removed by the next fabric of its namespace. */
import { readdirSync, readlinkSync, unlinkSync } from 'node:fs';
import { hasEnded, ownProcess } from '../../../base/files/process-identity.ts';
import type { Random } from '../../../base/random.ts';

const folder = '/dev/shm';
const scheme = 'fi_shm://';

/** `fi_shm://shoal-<pid namespace>-<pid>-<start of the process>-<random>`: identifies the owner, even when its process number is reused. */
export function sharedMemoryName(random: Random): string {
  const { pid, birth } = ownProcess();
  return `${scheme}shoal-${pidNamespace()}-${pid}-${birth}-${Buffer.from(random.bytes(6)).toString('hex')}`;
}

/** Removes files of processes of this namespace that have ended. @returns their names. */
export function sweepSharedMemory(): string[] {
  const namespace = pidNamespace();
  const left = namesIn(folder).filter((name) => {
    const parts = /^shoal-(\d+)-(\d+)-(\d+)-/.exec(name);
    return parts?.[1] === namespace && hasEnded({ pid: Number(parts[2]), birth: Number(parts[3]), host: '' });
  });
  return left.filter((name) => {
    try {
      unlinkSync(`${folder}/${name}`);
      return true;
    } catch {
      return false; // another user's, or swept by someone else
    }
  });
}

function pidNamespace(): string {
  try {
    return readlinkSync('/proc/self/ns/pid').replace(/\D/g, '');
  } catch {
    return '0';
  }
}

function namesIn(path: string): string[] {
  try {
    return readdirSync(path);
  } catch {
    return [];
  }
}
