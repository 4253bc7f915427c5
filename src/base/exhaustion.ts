/** What a process can run out of, and how it says so: one error that names the process, what is used up, its limit and the next
 *  step. It must not know what the resource was wanted for.
 *
 *      open(2) … EMFILE ─▶ exhaustion('rank 2', error, 'opening a socket')
 *      'rank 2 ran out of file descriptors (limit 64) while opening a socket (EMFILE …); raise the limit …'  */
import { closeSync, openSync } from 'node:fs';
import { isShoalError, messageOf, ShoalError, type ErrorFields } from './errors.ts';

interface Resource {
  readonly name: string;
  /** In the report of Node.js, where the limit has a name there. */
  readonly limit?: 'open_files' | 'max_user_processes';
  readonly next: string;
}

const descriptors: Resource = {
  name: 'file descriptors',
  limit: 'open_files',
  next: 'raise the limit (ulimit -n), or close files and release tensors and groups',
};
const threads: Resource = {
  name: 'threads',
  limit: 'max_user_processes',
  next: 'raise the limit (ulimit -u, or pids.max of its control group), or start fewer ranks on the host',
};
const memory: Resource = {
  name: 'memory',
  next: 'use fewer or smaller tensors, or raise the limit (ulimit -v, vm.max_map_count, the size of /dev/shm, memory.max of its control group)',
};

/** By the system's name of the error, or that of Node.js. Not EAGAIN, which is also what a listener says that has no room just now. */
const resources: Readonly<Record<string, Resource>> = {
  EMFILE: descriptors,
  ENFILE: { name: 'file descriptors of the host', next: 'raise fs.file-max, or close files on the host' },
  ENOMEM: memory,
  ENOSPC: memory,
  ENOBUFS: { name: 'memory of the kernel for sockets', next: 'close sockets on the host' },
  EFBIG: { name: 'size for a file', next: 'raise the largest file size (ulimit -f)' },
  ERR_WORKER_INIT_FAILED: threads,
  ERR_WORKER_OUT_OF_MEMORY: { name: 'heap', next: 'raise --max-old-space-size' },
};

/** The error of who wanted something that is used up; undefined where what was thrown says nothing of the kind. One that has been
 *  made of it before is returned as it is.
 *  @param who `rank 2`. @param doing `opening a socket`. */
export function exhaustion(who: string, thrown: unknown, doing: string, fields: ErrorFields = {}): ShoalError | undefined {
  if (isExhaustion(thrown)) return thrown;
  const resource = resources[codeOf(thrown) ?? ''];
  if (resource === undefined) return undefined;
  return exhausted(who, resource, { doing: `${doing} (${messageOf(thrown)})`, fields: { ...fields, cause: thrown } });
}

/** Something of the process or the host is used up. */
export function isExhaustion(thrown: unknown): thrown is ShoalError & { readonly resource: string } {
  return isShoalError(thrown) && thrown.resource !== undefined;
}

/** `checkDescriptors` of one process. */
export type CheckDescriptors = (count: number, doing: string) => void;

/** Whether so many descriptors could be opened now. @throws ShoalError `out-of-memory` when not. */
export function checkDescriptors(who: string, count: number, doing: string, fields: ErrorFields = {}): void {
  const opened: number[] = [];
  try {
    while (opened.length < count) opened.push(openSync('/dev/null', 'r'));
  } catch (thrown) {
    const resource = resources[codeOf(thrown) ?? ''];
    // Without the file there is nothing to try it with.
    if (resource === undefined) return;
    const left = `it takes at least ${count}, and ${opened.length} are left`;
    for (const fd of opened.splice(0)) closeSync(fd);
    throw exhausted(who, resource, { doing: `${doing}: ${left}`, fields: { ...fields, cause: thrown } });
  } finally {
    for (const fd of opened) closeSync(fd);
  }
}

function exhausted(who: string, { name, limit, next }: Resource, { doing, fields }: { doing: string; fields: ErrorFields }): ShoalError {
  const value = limit === undefined ? undefined : limitOf(limit);
  const message = `${who} ran out of ${name}${value === undefined ? '' : ` (limit ${value})`} while ${doing}; ${next}`;
  return new ShoalError('out-of-memory', message, { ...fields, resource: name });
}

/** A worker that could not be started has the system's reason in its text; an error of ours was caused by it. */
function codeOf(thrown: unknown): string | undefined {
  if (isShoalError(thrown)) return codeOf(thrown.cause);
  if (!(thrown instanceof Error) || !('code' in thrown)) return undefined;
  const { code } = thrown;
  if (code !== 'ERR_WORKER_INIT_FAILED') return String(code);
  return Object.keys(resources).find((name) => thrown.message.includes(name)) ?? code;
}

/** As it is now; reading /proc would take a descriptor. Undefined where there is none. */
function limitOf(name: NonNullable<Resource['limit']>): string | undefined {
  // Not in its types yet.
  const report = process.report as typeof process.report & { excludeNetwork?: boolean };
  const { excludeNetwork } = report;
  try {
    // Names of sockets' other ends would be looked up.
    report.excludeNetwork = true;
    const { userLimits } = report.getReport() as { userLimits?: Record<string, { soft: number | string }> };
    const soft = userLimits?.[name]?.soft;
    return soft === undefined || soft === 'unlimited' ? undefined : String(soft);
  } catch {
    return undefined;
  } finally {
    report.excludeNetwork = excludeNetwork;
  }
}
