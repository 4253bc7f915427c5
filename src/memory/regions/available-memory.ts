/** Memory that this process may still allocate, and its limit: the machine or one of its control groups.
 *
 *  Shared memory beyond a control group's limit does not fail, it gets the process killed; so regions ask first. Linux: proc(5),
 *  Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst. On other systems nothing is known. */
import { readFileSync } from 'node:fs';

export interface AvailableMemory {
  /** Available bytes; infinity when unknown. */
  readonly bytes: number;
  /** Name of the limit, for people: `the machine's free memory`, `control group /a/b (memory.max)`. */
  readonly limitedBy: string;
}

/** The text of a file, or undefined when it cannot be read. */
export type ReadText = (path: string) => string | undefined;

export function availableMemory(read: ReadText = readText): AvailableMemory {
  const candidates = [machine(read), ...controlGroups(read)];
  return candidates.reduce((least, next) => (next.bytes < least.bytes ? next : least));
}

function readText(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return undefined;
  }
}

function machine(read: ReadText): AvailableMemory {
  const match = /^MemAvailable:\s+(\d+) kB$/m.exec(read('/proc/meminfo') ?? '');
  return { bytes: match ? Number(match[1]) * 1024 : Infinity, limitedBy: "the machine's free memory" };
}

function* controlGroups(read: ReadText): Generator<AvailableMemory> {
  for (const line of (read('/proc/self/cgroup') ?? '').split('\n')) {
    // A line is hierarchy:controllers:path; version 2 is `0::/path`.
    const [hierarchy, controllers, ...rest] = line.split(':');
    const path = rest.join(':');
    if (hierarchy === '0' && controllers === '') yield* hierarchyLimits(read, '/sys/fs/cgroup', path, versionTwo);
    else if (controllers?.split(',').includes('memory')) yield* hierarchyLimits(read, '/sys/fs/cgroup/memory', path, versionOne);
  }
}

interface GroupFiles {
  readonly limit: string;
  readonly usage: string;
  /** Line of memory.stat that counts cached file pages, which the kernel takes back before it refuses. */
  readonly reclaimable: RegExp;
}

const versionTwo: GroupFiles = { limit: 'memory.max', usage: 'memory.current', reclaimable: /^inactive_file (\d+)$/m };
const versionOne: GroupFiles = {
  limit: 'memory.limit_in_bytes',
  usage: 'memory.usage_in_bytes',
  reclaimable: /^total_inactive_file (\d+)$/m,
};

/** Limits of the group and all above it: each may be the one that counts. Inside a container the path may not exist below the
 *  mount, whose root then is the group; so the walk always ends at the root. */
function* hierarchyLimits(read: ReadText, mount: string, path: string, files: GroupFiles): Generator<AvailableMemory> {
  const names = path.split('/').filter((name) => name !== '');
  for (let depth = names.length; depth >= 0; depth--) {
    const group = `/${names.slice(0, depth).join('/')}`;
    const folder = `${mount}${group === '/' ? '' : group}`;
    const limit = Number(read(`${folder}/${files.limit}`) ?? NaN); // `max` is NaN too: no limit
    const usage = Number(read(`${folder}/${files.usage}`) ?? NaN);
    if (!Number.isFinite(limit) || !Number.isFinite(usage)) continue;
    const reclaimable = Number(files.reclaimable.exec(read(`${folder}/memory.stat`) ?? '')?.[1] ?? 0);
    yield { bytes: Math.max(0, limit - usage + reclaimable), limitedBy: `control group ${group} (${files.limit})` };
  }
}
