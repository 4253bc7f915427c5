/** What a process holds, and how much of it counts as the same. */
export interface SoakCounts {
  readonly allReduces: number;
  readonly subgroups: number;
  readonly worlds: number;
}

/** By a process. */
export interface Held {
  readonly descriptors: number;
  /** Of shared memory. */
  readonly mappings: number;
  /** Resident. */
  readonly megabytes: number;
}

/** Between two looks at a process that keeps nothing: garbage of two heaps. */
const megabytesOfChance = 24;

/** No more is held than before. */
export function within(held: Held, before: Held): boolean {
  return (
    held.descriptors <= before.descriptors && held.mappings <= before.mappings && held.megabytes <= before.megabytes + megabytesOfChance
  );
}
