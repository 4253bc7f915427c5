/** The group, the options and the results of a reducer. */
import { systemClock, type Clock } from '../base/clock.ts';
import { anyNumber, anyObject, checkOptions, flag, literal, optionTable } from '../base/schema.ts';
import { readSettings, type Environment } from '../base/settings/settings.ts';
import type { ProcessGroup } from '../group/caller/types.ts';

/** The part of a process group that the reducer uses. */
export type ReducerGroup = Pick<ProcessGroup, 'rank' | 'size' | 'tensor' | 'release' | 'allReduce' | 'broadcast' | 'allGather'> &
  Partial<Pick<ProcessGroup, 'span' | 'step'>>;

/** Weights of ranks in the average.
 *  ranks    each rank alike: right when all have the same batch size
 *  samples  by the samples each announces with `begin`: right for uneven batches, and for ranks that have run out */
export type Weighting = 'ranks' | 'samples';

/** Options of a reducer: how it cuts gradients into buckets and averages them; the same on all ranks. */
export interface ReducerOptions {
  /** Limit of a bucket. Default: SHOAL_BUCKET_BYTES, 25 MiB. */
  readonly bucketBytes?: number;
  /** Limit of the first bucket. Default: SHOAL_FIRST_BUCKET_BYTES, 1 MiB. */
  readonly firstBucketBytes?: number;
  /** `false` (default): `finish` refuses a step in which a parameter got no gradient, naming it.
   *  `true`: it counts as zeros on this rank. */
  readonly findUnused?: boolean;
  /** Weights of ranks in the average. Default 'ranks'. */
  readonly weighting?: Weighting;
  /** Timeout of each collective, in milliseconds. Default: the group's. */
  readonly timeoutMs?: number;
  /** Clock that measures `stats`. Default: the system's. */
  readonly clock?: Clock;
  /** Environment that settings are read from. Default: `process.env`. */
  readonly environment?: Environment;
}

/** Cost of communication. Times are milliseconds, bytes are those of buckets. */
export interface ReducerStats {
  /** Synchronised steps. */
  readonly steps: number;
  /** All-reduces started. */
  readonly buckets: number;
  /** Bytes that this rank gave to all-reduce. */
  readonly bytes: number;
  /** Time that `finish` spent waiting: the time that communication adds to the step. */
  readonly exposedMs: number;
  /** Time from the start of the first bucket to the end of `finish`: exposed and hidden together. */
  readonly spanMs: number;
}

/** Result of a synchronised step. */
export interface StepResult {
  /** Weighting 'samples': samples of all ranks since the last step; 0 when every rank has run out. Weighting 'ranks': the group's size. */
  readonly weight: number;
}

const reducerOptions = optionTable<ReducerOptions>({
  bucketBytes: anyNumber,
  firstBucketBytes: anyNumber,
  findUnused: flag,
  weighting: literal('ranks', 'samples'),
  timeoutMs: anyNumber,
  clock: anyObject,
  environment: anyObject,
});
/** The options with their defaults. @throws ShoalError `usage`. */
export function settledOptions(options: ReducerOptions): Omit<Required<ReducerOptions>, 'environment' | 'timeoutMs'> {
  checkOptions('Reducer', options, reducerOptions);
  const settings = readSettings(options.environment ?? process.env);
  const { bucketBytes = settings.bucketBytes, firstBucketBytes = settings.firstBucketBytes } = options;
  const { findUnused = false, weighting = 'ranks', clock = systemClock } = options;
  return { bucketBytes, firstBucketBytes, findUnused, weighting, clock };
}
