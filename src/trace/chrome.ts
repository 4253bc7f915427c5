/** Traces in the JSON format of Chrome's trace viewer, which Perfetto opens: process = rank, thread = lane. One event per
 *  line, so that a file can be read with a text tool. Times are microseconds since the file's `clockStartMs`; merge.ts
 *  aligns the files of several ranks. Format: "Trace Event Format", Google, phases X, C and M. */
import { counterKind, spanKind, type TraceSnapshot } from './recorder.ts';
import { mergedTraffic, type TrafficRow } from './traffic.ts';
import { writeFileWhole } from '../base/files/write-file.ts';

/** The process that a trace is of. */
export interface TraceProcess {
  readonly rank: number;
  readonly host: string;
  readonly pid: number;
  /** Milliseconds to add to this process's clock to get rank 0's. Measured by the group when it starts. */
  readonly offsetMs: number;
  /** Number of the memory: ranks with the same number share memory. Absent: the process is in no group. */
  readonly memory?: number;
  readonly rates?: TraceRates;
  /** The part of a process that the file is about, when another file may be about its group. Absent: the group. */
  readonly part?: 'graph';
}

/** Names of the files that ranks leave in a folder. */
export const rankTraceName = /^trace-rank-\d+(-graph)?\.json$/;

/** First row number of parts: their rows come after those of the group, whose number is not known beforehand. */
export const firstRowOfPart = 1_000_000;

/** Measured rates of a world, seconds per byte, with which bandwidths are compared. */
export interface TraceRates {
  /** Rate out of one host, and into it. */
  readonly link?: number;
  /** Origin of the rate of the link: measured as the world started, or by `shoal tune`. */
  readonly linkFrom?: 'start' | 'tuning';
  /** Rate of copies by this rank. */
  readonly copy?: number;
}

/** Shoal's own description of a file, under `otherData`. */
export interface TraceMetadata {
  readonly format: 'shoal-trace';
  readonly version: 1;
  readonly processes: readonly (TraceProcess & {
    /** Time zero of the file's timestamps for this process, on its clock; milliseconds. */
    readonly clockStartMs: number;
    /** The same moment in this host's wall time. */
    readonly wallStart: string;
    /** Events that fell out of the rings. */
    readonly dropped: number;
    /** Bytes that this rank has moved between itself and others; absent: none. */
    readonly traffic?: readonly TrafficRow[];
  })[];
}

/** One event; `ts` and `dur` in microseconds. */
export interface ChromeEvent {
  readonly ph: 'X' | 'C' | 'M';
  readonly name: string;
  readonly pid: number;
  readonly tid: number;
  readonly ts: number;
  readonly dur?: number;
  readonly cat?: string;
  readonly args?: Readonly<Record<string, string | number>>;
}

export interface ChromeTrace {
  readonly traceEvents: readonly ChromeEvent[];
  readonly displayTimeUnit: 'ms';
  readonly otherData: TraceMetadata;
}

/** The trace of one process from the snapshots of its threads. */
export function chromeTrace(process: TraceProcess, snapshots: readonly TraceSnapshot[]): ChromeTrace {
  const first = snapshots.reduce((a, b) => (a.startMs <= b.startMs ? a : b), snapshots[0] ?? { startMs: 0, startWallMs: 0 });
  const pid = process.rank;
  const traceEvents: ChromeEvent[] = [
    { ph: 'M', name: 'process_name', pid, tid: 0, ts: 0, args: { name: `rank ${process.rank} (${process.host}, pid ${process.pid})` } },
    { ph: 'M', name: 'process_sort_index', pid, tid: 0, ts: 0, args: { sort_index: process.rank } },
  ];
  let tid = process.part === undefined ? 0 : firstRowOfPart;
  for (const snapshot of snapshots) {
    tid += appendThread(traceEvents, snapshot, { pid, tid, zeroMs: first.startMs });
  }
  const dropped = snapshots.reduce((sum, snapshot) => sum + snapshot.dropped, 0);
  const wallStart = new Date(first.startWallMs).toISOString();
  const traffic = mergedTraffic(snapshots.map((snapshot) => snapshot.traffic));
  return {
    traceEvents,
    displayTimeUnit: 'ms',
    otherData: {
      format: 'shoal-trace',
      version: 1,
      processes: [{ ...process, clockStartMs: first.startMs, wallStart, dropped, ...(traffic.length === 0 ? {} : { traffic }) }],
    },
  };
}

/** The trace as text, in pieces that together are one JSON document. */
export function* formatChromeTrace(trace: ChromeTrace): Generator<string> {
  yield `{"displayTimeUnit":${JSON.stringify(trace.displayTimeUnit)},\n"otherData":${JSON.stringify(trace.otherData)},\n"traceEvents":[`;
  for (const [index, event] of trace.traceEvents.entries()) yield `${index === 0 ? '\n' : ',\n'}${JSON.stringify(event)}`;
  yield '\n]}\n';
}

/** Writes `<folder>/trace-rank-<rank>.json`, for a part `trace-rank-<rank>-<part>.json`, whole or not at all, and returns its path.
 *  @throws ShoalError `system` when the folder cannot be written. */
export function writeChromeTrace(folder: string, process: TraceProcess, snapshots: readonly TraceSnapshot[]): string {
  const part = process.part === undefined ? '' : `-${process.part}`;
  return writeFileWhole(folder, `trace-rank-${process.rank}${part}.json`, formatChromeTrace(chromeTrace(process, snapshots)));
}

/** Appends one thread's events and returns how many rows (tids) it took. */
function appendThread(events: ChromeEvent[], snapshot: TraceSnapshot, place: { pid: number; tid: number; zeroMs: number }): number {
  const { pid, zeroMs } = place;
  const micros = (timeMs: number): number => Math.round((timeMs - zeroMs) * 1e6) / 1e3;
  const rows = assignRows(snapshot);
  for (const [row, text] of rows.names.entries()) {
    const tid = place.tid + row;
    events.push({ ph: 'M', name: 'thread_name', pid, tid, ts: 0, args: { name: text } });
    events.push({ ph: 'M', name: 'thread_sort_index', pid, tid, ts: 0, args: { sort_index: tid } });
  }
  for (const index of rows.order) {
    const { text: name, category: cat, argument, second, details } = snapshot.names[snapshot.nameIds[index]];
    const tid = place.tid + rows.ofEvent[index];
    const ts = micros(snapshot.timesMs[index]);
    if (snapshot.kinds[index] === counterKind) {
      events.push({ ph: 'C', name, pid, tid, ts, cat, args: { [argument ?? 'value']: finite(snapshot.values[index]) } });
      continue;
    }
    const values = { ...valueOf(argument, snapshot.arguments[index]), ...valueOf(second, snapshot.seconds[index]), ...details };
    const args = Object.keys(values).length === 0 ? {} : { args: values };
    // The duration follows from the rounded end, so that a span that ends with its parent still does after rounding.
    const endTs = micros(snapshot.timesMs[index] + Math.max(0, snapshot.values[index]));
    const dur = Math.round((endTs - ts) * 1e3) / 1e3;
    events.push({ ph: 'X', name, pid, tid, ts, dur, cat, ...args });
  }
  return rows.names.length;
}

/** Assigns spans to rows. Viewers draw a row as a stack: spans of one row must nest. Operations of one lane may overlap, though,
 *  so a lane gets as many rows as it needs, each span going to the first row whose open spans contain it.
 *
 *    lane      ├─ a ──────┤          row 0   ├─ a ──────┤   ├─ c ─┤
 *                   ├─ b ──────┤     row 1        ├─ b ──────┤
 *                          ├ c ─┤ */
function assignRows(snapshot: TraceSnapshot): { names: string[]; ofEvent: Uint32Array; order: Uint32Array } {
  const { kinds, laneIds, timesMs, values } = snapshot;
  const duration = (index: number): number => (kinds[index] === spanKind ? Math.max(0, values[index]) : 0);
  const order = Uint32Array.from(kinds.keys()).sort((a, b) => timesMs[a] - timesMs[b] || duration(b) - duration(a) || a - b);
  const names = [...snapshot.lanes];
  const ofEvent = new Uint32Array(kinds.length);
  // The rows of each lane; for each row the ends of the open spans, outermost first.
  const lanes = snapshot.lanes.map((_, lane) => [{ row: lane, ends: [] as number[] }]);
  for (const index of order) {
    const lane = laneIds[index];
    if (kinds[index] !== spanKind) {
      ofEvent[index] = lane;
      continue;
    }
    const startMs = timesMs[index];
    const endMs = startMs + duration(index);
    let place = lanes[lane].find(({ ends }) => {
      while (ends.length > 0 && ends[ends.length - 1] <= startMs) ends.pop();
      return ends.length === 0 || ends[ends.length - 1] >= endMs;
    });
    if (place === undefined) {
      const row = names.push(`${snapshot.lanes[lane]} +${lanes[lane].length}`) - 1;
      place = { row, ends: [] };
      lanes[lane].push(place);
    }
    place.ends.push(endMs);
    ofEvent[index] = place.row;
  }
  return { names, ofEvent, order };
}

function valueOf(name: string | undefined, value: number): Record<string, number | string> {
  return name === undefined || Number.isNaN(value) ? {} : { [name]: finite(value) };
}

/** A value that JSON can hold: it has no infinities, and the document must stay valid whatever a counter holds. */
function finite(value: number): number | string {
  return Number.isFinite(value) ? value : String(value);
}
