/** The resources that a process can run out of, and the error that says so: it names the process, the resource, its limit and the
 *  next step. It must not know what the resource was wanted for.
 *
 *      open(2) … EMFILE ─▶ exhaustion('rank 2', error, 'opening a socket')
 *      'rank 2 ran out of file descriptors (limit 64) while opening a socket (EMFILE …); raise the limit …' */
import { closeSync, openSync } from 'node:fs';
import { isShoalError, messageOf, ShoalError, type ErrorFields } from './errors.ts';

interface Resource {
  readonly name: string;
  /** Name of the limit in the report of Node.js, if it has one there. */
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

/** Resources by the system's name of the error, or that of Node.js. EAGAIN is not among them: a listener without room just now
 *  says it, too. */
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

/** The error for a resource that is used up; undefined when `thrown` says nothing of the kind. An error that was made here before
 *  is returned as it is.
 *  @param who `rank 2`. @param doing `opening a socket`. */
export function exhaustion(who: string, thrown: unknown, doing: string, fields: ErrorFields = {}): ShoalError | undefined {
  if (isExhaustion(thrown)) return thrown;
  const resource = resources[codeOf(thrown) ?? ''];
  if (resource === undefined) return undefined;
  return exhausted(who, resource, { doing: `${doing} (${messageOf(thrown)})`, fields: { ...fields, cause: thrown } });
}

/** True for an error that a resource of the process or the host is used up. */
export function isExhaustion(thrown: unknown): thrown is ShoalError & { readonly resource: string } {
  return isShoalError(thrown) && thrown.resource !== undefined;
}

/** `checkDescriptors` for one process. */
export type CheckDescriptors = (count: number, doing: string) => void;

/** Checks that this many descriptors could be opened now. @throws ShoalError `out-of-memory` when not. */
export function checkDescriptors(who: string, count: number, doing: string, fields: ErrorFields = {}): void {
  const opened: number[] = [];
  try {
    while (opened.length < count) opened.push(openSync('/dev/null', 'r'));
  } catch (thrown) {
    const resource = resources[codeOf(thrown) ?? ''];
    // Without that file there is nothing to open for a try.
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

/** The system's name of the error. A worker that could not be started has it in its text only; one of our errors has it in its cause. */
export function codeOf(thrown: unknown): string | undefined {
  if (isShoalError(thrown)) return codeOf(thrown.cause);
  if (!(thrown instanceof Error) || !('code' in thrown)) return undefined;
  const { code } = thrown;
  if (code !== 'ERR_WORKER_INIT_FAILED') return String(code);
  return Object.keys(resources).find((name) => thrown.message.includes(name)) ?? code;
}

/** The limit as it is now, from the report: reading /proc would take a descriptor. Undefined where there is none. */
function limitOf(name: NonNullable<Resource['limit']>): string | undefined {
  // The option is missing in Node's types.
  const report = process.report as typeof process.report & { excludeNetwork?: boolean };
  const { excludeNetwork } = report;
  try {
    // With it, the report would look up the names of sockets' other ends.
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
