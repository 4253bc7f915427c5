/** What the page is made of: plain data, written into it as JSON. Times are microseconds from the run's first event, on rank 0's clock. */

/** One thread, or one row of a group's operations, of one rank. Columns of spans, by start. */
export interface ReportRow {
  readonly rank: number;
  readonly name: string;
  readonly starts: number[];
  readonly durations: number[];
  /** Into `names`. */
  readonly labels: number[];
  /** Into `details`; −1: none. */
  readonly details: number[];
  /** What stands in the first and in the second place of those; empty: nothing. */
  readonly firsts: (number | null)[];
  readonly seconds: (number | null)[];
  /** How busy it was, and how much of that was waiting, where spans are left out: density.ts. */
  readonly density?: string;
}

export interface ReportRank {
  readonly rank: number;
  readonly host: string;
  readonly pid: number;
  /** Events that were not kept. */
  readonly dropped: number;
  /** Time inside collectives, waiting included; the part of it that was waiting for others. */
  readonly communicatingUs: number;
  readonly waitingUs: number;
  /** What others waited for this rank. */
  readonly waitedForUs: number;
}

/** Calls of one place in the script, alike in kind, size and way. */
export interface ReportOperation {
  readonly kind: string;
  readonly algorithm: string;
  readonly path: string;
  readonly dtype: string;
  readonly site: string;
  readonly bytes: number;
  readonly calls: number;
  /** Medians over calls: of the slowest rank's transfer, and of the longest wait. */
  readonly transferUs: number;
  readonly waitUs: number;
  /** Who takes part; 0: unknown. */
  readonly ranks: number;
  /** Bytes of the operation by the transfer time, GB/s. */
  readonly algorithmBandwidth: number;
  /** As nccl-tests define it, GB/s; 0: it has none. */
  readonly busBandwidth: number;
  /** What was measured that limits it; null: nothing. */
  readonly boundBandwidth: number | null;
}

/** What was measured of the run's links and memory, GB/s; null: it was not. */
export interface ReportRates {
  readonly linkBandwidth: number | null;
  readonly linkFrom: 'start' | 'tuning';
  readonly copyBandwidth: number | null;
}

/** Steps of the graph sessions of a rank. */
export interface ReportSteps {
  readonly rank: number;
  readonly steps: number;
  /** Median. */
  readonly stepUs: number;
  /** On all tasks, on average. */
  readonly requestsPerStep: number;
}

/** Requests of one rank to one sender. */
export interface ReportRequests {
  readonly rank: number;
  readonly from: string;
  /** `RecvTensor`, `FuseRecvTensor`, `RecvSome`. */
  readonly method: string;
  readonly requests: number;
  readonly tensorsMean: number;
  readonly tensorsMost: number;
}

/** A tensor between two devices, step after step. Medians. */
export interface ReportReceive {
  readonly tensor: string;
  readonly from: string;
  readonly to: string;
  readonly receives: number;
  readonly bytes: number;
  /** At the sender: until it was there; then until those were that it is fused with. */
  readonly waitUs: number;
  readonly heldUs: number;
  /** The rest: the way there and back, and the time in which requests gather. */
  readonly transferUs: number;
}

/** A row and a column of matrices: a rank, or several that are summarised. */
export interface ReportEnd {
  /** `3`; `4–7`, or the host, where there are too many ranks to show each. */
  readonly name: string;
  readonly host: string;
}

/** By sender and receiver, both into `ends`. */
export interface ReportLinks {
  readonly bytes: readonly (readonly number[])[];
  readonly transfers: readonly (readonly number[])[];
  /** Sums of bytes. */
  readonly withinHosts: number;
  readonly betweenHosts: number;
}

/** A rank that was waited for much longer than the others; it may have left no trace. */
export interface ReportStraggler {
  readonly rank: number;
  /** The sum over all ranks that waited. */
  readonly waitedForUs: number;
}

/** A training step, as calls show it: from one to the next of those that take most of the time. */
export interface ReportTrainingStep {
  /** These calls: `all-reduce at train.ts:31`. */
  readonly calls: string;
  readonly steps: number;
  /** Median. */
  readonly stepUs: number;
  /** Shares of a step, as means over ranks: time in collectives, and the part of it in which a rank waits for others. */
  readonly communicating: number;
  readonly waiting: number;
}

export interface ReportCounter {
  readonly rank: number;
  readonly name: string;
  /** Default: just numbers. */
  readonly unit?: 'bytes';
  /** Of all values, those that are left out included. */
  readonly most: number;
  readonly times: number[];
  readonly values: number[];
}

export interface ReportCurve {
  readonly name: string;
  readonly points: readonly (readonly [step: number, loss: number])[];
}

/** What went wrong: the first line is for who reads only one. */
export interface ReportFailure {
  readonly headline: string;
  readonly lines: readonly string[];
}

export interface ReportData {
  readonly version: 1;
  readonly title: string;
  readonly startedAt: string | null;
  readonly durationUs: number;
  readonly failure: ReportFailure | null;
  /** What could not be read, and what is left out. */
  readonly warnings: readonly string[];
  readonly ranks: readonly ReportRank[];
  /** Null: no rank was waited for much longer than the others. */
  readonly straggler: ReportStraggler | null;
  /** Null: the run has no calls that come again and again. */
  readonly trainingStep: ReportTrainingStep | null;
  /** The advice that would make a step shorter, as a sentence; null: nothing is known. */
  readonly advice: string | null;
  readonly names: readonly string[];
  /** Of spans that have the same, with places for numbers that differ: `sequence  · dtype float32`. */
  readonly details: readonly string[];
  readonly rows: readonly ReportRow[];
  /** Of densities. */
  readonly stretchUs: number;
  readonly counters: readonly ReportCounter[];
  /** In order of their hosts. */
  readonly ends: readonly ReportEnd[];
  /** Null: nothing was counted. */
  readonly links: ReportLinks | null;
  /** waits[a][b]: how long end a waited for end b, microseconds. */
  readonly waits: readonly (readonly number[])[];
  readonly operations: readonly ReportOperation[];
  readonly rates: ReportRates;
  readonly steps: readonly ReportSteps[];
  readonly requests: readonly ReportRequests[];
  readonly receives: readonly ReportReceive[];
  readonly losses: readonly ReportCurve[];
}
