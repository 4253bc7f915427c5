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
  /** Times of a call by commit, this one's first: microseconds, medians of the rounds. */
  readonly builds: Readonly<Record<string, { readonly medianUs: number; readonly bestUs: number; readonly roundsUs: readonly number[] }>>;
}
