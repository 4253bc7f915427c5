/** Rows of spans from a merged trace, within a budget: where there are too many, the shortest of each row go first, so that an overview
 *  keeps what can be seen in it. */
import type { ChromeEvent, ChromeTrace } from '../trace/chrome.ts';
import type { ReportCounter, ReportRow } from './data/report-data.ts';

export interface Timeline {
  readonly names: readonly string[];
  readonly details: readonly string[];
  readonly rows: readonly ReportRow[];
  readonly counters: readonly ReportCounter[];
  /** Spans and values that are left out. */
  readonly leftOut: number;
}

export interface TimelineLimits {
  /** Of all rows. */
  readonly spansMax: number;
  /** Of each counter. */
  readonly valuesMax: number;
}

/** In the order in which a person asks; what is not named comes after. */
const shown = ['sequence', 'bytes', 'count', 'dtype', 'op', 'root', 'algorithm', 'path', 'waitedFor', 'peers', 'site', 'name', 'group'];

type Counter = Omit<ReportCounter, 'most'>;

export function timelineOf({ traceEvents }: ChromeTrace, { spansMax, valuesMax }: TimelineLimits): Timeline {
  const threads = new Map<string, { rank: number; name: string; order: number; spans: ChromeEvent[] }>();
  const counters = new Map<string, Counter>();
  const threadOf = ({ pid, tid }: ChromeEvent): { rank: number; name: string; order: number; spans: ChromeEvent[] } => {
    const key = `${pid} ${tid}`;
    const found = threads.get(key) ?? { rank: pid, name: `thread ${tid}`, order: tid, spans: [] };
    threads.set(key, found);
    return found;
  };
  for (const event of traceEvents) {
    if (event.ph === 'M' && event.name === 'thread_name') threadOf(event).name = String(event.args?.['name'] ?? '');
    else if (event.ph === 'X' || event.ph === 'i') threadOf(event).spans.push(event);
    else if (event.ph === 'C') addValue(counters, event);
  }
  const rows = [...threads.values()].filter(({ spans }) => spans.length > 0).sort((a, b) => a.rank - b.rank || a.order - b.order);
  const total = rows.reduce((sum, { spans }) => sum + spans.length, 0);
  const names = new Interner();
  const details = new Interner();
  let leftOut = 0;
  const kept = rows.map(({ rank, name, spans }) => {
    const room = total <= spansMax ? spans.length : Math.max(1, Math.floor((spans.length / total) * spansMax));
    leftOut += spans.length - room;
    return rowOf({ rank, name, spans: longest(spans, room), names, details });
  });
  const thinned = [...counters.values()].map((counter) => thin(counter, valuesMax));
  leftOut += [...counters.values()].reduce((sum, { values }, at) => sum + values.length - thinned[at].values.length, 0);
  return { names: names.texts, details: details.texts, rows: kept, counters: thinned, leftOut };
}

function rowOf(row: { rank: number; name: string; spans: readonly ChromeEvent[]; names: Interner; details: Interner }): ReportRow {
  const spans = row.spans.toSorted((a, b) => a.ts - b.ts || (b.dur ?? 0) - (a.dur ?? 0));
  return {
    rank: row.rank,
    name: row.name,
    starts: spans.map(({ ts }) => tenths(ts)),
    durations: spans.map(({ dur }) => tenths(Math.max(0, dur ?? 0))),
    labels: spans.map(({ name }) => row.names.idOf(name)),
    details: spans.map((span) => {
      const text = detailOf(span);
      return text === '' ? -1 : row.details.idOf(text);
    }),
  };
}

function longest(spans: readonly ChromeEvent[], room: number): readonly ChromeEvent[] {
  if (room >= spans.length) return spans;
  return spans.toSorted((a, b) => (b.dur ?? 0) - (a.dur ?? 0)).slice(0, room);
}

function detailOf({ args }: ChromeEvent): string {
  if (args === undefined) return '';
  const known = shown.filter((key) => args[key] !== undefined);
  const others = Object.keys(args).filter((key) => !shown.includes(key));
  // A file that is not ours may have objects there, whose own texts may be anything.
  const textOf = (value: string | number | object): string => (typeof value === 'object' ? JSON.stringify(value) : `${value}`);
  return [...known, ...others].map((key) => `${key} ${textOf(args[key])}`).join(' · ');
}

function addValue(counters: Map<string, Counter>, { pid, tid, name, ts, args }: ChromeEvent): void {
  for (const [key, value] of Object.entries(args ?? {})) {
    if (typeof value !== 'number') continue;
    const id = `${pid} ${tid} ${name} ${key}`;
    const counter = counters.get(id) ?? { rank: pid, ...namesOf(name, key), times: [], values: [] };
    counters.set(id, counter);
    counter.times.push(tenths(ts));
    counter.values.push(value);
  }
}

function namesOf(name: string, key: string): Pick<ReportCounter, 'name' | 'unit'> {
  if (key === 'bytes') return { name, unit: 'bytes' };
  return { name: key === 'value' ? name : `${name} ${key}` };
}

/** Of every k values the largest, so that peaks stay. */
function thin({ times, values, ...counter }: Counter, valuesMax: number): ReportCounter {
  const every = Math.ceil(values.length / valuesMax);
  const kept = Array.from({ length: Math.ceil(values.length / every) }, (_, k) => {
    let at = k * every;
    for (let next = at + 1; next < Math.min((k + 1) * every, values.length); next++) if (values[next] > values[at]) at = next;
    return at;
  });
  const most = values.reduce((a, b) => Math.max(a, b), -Infinity);
  return { ...counter, most, times: kept.map((at) => times[at]), values: kept.map((at) => values[at]) };
}

function tenths(us: number): number {
  return Math.round(us * 10) / 10;
}

/** Texts by number. */
class Interner {
  readonly texts: string[] = [];
  readonly #ids = new Map<string, number>();

  idOf(text: string): number {
    const found = this.#ids.get(text);
    if (found !== undefined) return found;
    const id = this.texts.push(text) - 1;
    this.#ids.set(text, id);
    return id;
  }
}
