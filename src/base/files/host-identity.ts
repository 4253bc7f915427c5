/** The identity that tells hosts, and containers on one host, apart: two processes with the same identity may share memory. It is
 *  a quick first test; only a successful mapping decides (see fabric/providers/shm.ts). */
import { readFileSync, readlinkSync } from 'node:fs';
import { hostname } from 'node:os';

/** Processes that differ in one of these do not see each other's /proc/<pid>/fd or abstract sockets. */
const namespaces: readonly string[] = ['pid', 'mnt', 'ipc', 'net'];

/** The identity of this process: `boot=<boot id>,pid=4026531836,…`, constant for its life.
 *  @param of the namespaces that count. */
export function hostIdentity(of: readonly string[] = namespaces): string {
  const parts = of.map((name) => `${name}=${read(() => readlinkSync(`/proc/self/ns/${name}`).replace(/\D/g, ''))}`);
  const boot = read(() => readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim());
  return [`boot=${boot ?? hostname()}`, ...parts].join(',');
}

function read(source: () => string): string | undefined {
  try {
    return source();
  } catch {
    return undefined; // not Linux, or /proc is hidden: then the mapping will fail and say so
  }
}
