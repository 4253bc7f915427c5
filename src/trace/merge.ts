/** Merges the traces of several ranks into one timeline. Every file has the offset of its process's clock to rank 0's, so
 *  alignment is a shift: no guessing from the events. */
import { constants } from 'node:buffer';
import { basename, dirname } from 'node:path';
import { messageOf, ShoalError } from '../base/errors.ts';
import { anyText, integer, list, literal, number, object, optional, that } from '../base/schema.ts';
import { firstRowOfPart, formatChromeTrace, type ChromeEvent, type ChromeTrace, type TraceMetadata } from './chrome.ts';
import { readRegularFileSync } from '../base/files/read-file.ts';
import { writeFileWhole } from '../base/files/write-file.ts';

type Processes = TraceMetadata['processes'];

/** Shifts that turn the clocks of several processes into one. */
export interface Alignment {
  /** The processes of the merged trace: a rank's parts are one. */
  readonly processes: Processes;
  /** Microseconds to add to the times of a rank's events, by rank. */
  readonly shiftOf: ReadonlyMap<number, number>;
  /** The same for the events of a part that has a clock start of its own, by rank. */
  readonly shiftOfPart: ReadonlyMap<number, number>;
}

/** @throws ShoalError `usage` when two claim the same rank. */
export function alignProcesses(processes: Processes): Alignment {
  const groups = byRank(processes.filter(({ part }) => part === undefined));
  const parts = byRank(processes.filter(({ part }) => part !== undefined));
  for (const [rank, { host, pid }] of parts) {
    const group = groups.get(rank);
    if (group !== undefined && (group.host !== host || group.pid !== pid)) throw twice(rank);
  }
  // The offset is measured for processes in a group, also for their parts.
  const startOf = (one: Processes[number]): number => one.clockStartMs + (groups.get(one.rank) ?? one).offsetMs;
  const zeroMs = processes.reduce((least, one) => Math.min(least, startOf(one)), Infinity);
  const shifts = (of: typeof groups): Map<number, number> => new Map([...of].map(([rank, one]) => [rank, (startOf(one) - zeroMs) * 1e3]));
  const whole = [...groups.values(), ...[...parts.values()].filter(({ rank }) => !groups.has(rank))];
  const aligned = whole.map((one) => {
    const clockStartMs = zeroMs - one.offsetMs;
    const wallStart = new Date(Date.parse(one.wallStart) + clockStartMs - one.clockStartMs).toISOString();
    const dropped = groups.has(one.rank) ? one.dropped + (parts.get(one.rank)?.dropped ?? 0) : one.dropped;
    return { ...one, clockStartMs, wallStart, dropped };
  });
  return { processes: aligned, shiftOf: shifts(groups), shiftOfPart: shifts(parts) };
}

function byRank(processes: Processes): Map<number, Processes[number]> {
  const found = new Map<number, Processes[number]>();
  for (const one of processes) {
    if (found.has(one.rank)) throw twice(one.rank);
    found.set(one.rank, one);
  }
  return found;
}

function twice(rank: number): ShoalError {
  return new ShoalError('usage', `two of the traces are of rank ${rank}; merge the traces of one run only`, { rank });
}

/** The event on the common clock. */
export function aligned(event: ChromeEvent, { shiftOf, shiftOfPart }: Alignment): ChromeEvent {
  const ofPart = event.tid >= firstRowOfPart ? shiftOfPart.get(event.pid) : undefined;
  const shift = ofPart ?? shiftOf.get(event.pid) ?? 0;
  return event.ph === 'M' ? event : { ...event, ts: Math.round((event.ts + shift) * 1e3) / 1e3 };
}

/** All events on rank 0's clock, zero at the earliest start. Metadata of every process is kept.
 *  @throws ShoalError `usage` when there is no trace or two claim the same rank. */
export function mergeTraces(traces: readonly ChromeTrace[]): ChromeTrace {
  const alignment = alignProcesses(traces.flatMap((trace) => trace.otherData.processes));
  if (alignment.processes.length === 0) throw new ShoalError('usage', 'there are no traces to merge');
  const traceEvents = traces.flatMap((trace) => trace.traceEvents.map((event) => aligned(event, alignment)));
  // Metadata comes first, then events by time: viewers stream, and text tools show them in order.
  traceEvents.sort((a, b) => Number(b.ph === 'M') - Number(a.ph === 'M') || (a.ph === 'M' ? 0 : a.ts - b.ts));
  return { traceEvents, displayTimeUnit: 'ms', otherData: { format: 'shoal-trace', version: 1, processes: alignment.processes } };
}

/** Reads the ranks' files, merges them and writes `target`.
 *  @throws ShoalError `usage` for a file that is not a trace of Shoal, `system` when one cannot be read or written. */
export function mergeTraceFiles(sources: readonly string[], target: string): void {
  const merged = mergeTraces(sources.map(readTrace));
  writeFileWhole(dirname(target), basename(target), formatChromeTrace(merged));
}

function readTrace(path: string): ChromeTrace {
  let text: string;
  try {
    text = readRegularFileSync(path, { bytesMax: constants.MAX_STRING_LENGTH }).toString();
  } catch (thrown) {
    throw new ShoalError('system', `cannot read the trace ${path}: ${messageOf(thrown)}`, { cause: thrown });
  }
  return parseChromeTrace(text, path);
}

/** A trace written by `formatChromeTrace`; `origin` names it in errors.
 *  @throws ShoalError `usage` when the text is anything else. */
export function parseChromeTrace(text: string, origin: string): ChromeTrace {
  let parsed: unknown;
  try {
    parsed = JSON.parse(text);
  } catch (thrown) {
    throw new ShoalError('usage', `${origin} is not JSON (${messageOf(thrown)}); was the run still writing it?`, { cause: thrown });
  }
  if (!isTrace(parsed)) throw new ShoalError('usage', `${origin} is not a trace written by Shoal (SHOAL_TRACE=<folder>)`);
  return parsed;
}

/** Largest time: thirty thousand years in milliseconds, thirty in microseconds. Dates can be made of smaller ones, and their sums
 *  are exact. */
const numberMax = 1e15;
const finite = number({ min: -numberMax, max: numberMax });
const rate = optional(number({ above: 0 }));

const metadata = object({
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

export function isMetadata(value: unknown): value is TraceMetadata {
  return metadata.problem(value) === undefined;
}

/** True for a valid event. Called for every event of files that may have millions. */
export function isEvent(value: unknown): value is ChromeEvent {
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
