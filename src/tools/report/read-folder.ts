/** Reads what a run left in a folder: traces, flight records, the demo's summary, the launcher's word. What cannot be read is a warning:
 *  a run that broke is the one that needs a report. */
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { isShoalError, messageOf, ShoalError } from '../../base/errors.ts';
import { readRegularFileSync } from '../../base/files/read-file.ts';
import {
  anyList,
  anyText,
  anything,
  integer,
  list,
  nullable,
  number,
  object,
  optional,
  record,
  that,
  type Shape,
} from '../../base/schema.ts';
import { rankTraceName } from '../../trace/chrome.ts';
import type { FlightDump } from '../../trace/flight-recorder.ts';
import { openTraceFile, type TraceFile } from '../../trace/trace-file.ts';
import type { ReportCurve } from './data/report-data.ts';

export interface RunFolder {
  readonly traces: readonly TraceFile[];
  readonly flights: readonly FlightDump[];
  readonly losses: readonly ReportCurve[];
  /** The launcher's record of the job. */
  readonly launcher: LauncherRecord | undefined;
  readonly warnings: readonly string[];
}

/** The record that `shoal run --report` writes beside the ranks' files, as `launcher.json`. */
export interface LauncherRecord {
  /** The script and its arguments. */
  readonly command: readonly string[];
  readonly startedAt: string;
  readonly exitCode: number;
  /** The cause of the failure; null: the job did not fail. */
  readonly failure: string | null;
  /** The place of the error that ended the rank, and the stack frames of the script. */
  readonly details?: readonly string[];
  /** The changes of the ranks of a job that goes on without those that it loses, in their order. */
  readonly changes?: readonly string[];
}

/** The files of a run that a page is made of. */
const runFiles = { trace: rankTraceName, flight: /^flight-rank-\d+\.json$/, summary: /^summary\.json$/, launcher: /^launcher\.json$/ };

export function isRunFile(name: string): boolean {
  return Object.values(runFiles).some((pattern) => pattern.test(name));
}

/** Limit for files that are read whole: all but traces. */
const fileBytesMax = 64 * 1024 * 1024;

/** @param running what the launcher says of a run that goes on. @throws ShoalError `usage` when the folder cannot be read or has nothing of
 *  a run. */
export function readRunFolder(folder: string, running?: LauncherRecord): RunFolder {
  const names = namesOf(folder);
  const warnings: string[] = [];
  const readEach = <T>(pattern: RegExp, readOne: (path: string, name: string) => T): T[] =>
    names.filter((name) => pattern.test(name)).flatMap((name) => orWarning(() => readOne(join(folder, name), name), name, warnings) ?? []);
  const read = <T>(pattern: RegExp, parse: (text: string, origin: string) => T): T[] =>
    readEach(pattern, (path, name) => parse(readRegularFileSync(path, { bytesMax: fileBytesMax }).toString(), name));
  const traces = readEach(runFiles.trace, openTraceFile);
  const flights = read(runFiles.flight, parseFlight);
  const losses = read(runFiles.summary, parseLosses).flat();
  const [launcher = running] = read(runFiles.launcher, parseLauncherRecord);
  if (traces.length + flights.length + losses.length > 0 || launcher !== undefined) return { traces, flights, losses, launcher, warnings };
  const found = warnings.length === 0 ? '' : `: ${warnings.join('; ')}`;
  const message = `${folder} has nothing of a run to report${found}; start it by shoal run --report, or with SHOAL_TRACE=${folder}`;
  throw new ShoalError('usage', message);
}

function namesOf(folder: string): string[] {
  try {
    return readdirSync(folder).sort((a, b) => a.localeCompare(b, 'en', { numeric: true }));
  } catch (thrown) {
    throw new ShoalError('usage', `the folder ${folder} cannot be read: ${messageOf(thrown)}`, { cause: thrown });
  }
}

function orWarning<T>(read: () => T, name: string, warnings: string[]): T | undefined {
  try {
    return read();
  } catch (thrown) {
    warnings.push(isShoalError(thrown) ? thrown.message : `${name} cannot be read: ${messageOf(thrown)}`);
    return undefined;
  }
}

const flightShape: Shape<unknown> = object({
  rank: integer(),
  pg_config: record(object({ name: anyText, ranks: anyText })),
  pg_status: record(object({ last_enqueued_collective: number() })),
  entries: list(
    object({
      ...{ pg_id: integer(), profiling_name: anyText, input_dtypes: list(anyText), input_sizes: list(list(number())) },
      ...{ frames: list(object({ filename: anyText, line: integer() })), state: anyText, error: nullable(anyText) },
    }),
  ),
});
const launcherShape: Shape<LauncherRecord> = object({
  ...{ command: list(anyText), startedAt: anyText, exitCode: integer(), failure: nullable(anyText) },
  ...{ details: optional(list(anyText)), changes: optional(list(anyText)) },
});
const point = that<[number, number]>('a point', (value) => Array.isArray(value) && value.length === 2 && value.every(Number.isFinite));
const curveShape = object({ processes: anything, losses: list(point) });

/** @param refusal that the text is something else. */
function checked<T>(value: unknown, shape: Shape<T>, refusal: string): T {
  if (shape.problem(value) === undefined) return value as T;
  throw new ShoalError('usage', refusal);
}

function parseFlight(text: string, origin: string): FlightDump {
  return checked(JSON.parse(text), flightShape, `${origin} is not a flight record written by Shoal`) as FlightDump;
}

/** A curve per run of the demo's summary. */
function parseLosses(text: string, origin: string): ReportCurve[] {
  const { runs } = checked(JSON.parse(text), object({ runs: anyList }), `${origin} is not a summary of the demo`);
  return runs.map((run) => {
    const { processes, losses } = checked(run, curveShape, `${origin} has a run without losses`);
    return { name: `${String(processes)} ${processes === 1 ? 'process' : 'processes'}`, points: losses };
  });
}

function parseLauncherRecord(text: string, origin: string): LauncherRecord {
  return checked(JSON.parse(text), launcherShape, `${origin} is not a record of the launcher`);
}
