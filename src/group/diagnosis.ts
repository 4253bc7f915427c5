/** A diagnosis: before a group fails for a mismatch or a timeout, its ranks exchange what each of them called, so that
 *  every rank's error names all of them. Bounded: ranks that do not answer in time are named as silent. */
import { ShoalError, type ErrorCode } from '../base/errors.ts';

export interface Report {
  /** `all-reduce #17 float32[4] sum at train.ts:12`, or what the rank did instead. */
  readonly text: string;
  /** The rank has made the call in question. */
  readonly arrived: boolean;
}

export class Diagnosis {
  readonly code: Extract<ErrorCode, 'mismatch' | 'timeout'>;
  readonly sequence: number;
  readonly timeoutMs: number;
  readonly #operation: string;
  readonly #globalRanks: readonly number[];
  readonly #reports: (Report | undefined)[];

  constructor(options: {
    code: 'mismatch' | 'timeout';
    sequence: number;
    timeoutMs: number;
    operation: string;
    globalRanks: readonly number[];
  }) {
    this.code = options.code;
    this.sequence = options.sequence;
    this.timeoutMs = options.timeoutMs;
    this.#operation = options.operation;
    this.#globalRanks = options.globalRanks;
    this.#reports = options.globalRanks.map(() => undefined);
  }

  add(rank: number, report: Report): void {
    this.#reports[rank] ??= report;
  }

  has(rank: number): boolean {
    return this.#reports[rank] !== undefined;
  }

  get complete(): boolean {
    return this.#reports.every((report) => report !== undefined);
  }

  /** The error as this rank's user sees it. */
  error(group: string): ShoalError {
    const lines = this.#reports.map((report, rank) => `  rank ${this.#name(rank)}: ${report?.text ?? 'did not answer'}`);
    const fields = { sequence: this.sequence, operation: this.#operation };
    if (this.code === 'mismatch') {
      const message = `ranks of group '${group}' disagree on collective #${this.sequence}:\n${lines.join('\n')}\nEvery rank must make the same calls in the same order.`;
      return new ShoalError('mismatch', message, fields);
    }
    const missing = this.#reports.flatMap((report, rank) => (report?.arrived ? [] : [this.#name(rank)]));
    const who = missing.length > 0 ? `waiting for rank ${missing.join(', ')}` : 'all ranks arrived, but the data did not';
    const message = `collective #${this.sequence} of group '${group}' timed out after ${this.timeoutMs} ms, ${who}:\n${lines.join('\n')}`;
    return new ShoalError('timeout', message, { ...fields, timeoutMs: this.timeoutMs, peer: this.#firstMissing() });
  }

  #firstMissing(): number | undefined {
    const index = this.#reports.findIndex((report) => !report?.arrived);
    return index < 0 ? undefined : this.#globalRanks[index];
  }

  #name(rank: number): string {
    const global = this.#globalRanks[rank];
    return global === rank ? `${rank}` : `${rank} (world rank ${global})`;
  }
}
