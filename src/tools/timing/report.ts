/** The report of a benchmark, as plain data: `shoal bench --json`. */
import type { BenchOptions, Kind } from './options.ts';

/** Incremented when a field changes its meaning or goes away. */
export const benchSchemaVersion = 1;

/** Place of one rank, for the head of the table. */
export interface RankPlace {
  readonly rank: number;
  readonly pid: number;
  readonly host: string;
  /** Number of processors that this rank may use. */
  readonly cpus: number;
  readonly processor: string;
}

/** One half of a row. Times are microseconds per operation: the largest over ranks of each rank's own statistic. */
export interface HalfResult {
  /** The calls with as long a computation beside them as they take alone, and the percentage of the communication that it covered; present
   *  with `--overlap`. */
  readonly overlap?: { readonly overallUs: number; readonly computeUs: number; readonly percent: number };
  readonly medianUs: number;
  readonly minUs: number;
  readonly p99Us: number;
  readonly meanUs: number;
  /** Algorithm bandwidth at the median, in 10⁹ bytes per second; `busBandwidth` alike. */
  readonly algorithmBandwidth: number;
  readonly busBandwidth: number;
  /** Number of wrong elements, over all ranks; null when nothing was checked. */
  readonly wrong: number | null;
  /** samplesUs[rank][iteration], if they were requested. */
  readonly samplesUs?: readonly (readonly number[])[];
}

export interface BenchRow extends Kind {
  /** Bytes: the larger of a rank's input and output. */
  readonly size: number;
  /** Number of elements, as nccl-tests counts them for this collective. */
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
  /** Cost of two readings of the clock, in microseconds; contained in every sample. */
  readonly stopwatchUs: number;
}

export interface BenchSummary {
  /** Number of wrong elements, over all rows. */
  readonly wrong: number;
  /** Mean over rows and halves, 10⁹ bytes per second. */
  readonly averageBusBandwidth: number;
}

export interface BenchReport extends BenchHeader {
  readonly rows: readonly BenchRow[];
  readonly summary: BenchSummary;
}

/** Events of rank 0 while it measures. */
export type BenchEvent =
  | { readonly event: 'header'; readonly header: BenchHeader }
  | { readonly event: 'progress'; readonly done: number; readonly total: number; readonly bytes: number; readonly half: string }
  | { readonly event: 'row'; readonly row: BenchRow }
  | { readonly event: 'end'; readonly summary: BenchSummary };

/** Builds the report from events. */
export class ReportBuilder {
  #header: BenchHeader | undefined;
  #summary: BenchSummary | undefined;
  readonly #rows: BenchRow[] = [];

  add(event: BenchEvent): void {
    if (event.event === 'header') this.#header = event.header;
    if (event.event === 'row') this.#rows.push(event.row);
    if (event.event === 'end') this.#summary = event.summary;
  }

  /** The report; undefined until the end. */
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
