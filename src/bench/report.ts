/** What a benchmark leaves behind, as plain data: `shoal bench --json`. */
import type { BenchOptions } from './options.ts';

/** Incremented when a field changes its meaning or goes away. */
export const benchSchemaVersion = 1;

/** One rank, for the head of the table. */
export interface RankPlace {
  readonly rank: number;
  readonly pid: number;
  readonly host: string;
  /** Processors this rank may use. */
  readonly cpus: number;
  readonly processor: string;
}

/** One half of a row. Times are microseconds per operation: the largest over ranks of each rank's own statistic. */
export interface HalfResult {
  readonly medianUs: number;
  readonly minUs: number;
  readonly p99Us: number;
  readonly meanUs: number;
  /** 10⁹ bytes per second, at the median. */
  readonly algorithmBandwidth: number;
  readonly busBandwidth: number;
  /** Elements, over all ranks; null when nothing was checked. */
  readonly wrong: number | null;
  /** samplesUs[rank][iteration], when they were asked for. */
  readonly samplesUs?: readonly (readonly number[])[];
}

export interface BenchRow {
  /** Bytes: the larger of what a rank gives and gets. */
  readonly size: number;
  /** Elements, as nccl-tests counts them for this collective. */
  readonly count: number;
  readonly iterations: number;
  /** Null where the collective does not have this half. */
  readonly outOfPlace: HalfResult | null;
  readonly inPlace: HalfResult | null;
}

export interface BenchHeader {
  readonly schema: 'shoal-bench';
  readonly version: number;
  readonly shoal: string;
  readonly node: string;
  /** The addon's instruction set; null without the addon. */
  readonly native: string | null;
  readonly ranks: readonly RankPlace[];
  /** Ranks by machine. */
  readonly hosts: readonly (readonly number[])[];
  readonly options: Omit<BenchOptions, 'sizes'>;
  /** What two readings of the clock cost, microseconds; contained in every sample. */
  readonly stopwatchUs: number;
}

export interface BenchSummary {
  /** Elements that were wrong, over all rows. */
  readonly wrong: number;
  /** Mean over rows and halves, 10⁹ bytes per second. */
  readonly averageBusBandwidth: number;
}

export interface BenchReport extends BenchHeader {
  readonly rows: readonly BenchRow[];
  readonly summary: BenchSummary;
}

/** What rank 0 tells while it measures. */
export type BenchEvent =
  | { readonly event: 'header'; readonly header: BenchHeader }
  | { readonly event: 'progress'; readonly done: number; readonly total: number; readonly bytes: number; readonly half: string }
  | { readonly event: 'row'; readonly row: BenchRow }
  | { readonly event: 'end'; readonly summary: BenchSummary };

/** Puts the events together again. */
export class ReportBuilder {
  #header: BenchHeader | undefined;
  #summary: BenchSummary | undefined;
  readonly #rows: BenchRow[] = [];

  add(event: BenchEvent): void {
    if (event.event === 'header') this.#header = event.header;
    if (event.event === 'row') this.#rows.push(event.row);
    if (event.event === 'end') this.#summary = event.summary;
  }

  /** Undefined until the end. */
  get report(): BenchReport | undefined {
    if (this.#header === undefined || this.#summary === undefined) return undefined;
    return { ...this.#header, rows: this.#rows, summary: this.#summary };
  }
}

export function summaryOf(rows: readonly BenchRow[]): BenchSummary {
  const halves = rows.flatMap(({ outOfPlace, inPlace }) => [outOfPlace, inPlace]).filter((half) => half !== null);
  return {
    wrong: halves.reduce((sum, { wrong }) => sum + (wrong ?? 0), 0),
    averageBusBandwidth: halves.reduce((sum, { busBandwidth }) => sum + busBandwidth, 0) / Math.max(1, halves.length),
  };
}
