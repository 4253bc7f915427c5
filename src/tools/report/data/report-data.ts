/** The data of the page: plain data, written into it as JSON. Times are microseconds from the run's first event, on rank 0's clock. */

/** One thread, or one row of a group's operations, of one rank. Columns of spans, by start. */
export interface ReportRow {
  readonly rank: number;
  readonly name: string;
  readonly starts: number[];
  readonly durations: number[];
  /** Indices into `names`. */
  readonly labels: number[];
  /** Into `details`; −1: none. */
  readonly details: number[];
  /** Numbers for the first and the second place in the details; empty when no span has any. */
  readonly firsts: (number | null)[];
  readonly seconds: (number | null)[];
  /** Shares of busy and of waiting time, where spans are left out; density.ts has the format. */
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
  /** Time that others waited for this rank. */
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
  /** Number of ranks that take part; 0: unknown. */
  readonly ranks: number;
  /** Bytes of the operation by the transfer time, GB/s. */
  readonly algorithmBandwidth: number;
  /** Bus bandwidth as nccl-tests define it, GB/s; 0: the operation has none. */
  readonly busBandwidth: number;
  /** Measured bandwidth that limits it; null: none was measured. */
  readonly boundBandwidth: number | null;
}

/** Measured bandwidths of the run's links and memory, GB/s; null: not measured. */
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

/** Matrices by sender and receiver; both are indices into `ends`. */
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
  /** Largest of all values, those that are left out included. */
  readonly most: number;
  readonly times: number[];
  readonly values: number[];
}

export interface ReportCurve {
  readonly name: string;
  readonly points: readonly (readonly [step: number, loss: number])[];
}

/** The failure of the run: the first line is for people who read only one. */
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
  /** Names of things that could not be read, or are left out. */
  readonly warnings: readonly string[];
  readonly ranks: readonly ReportRank[];
  /** Null: no rank was waited for much longer than the others. */
  readonly straggler: ReportStraggler | null;
  /** Null: the run has no calls that come again and again. */
  readonly trainingStep: ReportTrainingStep | null;
  /** The advice that would make a step shorter, as a sentence; null: nothing is known. */
  readonly advice: string | null;
  readonly names: readonly string[];
  /** Texts of details that several spans share, with places for numbers that differ: `sequence  · dtype float32`. */
  readonly details: readonly string[];
  readonly rows: readonly ReportRow[];
  /** Length of a stretch of densities. */
  readonly stretchUs: number;
  readonly counters: readonly ReportCounter[];
  /** Ends in the order of their hosts. */
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
