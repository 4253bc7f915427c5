/** Messages for people, on stderr: one line each, `12:01:03.123 rank 3 warn  message`. A logger is an argument like the clock;
 *  two of them share nothing. Slow operations and times are the business of traces, not of logs. */
import { writeSync } from 'node:fs';
import type { Clock } from './clock.ts';

/** Levels from the least important on. */
const levels = ['debug', 'info', 'warn', 'error'] as const;

type Level = (typeof levels)[number];

export type LogLevel = Level | 'silent';

/** A receiver of messages. `fields` are appended as `name=value`. */
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
  /** The speaker, printed before the level: `rank 3`, `launcher`. */
  readonly speaker: string;
  /** Receives whole lines with their newline. Default: stderr, written before the call returns. */
  readonly write?: (line: string) => void;
}

/** A logger that prints nothing. For tests, and where no logger was given. */
export const silentLogger: Logger = { debug() {}, info() {}, warn() {}, error() {} };

/** A logger for one speaker. Levels below `level` cost one call. */
export function createLogger({ level, clock, speaker, write = writeToStderr }: LoggerOptions): Logger {
  if (level === 'silent') return silentLogger;
  const least = levels.indexOf(level);
  const logAt =
    (name: Level) =>
    (message: string, fields: LogFields = {}): void => {
      if (levels.indexOf(name) >= least) write(formatLine({ name, speaker, message, fields, timeMs: clock.wallNow() }));
    };
  return { debug: logAt('debug'), info: logAt('info'), warn: logAt('warn'), error: logAt('error') };
}

interface Line {
  readonly name: Level;
  readonly speaker: string;
  readonly message: string;
  readonly fields: LogFields;
  readonly timeMs: number;
}

function formatLine({ name, speaker, message, fields, timeMs }: Line): string {
  const time = new Date(timeMs).toISOString().slice(11, 23);
  const named = Object.entries(fields).filter(([, value]) => value !== undefined);
  return `${oneLine([time, speaker, name.padEnd(5), message, ...named.map(([key, value]) => `${key}=${value}`)].join(' '))}\n`;
}

/** Keeps text on one line: peers' text ends up in messages, and must neither start new lines nor move the terminal's cursor. */
function oneLine(text: string): string {
  return text.replace(/\s*\n\s*/g, ' · ').replace(/\p{Cc}/gu, (character) => `\\x${character.charCodeAt(0).toString(16).padStart(2, '0')}`);
}

/** Writes to the descriptor: `process.stderr` of a worker thread passes through the main thread's event loop, which training code
 *  blocks for seconds. */
function writeToStderr(line: string): void {
  try {
    writeSync(2, line);
  } catch {
    // The pipe is full and non-blocking, so the stream queues the line.
    process.stderr.write(line);
  }
}
