import { readdirSync } from 'node:fs';

/** Files that these processes have left in /dev/shm. Files are named after their process; those of other tests are in use. */
export function filesLeftBy(pids: readonly (number | undefined)[]): string[] {
  return readdirSync('/dev/shm').filter((name) => name.includes('shoal') && pids.some((pid) => name.includes(`-${pid}-`)));
}
