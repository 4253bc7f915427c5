/** The report of a comparison with earlier commits. */
export interface EarlierReport {
  readonly schema: 'shoal-earlier';
  readonly startedAt: string;
  readonly commit: string;
  /** The last commit that changed the package's code: rows of other commits with the same code stay. */
  readonly code: string;
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

/** Times of a call in microseconds. A round starts all processes anew. */
export interface EarlierTimes {
  /** Median of the rounds. */
  readonly medianUs: number;
  readonly bestUs: number;
  /** Median of `ratios`. */
  readonly ratio: number;
  /** The median of each round's turns. */
  readonly roundsUs: readonly number[];
  /** The median over each round's turns of this time divided by that of the present code in the same turn. */
  readonly ratios: readonly number[];
}
