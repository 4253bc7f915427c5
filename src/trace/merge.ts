/** Merges the traces of several ranks into one timeline. Every file has the offset of its process's clock to rank 0's, so
 *  alignment is a shift: no guessing from the events. */
import { basename, dirname } from 'node:path';
import { ShoalError } from '../base/errors.ts';
import { firstRowOfPart, formatChromeTrace, type ChromeEvent, type ChromeTrace, type TraceMetadata } from './chrome.ts';
import { writeFileWhole } from '../base/files/write-file.ts';
import { openTraceFile, wholeTrace } from './trace-file.ts';

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
  const merged = mergeTraces(sources.map((path) => wholeTrace(openTraceFile(path, path))));
  writeFileWhole(dirname(target), basename(target), formatChromeTrace(merged));
}
