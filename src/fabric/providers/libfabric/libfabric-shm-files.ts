/** Names of the files in /dev/shm that libfabric's `shm` makes for endpoints. The library removes them when an endpoint is
 *  closed; files that a killed process has left are removed by the next fabric of its namespace. */
import { readdirSync, readFileSync, readlinkSync, unlinkSync } from 'node:fs';
import type { Random } from '../../../base/random.ts';

const folder = '/dev/shm';
const scheme = 'fi_shm://';

/** `fi_shm://shoal-<pid namespace>-<pid>-<start of the process>-<random>`: identifies the owner, even when its process number is reused. */
export function sharedMemoryName(random: Random): string {
  return `${scheme}shoal-${pidNamespace()}-${process.pid}-${startOf(process.pid)}-${Buffer.from(random.bytes(6)).toString('hex')}`;
}

/** Removes files of processes of this namespace that have ended. @returns their names. */
export function sweepSharedMemory(): string[] {
  const namespace = pidNamespace();
  const left = namesIn(folder).filter((name) => {
    const parts = /^shoal-(\d+)-(\d+)-(\d+)-/.exec(name);
    return parts !== null && parts[1] === namespace && ![parts[3], 'unknown'].includes(startOf(Number(parts[2])) ?? '');
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

/** Start of a process, in ticks since the machine started; undefined: there is no such process; 'unknown': it cannot be read. */
function startOf(pid: number): string | undefined {
  try {
    const status = readFileSync(`/proc/${pid}/stat`, 'latin1');
    // The fields follow the process's name, which is in brackets and may hold anything.
    return status.slice(status.lastIndexOf(')') + 2).split(' ')[19];
  } catch (thrown) {
    const { code } = thrown as { code?: string };
    return code === 'ENOENT' || code === 'ESRCH' ? undefined : 'unknown';
  }
}

function namesIn(path: string): string[] {
  try {
    return readdirSync(path);
  } catch {
    return [];
  }
}
