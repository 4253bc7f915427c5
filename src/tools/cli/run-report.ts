/** `shoal run --report` and `--watch`: what ranks record, the page while they run, and the page at the end. */
import { readdirSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { makeFolders } from '../../base/files/make-folders.ts';
import { messageOf, ShoalError } from '../../base/errors.ts';
import type { Environment } from '../../base/settings/settings.ts';
import { systemClock } from '../../base/clock.ts';
import { systemRandom } from '../../base/random.ts';
import { describeChange, type WorldChange } from '../../launch/world-ledger.ts';
import { sentenceOf, type JobFailure } from '../../launch/node-records.ts';
import { buildReport } from '../report/build-report.ts';
import type { ReportData } from '../report/data/report-data.ts';
import { isRunFile, readRunFolder } from '../report/read-folder.ts';
import { WatchServer } from '../report/watch-server.ts';
import { writeLauncherRecord, writeReport } from '../report/write-report.ts';

/** Interval at which ranks write while they are watched. */
const watchedMs = 1000;

export class RunReport {
  readonly #folder: string;
  readonly #startedAt: string;
  readonly #command: readonly string[];

  /** @param folder Default: one of its own, by the time.
   *  @throws ShoalError `usage` when it cannot be made, or has another run's files. */
  constructor(
    folder: string | undefined,
    options: { readonly directory: string; readonly command: readonly string[]; readonly startedAt: Date },
  ) {
    this.#startedAt = options.startedAt.toISOString();
    this.#command = options.command;
    const name = folder ?? join('runs', this.#startedAt.slice(0, 23).replaceAll(':', '-'));
    this.#folder = resolve(options.directory, name);
    try {
      makeFolders(this.#folder);
    } catch (thrown) {
      throw new ShoalError('usage', `--report-dir ${this.#folder} cannot be made: ${messageOf(thrown)}`, { cause: thrown });
    }
    // A report over the files of two runs would be true of neither.
    const other = readdirSync(this.#folder).find(isRunFile);
    if (other !== undefined)
      throw new ShoalError('usage', `--report-dir ${this.#folder} has files of another run (${other}); name another folder`);
  }

  /** The variables for the ranks. */
  variables(inherited: Environment, { isWatched }: { readonly isWatched: boolean }): Environment {
    const { SHOAL_TRACE_INTERVAL_MS = String(watchedMs) } = inherited;
    return { ...(isWatched && { SHOAL_TRACE_INTERVAL_MS }), SHOAL_TRACE: this.#folder, SHOAL_FLIGHT_RECORDER_DIR: this.#folder };
  }

  /** @throws ShoalError `system` when there is no port. */
  watch(): Promise<WatchServer> {
    return WatchServer.open({ folder: this.#folder, clock: systemClock, random: systemRandom, read: () => this.#now() });
  }

  /** A report of what the ranks have written so far. */
  #now(): ReportData {
    const launcher = { command: this.#command, startedAt: this.#startedAt, exitCode: 0, failure: null };
    const run = readRunFolder(this.#folder, launcher);
    const hasBegun = run.traces.length + run.flights.length > 0;
    return buildReport('run', hasBegun ? run : { ...run, warnings: [...run.warnings, 'no rank has written yet'] });
  }

  /** @returns where the page is, or why there is none: the job is over, and has the result that it has. */
  write(exitCode: number, failure: JobFailure | undefined, changes: readonly WorldChange[]): string {
    try {
      return this.#write(exitCode, failure, changes);
    } catch (thrown) {
      return messageOf(thrown);
    }
  }

  #write(exitCode: number, failure: JobFailure | undefined, changes: readonly WorldChange[]): string {
    const words = failure === undefined ? { failure: null } : { failure: sentenceOf(failure), details: failure.details ?? [] };
    writeLauncherRecord(this.#folder, {
      ...{ command: this.#command, startedAt: this.#startedAt, exitCode, ...words },
      changes: changes.map((change) => `after ${change.seconds.toFixed(1)} s: ${describeChange(change)}`),
    });
    return writeReport(this.#folder);
  }
}
