/** Reads what a run left in a folder: traces, flight records, the demo's summary, the launcher's word. What cannot be read is a warning:
 *  a run that broke is the one that needs a report. */
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { isShoalError, messageOf, ShoalError } from '../../base/errors.ts';
import { readRegularFileSync } from '../../base/files/read-file.ts';
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

/** @param running what the launcher says of a run that goes on. @throws ShoalError `usage` when the folder cannot be read or has nothing of a run. */
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
  throw new ShoalError(
    'usage',
    `${folder} has nothing of a run to report${found}; start it by shoal run --report, or with SHOAL_TRACE=${folder}`,
  );
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

function parseFlight(text: string, origin: string): FlightDump {
  const dump = JSON.parse(text) as Partial<FlightDump> | null;
  const isDump =
    Number.isInteger(dump?.rank) &&
    isRecordOf(dump?.pg_config, (group) => typeof group['name'] === 'string' && typeof group['ranks'] === 'string') &&
    isRecordOf(dump?.pg_status, (status) => Number.isFinite(status['last_enqueued_collective'])) &&
    Array.isArray(dump?.entries) &&
    dump.entries.every(isEntry);
  if (isDump) return dump as FlightDump;
  throw new ShoalError('usage', `${origin} is not a flight record written by Shoal`);
}

function isEntry(value: unknown): boolean {
  const { pg_id, profiling_name, input_dtypes, input_sizes, frames, state, error } = record(value);
  return (
    Number.isInteger(pg_id) &&
    typeof profiling_name === 'string' &&
    isListOf(input_dtypes, (dtype) => typeof dtype === 'string') &&
    isListOf(input_sizes, (sizes) => isListOf(sizes, Number.isFinite)) &&
    isListOf(frames, (frame) => typeof record(frame)['filename'] === 'string' && Number.isInteger(record(frame)['line'])) &&
    typeof state === 'string' &&
    (error === null || typeof error === 'string')
  );
}

/** A curve per run of the demo's summary. */
function parseLosses(text: string, origin: string): ReportCurve[] {
  const { runs } = record(JSON.parse(text));
  if (!Array.isArray(runs)) throw new ShoalError('usage', `${origin} is not a summary of the demo`);
  return runs.map((run) => {
    const { processes, losses } = record(run);
    if (!Array.isArray(losses) || !losses.every(isPoint)) throw new ShoalError('usage', `${origin} has a run without losses`);
    return { name: `${String(processes)} ${processes === 1 ? 'process' : 'processes'}`, points: losses };
  });
}

function isPoint(value: unknown): value is [number, number] {
  return Array.isArray(value) && value.length === 2 && value.every(Number.isFinite);
}

function parseLauncherRecord(text: string, origin: string): LauncherRecord {
  const parsed = record(JSON.parse(text));
  const { command, startedAt, exitCode, failure, details = [], changes = [] } = parsed;
  const isWhole =
    Array.isArray(command) &&
    command.every((part) => typeof part === 'string') &&
    typeof startedAt === 'string' &&
    Number.isInteger(exitCode) &&
    (failure === null || typeof failure === 'string') &&
    isListOf(details, (line) => typeof line === 'string') &&
    isListOf(changes, (line) => typeof line === 'string');
  if (isWhole) return parsed as unknown as LauncherRecord;
  throw new ShoalError('usage', `${origin} is not a record of the launcher`);
}

function isListOf(value: unknown, check: (each: unknown) => boolean): boolean {
  return Array.isArray(value) && value.every(check);
}

function isRecordOf(value: unknown, check: (each: Readonly<Record<string, unknown>>) => boolean): boolean {
  return typeof value === 'object' && value !== null && Object.values(value).every((each) => check(record(each)));
}

function record(value: unknown): Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {};
}
