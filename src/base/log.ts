/** Messages for people, on stderr: one line each, `12:01:03.123 rank 3 warn  message`. A logger is an argument like the
 *  clock; nothing here is shared between two of them. What was slow or when is the business of traces, not of logs. */
import { writeSync } from 'node:fs';
import { pino, type Logger as PinoLogger } from 'pino';
import type { Clock } from './clock.ts';

export type LogLevel = 'debug' | 'info' | 'warn' | 'error' | 'silent';

/** Where messages go. `fields` are appended as `name=value`. */
export interface Logger {
  debug(message: string, fields?: LogFields): void;
  info(message: string, fields?: LogFields): void;
  warn(message: string, fields?: LogFields): void;
  error(message: string, fields?: LogFields): void;
}

export type LogFields = Readonly<Record<string, string | number | boolean | undefined>>;

export interface LoggerOptions {
  readonly level: LogLevel;
  readonly clock: Clock;
  /** Who speaks, printed before the level: `rank 3`, `launcher`. */
  readonly speaker: string;
  /** Receives whole lines with their newline. Default: stderr, written before the call returns. */
  readonly write?: (line: string) => void;
}

/** Says nothing. For tests, and where no logger was given. */
export const silentLogger: Logger = { debug() {}, info() {}, warn() {}, error() {} };

/** A logger for one speaker. Levels below `level` cost one call. */
export function createLogger(options: LoggerOptions): Logger {
  const { level, clock, speaker, write = writeToStderr } = options;
  if (level === 'silent') return silentLogger;
  const sink = pino(
    { level, base: null, timestamp: () => `,"time":${clock.wallNow()}` },
    { write: (record: string) => write(formatRecord(record, speaker)) },
  );
  return {
    debug: (message, fields) => emit(sink, 'debug', message, fields),
    info: (message, fields) => emit(sink, 'info', message, fields),
    warn: (message, fields) => emit(sink, 'warn', message, fields),
    error: (message, fields) => emit(sink, 'error', message, fields),
  };
}

function emit(sink: PinoLogger, level: Exclude<LogLevel, 'silent'>, message: string, fields: LogFields | undefined): void {
  // Fields are nested so that a field called `time` or `msg` cannot overwrite the record's own.
  if (fields === undefined) sink[level](message);
  else sink[level]({ fields }, message);
}

interface LogRecord {
  readonly level: number;
  readonly time: number;
  readonly msg?: string;
  readonly fields?: LogFields;
}

function formatRecord(text: string, speaker: string): string {
  const record = JSON.parse(text) as LogRecord;
  const time = new Date(record.time).toISOString().slice(11, 23);
  const level = (pino.levels.labels[record.level] ?? 'info').padEnd(5);
  const fields = Object.entries(record.fields ?? {}).map(([name, value]) => ` ${name}=${value}`);
  return `${oneLine(`${time} ${speaker} ${level} ${record.msg ?? ''}${fields.join('')}`)}\n`;
}

/** Peers' text ends up in messages: it must neither start new lines nor move the terminal's cursor. */
function oneLine(text: string): string {
  return text.replace(/\s*\n\s*/g, ' · ').replace(/\p{Cc}/gu, (character) => `\\x${character.charCodeAt(0).toString(16).padStart(2, '0')}`);
}

/** `process.stderr` of a worker thread passes through the main thread's event loop, which training code blocks for
 *  seconds; the file descriptor does not. */
function writeToStderr(line: string): void {
  try {
    writeSync(2, line);
  } catch {
    // A full non-blocking pipe: let the stream queue it.
    process.stderr.write(line);
  }
}
