/** `shoal run --report`: what ranks record, and the page at the end. */
import { readdirSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { makeFolders } from '../base/files/make-folders.ts';
import { messageOf, ShoalError } from '../base/errors.ts';
import type { Environment } from '../base/settings/settings.ts';
import { writeLauncherRecord, writeReport } from '../report/write-report.ts';

/** What a page is made of: of two runs it would be of neither. */
const runFile = /^((trace|flight)-rank-\d+|launcher)\.json$/;

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
    const other = readdirSync(this.#folder).find((file) => runFile.test(file));
    if (other !== undefined)
      throw new ShoalError('usage', `--report-dir ${this.#folder} has files of another run (${other}); name another folder`);
  }

  /** For the ranks. */
  environment(inherited: Environment): Environment {
    return { ...inherited, SHOAL_TRACE: this.#folder, SHOAL_FLIGHT_RECORDER_DIR: this.#folder };
  }

  /** @returns where the page is. */
  write(exitCode: number, failure: string | null): string {
    writeLauncherRecord(this.#folder, { command: this.#command, startedAt: this.#startedAt, exitCode, failure });
    return writeReport(this.#folder);
  }
}
