/** The report of a comparison with earlier commits. */
export interface EarlierReport {
  readonly schema: 'shoal-earlier';
  readonly startedAt: string;
  readonly commit: string;
  readonly cpus: number;
  readonly loadBefore: number;
  readonly rounds: number;
  readonly rows: readonly EarlierRow[];
}

export interface EarlierRow {
  readonly group: string;
  readonly case: string;
  /** The times of each build, by its commit; `now` is the present code. */
  readonly builds: Readonly<Record<string, EarlierTimes>>;
}

/** Times of a call in microseconds: the medians of all rounds. */
export interface EarlierTimes {
  readonly medianUs: number;
  readonly bestUs: number;
  /** Median over the rounds of this time divided by that of the present code in the same round. */
  readonly ratio: number;
  readonly roundsUs: readonly number[];
}
