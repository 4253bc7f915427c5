/** The report that `bench/overlap/run.ts` writes. */

/** Series. operations: the caller has so many in flight, and staging for all. staging: the caller starts all, the staging holds
 *  so many. slices: one tensor of as many slices as there are operations, the staging holds so many of them. */
export const seriesNames = ['operations', 'staging', 'slices'] as const;
export type SeriesName = (typeof seriesNames)[number];

export interface OverlapPoint {
  readonly series: SeriesName;
  /** Number of operations, or slices, that can be under way at once. */
  readonly inFlight: number;
  /** Value of SHOAL_STAGING_BYTES. */
  readonly stagingBytes: number;
  /** Time of all bytes, of one round each: the median of the slowest rank. */
  readonly roundsUs: readonly number[];
  /** Median of the rounds. */
  readonly medianUs: number;
}

export interface OverlapReport {
  readonly schema: 'shoal-overlap';
  readonly version: 1;
  readonly network: string;
  readonly ranksPerHost: number;
  /** Number of operations, and bytes of each, which is also the size of a slice. */
  readonly buckets: number;
  readonly bytes: number;
  /** Bytes that one of them stages on a rank. */
  readonly stagedBytes: number;
  /** Time of all bytes at the rate of the hosts' links, without headers; null where that is not limited. */
  readonly boundUs: number | null;
  readonly rounds: number;
  readonly machine: { readonly cpu: string; readonly cpus: number; readonly node: string; readonly loadBefore: number };
  readonly commit: string;
  readonly startedAt: string;
  readonly points: readonly OverlapPoint[];
}
