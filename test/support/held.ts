/** Resources that processes hold, by the kernel's accounts, and the tolerance with which they are compared. */
import { readdirSync, readFileSync, readlinkSync, statSync } from 'node:fs';

export interface SoakCounts {
  readonly allReduces: number;
  readonly subgroups: number;
  readonly worlds: number;
}

/** Time of an inspection of ranks: after the first hundredth, or at the end. */
export type SoakMoment = 'early' | 'end';

/** Resources of a process. */
export interface Held {
  readonly descriptors: number;
  readonly threads: number;
  /** Mappings of shared memory that no rank has open any more, or that is mapped more often than once per thread. Other mappings
   *  come and go: memory of other ranks is mapped when it is first used in place, which depends on the rank that is late. */
  readonly strayMappings: number;
  /** Memory that JavaScript refers to. */
  readonly heapMegabytes: number;
  /** Resident memory. */
  readonly megabytes: number;
}

/** Number of threads of a rank that map memory: the main thread and the comm thread. */
const mappingThreads = 2;
/** Allowance for records of the latest calls, and code that was compiled late. */
const heapMegabytesOfChance = 2;

/** Descriptors of objects that are made once, when first needed: the thread that runs a call, and the rank that is late, decide
 *  when that is. */
const descriptorsMadeLate = 8;

/** Tolerances between two inspections of a process that keeps nothing. */
export interface Chance {
  /** Number of steps of the soak: memory kept by each of them exceeds the objects that are made once. */
  readonly steps: number;
  /** Allowance for garbage that the allocators of threads have not cleaned up. */
  readonly residentMegabytes: number;
}

/** True if no more is held than before. */
export function within(held: Held, before: Held, { steps, residentMegabytes }: Chance): boolean {
  return (
    held.descriptors <= before.descriptors + Math.min(descriptorsMadeLate, Math.floor(steps / 10)) &&
    held.threads <= before.threads &&
    held.strayMappings <= before.strayMappings &&
    held.heapMegabytes <= before.heapMegabytes + heapMegabytesOfChance &&
    held.megabytes <= before.megabytes + residentMegabytes
  );
}

/** The least of each resource. */
export function least(a: Held, b: Held): Held {
  return {
    descriptors: Math.min(a.descriptors, b.descriptors),
    threads: Math.min(a.threads, b.threads),
    strayMappings: Math.min(a.strayMappings, b.strayMappings),
    heapMegabytes: Math.min(a.heapMegabytes, b.heapMegabytes),
    megabytes: Math.min(a.megabytes, b.megabytes),
  };
}

/** Resources of each process of a world. @param heapMegabytes as each reports it itself. */
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
      // The descriptor was closed meanwhile.
      return [];
    }
  });
}
