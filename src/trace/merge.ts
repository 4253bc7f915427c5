/** One timeline from the traces of several ranks. Every file knows the offset of its process's clock to rank 0's, so
 *  alignment is a shift: no guessing from the events. */
import { readFileSync } from 'node:fs';
import { basename, dirname } from 'node:path';
import { messageOf, ShoalError } from '../base/errors.ts';
import { formatChromeTrace, type ChromeEvent, type ChromeTrace } from './chrome.ts';
import { writeFileWhole } from '../base/files/write-file.ts';

/** All events on rank 0's clock, zero at the earliest start. Metadata of every process is kept.
 *  @throws ShoalError `usage` when there is no trace or two claim the same rank. */
export function mergeTraces(traces: readonly ChromeTrace[]): ChromeTrace {
  const processes = traces.flatMap((trace) => trace.otherData.processes);
  if (processes.length === 0) throw new ShoalError('usage', 'there are no traces to merge');
  const startMs = new Map<number, number>();
  for (const { rank, clockStartMs, offsetMs } of processes) {
    if (startMs.has(rank))
      throw new ShoalError('usage', `two of the traces are of rank ${rank}; merge the traces of one run only`, { rank });
    startMs.set(rank, clockStartMs + offsetMs);
  }
  const zeroMs = Math.min(...startMs.values());
  const traceEvents: ChromeEvent[] = [];
  for (const trace of traces) {
    for (const event of trace.traceEvents) {
      const shift = ((startMs.get(event.pid) ?? zeroMs) - zeroMs) * 1e3;
      traceEvents.push(event.ph === 'M' ? event : { ...event, ts: Math.round((event.ts + shift) * 1e3) / 1e3 });
    }
  }
  // Metadata first, then time: viewers stream, and text tools show what happened when.
  traceEvents.sort((a, b) => Number(b.ph === 'M') - Number(a.ph === 'M') || (a.ph === 'M' ? 0 : a.ts - b.ts));
  const aligned = processes.map((one) => {
    const clockStartMs = zeroMs - one.offsetMs;
    const wallStart = new Date(Date.parse(one.wallStart) + clockStartMs - one.clockStartMs).toISOString();
    return { ...one, clockStartMs, wallStart };
  });
  return { traceEvents, displayTimeUnit: 'ms', otherData: { format: 'shoal-trace', version: 1, processes: aligned } };
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
    text = readFileSync(path, 'utf8');
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

function isTrace(value: unknown): value is ChromeTrace {
  const { traceEvents, otherData } = asRecord(value);
  const { format, version, processes } = asRecord(otherData);
  return (
    format === 'shoal-trace' &&
    version === 1 &&
    Array.isArray(processes) &&
    processes.every(isProcess) &&
    Array.isArray(traceEvents) &&
    traceEvents.every(isEvent)
  );
}

function isProcess(value: unknown): boolean {
  const { host, wallStart, traffic, memory, rates } = asRecord(value);
  return (
    areNumbers(value, ['rank', 'pid', 'clockStartMs', 'offsetMs', 'dropped']) &&
    typeof host === 'string' &&
    isDate(wallStart) &&
    (memory === undefined || areNumbers(value, ['memory'])) &&
    (rates === undefined || areRates(rates)) &&
    (traffic === undefined || (Array.isArray(traffic) && traffic.every(isTrafficRow)))
  );
}

function areRates(value: unknown): boolean {
  const { link, copy } = asRecord(value);
  const isRate = (each: unknown): boolean => each === undefined || (Number.isFinite(each) && (each as number) > 0);
  return typeof value === 'object' && value !== null && isRate(link) && isRate(copy);
}

function isTrafficRow(value: unknown): boolean {
  const isCount = (each: unknown): boolean => Number.isSafeInteger(each) && (each as number) >= 0 && (each as number) <= numberMax;
  return Array.isArray(value) && value.length === 4 && value.every(isCount);
}

function isEvent(value: unknown): boolean {
  const { ph, name, dur, args } = asRecord(value);
  const isWhole = typeof ph === 'string' && typeof name === 'string' && areNumbers(value, ['pid', 'tid', 'ts']);
  return (
    isWhole && (dur === undefined || areNumbers(value, ['dur'])) && (args === undefined || (typeof args === 'object' && args !== null))
  );
}

/** Thirty thousand years in milliseconds, thirty in microseconds: dates can be made of them, and sums of them are exact. */
const numberMax = 1e15;

function areNumbers(value: unknown, keys: readonly string[]): boolean {
  const record = asRecord(value);
  return keys.every((key) => Math.abs(Number.isFinite(record[key]) ? (record[key] as number) : Infinity) <= numberMax);
}

function isDate(value: unknown): boolean {
  return typeof value === 'string' && !Number.isNaN(Date.parse(value));
}

function asRecord(value: unknown): Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {};
}
