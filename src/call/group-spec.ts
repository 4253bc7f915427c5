/** The number, name and ranks of a group. The same on all of them, except for the own rank. */
import type { Settings } from '../base/settings/settings.ts';
import { worldGroupId } from '../membership/group-numbers.ts';
import { spaceOf, type TuningSpec } from '../scheduler/tuner/tuner.ts';
import type { Topology } from '../plan/topology.ts';

/** The schedule of a group's all-reduces, in bytes. The same on all ranks. */
export interface Scheduling {
  /** Most bytes in flight; one larger part may be alone. */
  readonly creditBytes: number;
  /** Tensors are cut into parts of at most so many. */
  readonly partitionBytes: number;
  /** They are tuned while the program trains. Default: they stay. */
  readonly tuning?: TuningSpec;
}

/** The credit and partition of a scheduled group. */
export interface SchedulingStatus {
  /** Bytes in flight at most. */
  readonly creditBytes: number;
  /** Bytes of a part at most. */
  readonly partitionBytes: number;
  /** `fixed`: nothing is tuned. */
  readonly tuning: 'fixed' | 'tuning' | 'converged';
  /** The step from which on this holds, counted by the calls of a tensor. */
  readonly sinceStep: number;
}

export interface GroupSpec {
  readonly id: number;
  /** A number that, with the group's first rank, no other group of the world has or had. Default: 0, the world's. */
  readonly serial?: number;
  readonly name: string;
  /** World rank of each group rank. */
  readonly globalRanks: readonly number[];
  /** This rank, in the group. */
  readonly rank: number;
  /** Hosts, in group ranks. */
  readonly topology: Topology;
  /** Algorithm that is taken wherever it can be, or `auto`. Default: as in the world. */
  readonly backend?: string;
  /** Library that runs its collectives (collective-libraries.ts). Default: none, they are Shoal's own. */
  readonly library?: string;
  /** Calls that count as made when the group opens, for tests of what comes after many. The same on all ranks. Default: none. */
  readonly callsBefore?: number;
  /** Number of the group that it is made of: if that fails while this one opens, this one does. */
  readonly parent?: number;
  /** Its calls are all-reduces, in the order that ranks agree on. Default: in the order in which they are made. */
  readonly scheduling?: Scheduling;
}

/** Most characters of the name of a scheduled tensor. */
export const scheduledNameMax = 256;
/** The largest number of a signal: immediates have fifteen bits for it. */
const signalMaxLimit = 32767;

/** Signals a control block has per slot: several per peer and channel, for a handful of channels. */
export function signalMaxOf(groupSize: number): number {
  return Math.min(signalMaxLimit, 16 + 8 * groupSize);
}

/** The group of all ranks. */
export function worldSpec(
  { rank, size, callsBefore, library }: { readonly rank: number; readonly size: number } & Pick<GroupSpec, 'callsBefore' | 'library'>,
  topology: Topology,
): GroupSpec {
  const globalRanks = Array.from({ length: size }, (_, each) => each);
  return { id: worldGroupId, name: 'world', globalRanks, rank, topology, callsBefore, library };
}

/** True if this rank tells people: the first of those that see others being late does. Where nobody is, each may be the only one that sees
 *  something.
 *  @param late world ranks. */
export function speaksOf({ rank, globalRanks }: GroupSpec, late: readonly number[]): boolean {
  return late.length === 0 || globalRanks.findIndex((each) => !late.includes(each)) === rank;
}

/** The hosts of a subset of ranks, renumbered by position in the subset; hosts in order of their first rank. */
export function restrictHosts(hosts: readonly (readonly number[])[], globalRanks: readonly number[]): number[][] {
  return hosts
    .map((host) => globalRanks.flatMap((global, rank) => (host.includes(global) ? [rank] : [])))
    .filter((host) => host.length > 0)
    .sort((a, b) => a[0] - b[0]);
}

/** The scheduling of programs that say nothing. */
export function schedulingOf(settings: Settings): Scheduling {
  const { scheduleCreditBytes: creditBytes, schedulePartitionBytes: partitionBytes } = settings;
  const { scheduleCreditTuning: credit, schedulePartitionTuning: partition } = settings;
  if (!credit && !partition) return { creditBytes, partitionBytes };
  return { creditBytes, partitionBytes, tuning: { space: spaceOf('all-reduce', { credit, partition }) } };
}
