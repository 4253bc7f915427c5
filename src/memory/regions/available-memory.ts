/** Memory that this process may still allocate, and its limit: the machine or one of its control groups.
 *
 *  Shared memory beyond a control group's limit does not fail, it gets the process killed; so regions ask first. Linux: proc(5).
 *  On other systems nothing is known. */
import { controlGroups, readText, type ReadText } from '../../base/files/control-groups.ts';

export interface AvailableMemory {
  /** Available bytes; infinity when unknown. */
  readonly bytes: number;
  /** Name of the limit, for people: `the machine's free memory`, `control group /a/b (memory.max)`. */
  readonly limitedBy: string;
}

export function availableMemory(read: ReadText = readText): AvailableMemory {
  const candidates = [machine(read), ...groupLimits(read)];
  return candidates.reduce((least, next) => (next.bytes < least.bytes ? next : least));
}

function machine(read: ReadText): AvailableMemory {
  const match = /^MemAvailable:\s+(\d+) kB$/m.exec(read('/proc/meminfo') ?? '');
  return { bytes: match ? Number(match[1]) * 1024 : Infinity, limitedBy: "the machine's free memory" };
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

function* groupLimits(read: ReadText): Generator<AvailableMemory> {
  for (const { isUnified, name, folder } of controlGroups('memory', read)) {
    const files = isUnified ? versionTwo : versionOne;
    const limit = Number(read(`${folder}/${files.limit}`) ?? NaN); // `max` is NaN too: no limit
    const usage = Number(read(`${folder}/${files.usage}`) ?? NaN);
    if (!Number.isFinite(limit) || !Number.isFinite(usage)) continue;
    const reclaimable = Number(files.reclaimable.exec(read(`${folder}/memory.stat`) ?? '')?.[1] ?? 0);
    yield { bytes: Math.max(0, limit - usage + reclaimable), limitedBy: `control group ${name} (${files.limit})` };
  }
}
