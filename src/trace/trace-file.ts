/** Reads traces event by event: files may be larger than a text can be, or than memory.
 *
 *    {"displayTimeUnit":"ms",
 *    "otherData":{…},                the process of the file: read when the file is opened
 *    "traceEvents":[
 *    {"ph":"X",…},                   an event per line, as formatChromeTrace writes them: read in blocks of lines
 *    …
 *    ]}
 *
 *  A file that is laid out otherwise is read whole, if it is not large. A file that is not a trace is refused when it is opened,
 *  or at the place where it stops being one. */
import { closeSync, fstatSync } from 'node:fs';
import { messageOf, ShoalError } from '../base/errors.ts';
import { openRegularFileSync, readPart } from '../base/files/read-file.ts';
import { anyText, integer, list, literal, number, object, optional, that } from '../base/schema.ts';
import type { ChromeEvent, ChromeTrace, TraceMetadata } from './chrome.ts';

export interface TraceFile {
  readonly name: string;
  readonly bytes: number;
  readonly metadata: TraceMetadata;
  /** The events in the order of the file, read anew each time. @throws ShoalError `usage` where it stops being a trace; `system`
   *  when it cannot be read. */
  events(): Iterable<ChromeEvent>;
}

const blockBytes = 256 * 1024;
/** Limits of one event's line, of the head that describes the process, and of a file that is laid out otherwise. */
const lineBytesMax = 4 * 1024 * 1024;
const headBytesMax = 16 * 1024 * 1024;
const otherBytesMax = 64 * 1024 * 1024;

const begin = Buffer.from('{"displayTimeUnit":"ms",\n"otherData":');
const beforeEvents = Buffer.from(',\n"traceEvents":[\n');
const end = Buffer.from('\n]}\n');
const newline = 10;
const comma = 44;

/** @param name for messages. @throws ShoalError `usage` when it is not a trace, `system` when it cannot be read. */
export function openTraceFile(path: string, name: string): TraceFile {
  return withFile(path, name, (file, bytes) => {
    const head = headOf(file, bytes);
    if (head === undefined) {
      if (bytes > otherBytesMax) throw new ShoalError('usage', `${name} has ${bytes} bytes and is not laid out as Shoal writes traces`);
      return traceInMemory(parseChromeTrace(readPart(file, 0, bytes).toString(), name), name);
    }
    const metadata = parsed(head.text, name);
    if (!isMetadata(metadata)) throw notTrace(name);
    if (!readPart(file, bytes - end.length, end.length).equals(end))
      throw new ShoalError('usage', `${name} is cut off; was the run still writing it?`);
    return { name, bytes, metadata, events: () => eventsOf(path, name, { from: head.bytes, to: bytes - end.length }) };
  });
}

/** A trace written by `formatChromeTrace`; `origin` names it in errors.
 *  @throws ShoalError `usage` when the text is anything else. */
export function parseChromeTrace(text: string, origin: string): ChromeTrace {
  const trace = parsed(text, origin);
  if (!isTrace(trace)) throw notTrace(origin);
  return trace;
}

/** A trace file of events that are in memory already, or were laid out otherwise. */
export function traceInMemory({ traceEvents, otherData }: ChromeTrace, name = 'trace'): TraceFile {
  return { name, bytes: traceEvents.length * 200, metadata: otherData, events: () => traceEvents };
}

/** The whole trace in memory, for callers that need all of it. */
export function wholeTrace({ metadata, events }: TraceFile): ChromeTrace {
  return { traceEvents: [...events()], displayTimeUnit: 'ms', otherData: metadata };
}

/** The text of `otherData`, and the offset at which the events begin; undefined: the file is laid out otherwise. */
function headOf(file: number, bytes: number): { readonly text: string; readonly bytes: number } | undefined {
  for (let size = blockBytes; ; size *= 4) {
    const start = readPart(file, 0, Math.min(bytes, size, headBytesMax));
    if (!start.subarray(0, begin.length).equals(begin)) return undefined;
    const at = start.indexOf(beforeEvents);
    if (at >= 0) return { text: start.toString('utf8', begin.length, at), bytes: at + beforeEvents.length };
    if (start.length < size) return undefined;
  }
}

function* eventsOf(path: string, name: string, range: { readonly from: number; readonly to: number }): Generator<ChromeEvent> {
  const file = openFile(path, name);
  try {
    let position = range.from;
    let kept: Buffer = Buffer.alloc(0);
    while (position < range.to) {
      const block = readPart(file, position, Math.min(blockBytes, range.to - position));
      if (block.length === 0) throw new ShoalError('usage', `${name} has become shorter while it was read`);
      position += block.length;
      const text = kept.length === 0 ? block : Buffer.concat([kept, block]);
      const cut = position >= range.to ? text.length : text.lastIndexOf(newline);
      if (cut < 0 && text.length > lineBytesMax) throw new ShoalError('usage', `${name} has a line of more than ${lineBytesMax} bytes`);
      if (cut > 0) yield* eventsIn(text.subarray(0, cut), name);
      kept = cut < 0 ? text : text.subarray(cut + 1);
    }
  } finally {
    closeSync(file);
  }
}

function eventsIn(lines: Buffer, name: string): ChromeEvent[] {
  const last = lines[lines.length - 1] === comma ? lines.length - 1 : lines.length;
  const events = parsed(`[${lines.toString('utf8', 0, last)}]`, name) as unknown[];
  if (!events.every(isEvent)) throw new ShoalError('usage', `${name} has something that is not an event`);
  return events;
}

function parsed(text: string, name: string): unknown {
  try {
    return JSON.parse(text);
  } catch (thrown) {
    throw new ShoalError('usage', `${name} is not JSON (${messageOf(thrown)}); was the run still writing it?`, { cause: thrown });
  }
}

function withFile<T>(path: string, name: string, use: (file: number, bytes: number) => T): T {
  const file = openFile(path, name);
  try {
    return use(file, fstatSync(file).size);
  } finally {
    closeSync(file);
  }
}

function openFile(path: string, name: string): number {
  try {
    return openRegularFileSync(path);
  } catch (thrown) {
    throw new ShoalError('system', `${name} cannot be read: ${messageOf(thrown)}`, { cause: thrown });
  }
}

function notTrace(name: string): ShoalError {
  return new ShoalError('usage', `${name} is not a trace written by Shoal (SHOAL_TRACE=<folder>)`);
}

/** Largest time: thirty thousand years in milliseconds, thirty in microseconds. Dates can be made of smaller ones, and their sums
 *  are exact. */
const numberMax = 1e15;
const finite = number({ min: -numberMax, max: numberMax });
const rate = optional(number({ above: 0 }));

const metadataShape = object({
  format: literal('shoal-trace'),
  version: literal(1),
  processes: list(
    object({
      rank: finite,
      host: anyText,
      pid: finite,
      offsetMs: finite,
      memory: optional(finite),
      rates: optional(object({ link: rate, copy: rate })),
      part: optional(literal('graph')),
      clockStartMs: finite,
      wallStart: that<string>('a date', (value) => typeof value === 'string' && !Number.isNaN(Date.parse(value))),
      dropped: finite,
      traffic: optional(list(list(integer({ min: 0, max: numberMax }), { min: 4, max: 4 }))),
    }),
  ),
});

function isTrace(value: unknown): value is ChromeTrace {
  const { traceEvents, otherData } = asRecord(value);
  return isMetadata(otherData) && Array.isArray(traceEvents) && traceEvents.every(isEvent);
}

function isMetadata(value: unknown): value is TraceMetadata {
  return metadataShape.problem(value) === undefined;
}

/** True for a valid event. Called for every event of files that may have millions. */
function isEvent(value: unknown): value is ChromeEvent {
  const { ph, name, pid, tid, ts, dur, args } = asRecord(value);
  return (
    typeof ph === 'string' &&
    typeof name === 'string' &&
    isNumber(pid) &&
    isNumber(tid) &&
    isNumber(ts) &&
    (dur === undefined || isNumber(dur)) &&
    (args === undefined || (typeof args === 'object' && args !== null))
  );
}

function isNumber(value: unknown): boolean {
  return typeof value === 'number' && Math.abs(value) <= numberMax;
}

function asRecord(value: unknown): Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {};
}
