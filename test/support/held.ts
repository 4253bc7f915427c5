/** What processes hold, as the kernel accounts for it, and how much of it counts as the same. */
import { readdirSync, readFileSync, readlinkSync, statSync } from 'node:fs';

export interface SoakCounts {
  readonly allReduces: number;
  readonly subgroups: number;
  readonly worlds: number;
}

/** When ranks are looked at: after the first hundredth, and at the end. */
export type SoakMoment = 'early' | 'end';

/** By a process. */
export interface Held {
  readonly descriptors: number;
  readonly threads: number;
  /** Of shared memory that no rank has open any more, or that is mapped more often than once per thread. Others come and go: memory
   *  of other ranks is mapped when it is first used in place, which is a matter of who is late. */
  readonly strayMappings: number;
  /** What JavaScript refers to. */
  readonly heapMegabytes: number;
  /** Resident. */
  readonly megabytes: number;
}

/** Threads of a rank that map memory: the main thread and the comm thread. */
const mappingThreads = 2;
/** Records of the latest calls, and code that was compiled late. */
const heapMegabytesOfChance = 2;

/** Descriptors of what is made once, when it is first needed: which thread runs a call, and who is late, decides when that is. */
const descriptorsMadeLate = 8;

/** How much may come between two looks at a process that keeps nothing. */
export interface Chance {
  /** Steps of the soak: what each of them keeps is more than what is made once. */
  readonly steps: number;
  /** Garbage that the allocators of threads have not cleaned up. */
  readonly residentMegabytes: number;
}

/** No more is held than before. */
export function within(held: Held, before: Held, { steps, residentMegabytes }: Chance): boolean {
  return (
    held.descriptors <= before.descriptors + Math.min(descriptorsMadeLate, Math.floor(steps / 10)) &&
    held.threads <= before.threads &&
    held.strayMappings <= before.strayMappings &&
    held.heapMegabytes <= before.heapMegabytes + heapMegabytesOfChance &&
    held.megabytes <= before.megabytes + residentMegabytes
  );
}

/** The least of each. */
export function least(a: Held, b: Held): Held {
  return {
    descriptors: Math.min(a.descriptors, b.descriptors),
    threads: Math.min(a.threads, b.threads),
    strayMappings: Math.min(a.strayMappings, b.strayMappings),
    heapMegabytes: Math.min(a.heapMegabytes, b.heapMegabytes),
    megabytes: Math.min(a.megabytes, b.megabytes),
  };
}

/** What each of the processes of a world holds. @param heapMegabytes what each says itself. */
export function heldBy(pids: readonly number[], heapMegabytes: readonly number[]): Held[] {
  const open = new Set(pids.flatMap(openFiles));
  return pids.map((pid, rank) => {
    const mapped = new Map<string, number>();
    for (const [, inode] of read(pid, 'maps').matchAll(/ (\d+) +\/memfd:shoal/g)) mapped.set(inode, (mapped.get(inode) ?? 0) + 1);
    const stray = Array.from(mapped, ([inode, count]) => (open.has(inode) ? Math.max(0, count - mappingThreads) : count));
    return {
      descriptors: readdirSync(`/proc/${pid}/fd`).length,
      threads: readdirSync(`/proc/${pid}/task`).length,
      strayMappings: stray.reduce((sum, count) => sum + count, 0),
      heapMegabytes: heapMegabytes[rank],
      megabytes: Math.round(Number(/VmRSS:\s+(\d+)/.exec(read(pid, 'status'))?.[1]) / 102.4) / 10,
    };
  });
}

function read(pid: number, name: string): string {
  return readFileSync(`/proc/${pid}/${name}`, 'utf8');
}

/** Inodes of the shared memory that a process has open. */
function openFiles(pid: number): string[] {
  return readdirSync(`/proc/${pid}/fd`).flatMap((fd) => {
    const path = `/proc/${pid}/fd/${fd}`;
    try {
      return readlinkSync(path).startsWith('/memfd:shoal') ? [String(statSync(path).ino)] : [];
    } catch {
      // Closed meanwhile.
      return [];
    }
  });
}
