/** Rows of spans from events as they are read, within a budget: where there are too many, the shortest of each rank go first, and its rows
 *  say how busy they were. What is not read any more takes no more memory than what is kept. */
import type { ChromeEvent } from '../../trace/chrome.ts';
import type { ReportCounter, ReportData, ReportRow } from './data/report-data.ts';
import { getOrMake } from '../../base/collections/lists.ts';
import { Density } from './density.ts';
import { isWait } from './span-argument.ts';

type Timeline = Pick<ReportData, 'names' | 'details' | 'rows' | 'durationUs' | 'stretchUs' | 'counters'> & {
  /** Spans and values that are left out. */
  readonly leftOut: number;
};

export interface TimelineLimits {
  /** Spans of all rows together. */
  readonly spansMax: number;
  /** Values of each counter. */
  readonly valuesMax: number;
}

/** Details in the order in which a person asks for them; others come after. */
const shown = ['sequence', 'bytes', 'count', 'dtype', 'op', 'root', 'algorithm', 'path', 'waitedFor', 'peers', 'site', 'name', 'group'];
/** Numbers that differ from call to call are kept apart from the text around them, of which there are few. */
const varying = new Set(['sequence', 'waitedFor', 'peer', 'step', 'requests', 'tensors', 'readyMs', 'part', 'request', 'immediate']);
export const places = ['\uE000', '\uE001'] as const;

/** Texts of a page, and values of all its counters. */
const detailsMax = 50_000;
const valuesTotal = 150_000;
/** Before they are thinned for the first time. */
const valuesHeld = 16_384;

interface Row {
  readonly rank: number;
  name: string;
  readonly order: number;
  readonly density: Density;
  spans: Span[];
  count: number;
}

interface Span {
  readonly start: number;
  readonly duration: number;
  readonly label: number;
  readonly detail: number;
  readonly first: number | null;
  readonly second: number | null;
}

type Counter = Omit<ReportCounter, 'most'> & { most: number; count: number };

export class TimelineBuilder {
  readonly #limits: TimelineLimits;
  readonly #rows = new Map<string, Row>();
  readonly #counters = new Map<string, Counter>();
  readonly #names = new Interner();
  readonly #details = new Interner();
  #held = 0;
  #firstUs = Infinity;
  #lastUs = 0;

  constructor(limits: TimelineLimits) {
    this.#limits = limits;
  }

  add(event: ChromeEvent): void {
    if (event.ph === 'M') {
      if (event.name === 'thread_name') this.#rowOf(event).name = String(event.args?.['name'] ?? '');
      return;
    }
    this.#firstUs = Math.min(this.#firstUs, event.ts);
    this.#lastUs = Math.max(this.#lastUs, event.ts + (event.dur ?? 0));
    if (event.ph === 'X') this.#addSpan(event);
    else if (event.ph === 'C') this.#addValue(event);
  }

  finish(): Timeline {
    const rows = [...this.#rows.values()].filter(({ count }) => count > 0).sort((a, b) => a.rank - b.rank || a.order - b.order);
    this.#shorten(this.#limits.spansMax);
    const counters = [...this.#counters.values()];
    const valuesMax = Math.max(2, Math.min(this.#limits.valuesMax, Math.floor(valuesTotal / Math.max(1, counters.length))));
    const thinned = counters.map((counter) => thin(sorted(counter), valuesMax));
    const leftOut = rows.reduce((sum, { count, spans }) => sum + count - spans.length, 0);
    const thinnedOut = counters.reduce((sum, { count }, at) => sum + count - thinned[at].values.length, 0);
    const stretchUs = rows.reduce((most, { density }) => Math.max(most, density.stretchUs), 1);
    // A rank starts long before its first event. Densities are cut between two stretches.
    const cutUs = rows.some(({ count, spans }) => spans.length < count) ? stretchUs : 0.1;
    const fromUs = this.#firstUs === Infinity ? 0 : Math.max(0, Math.floor(this.#firstUs / cutUs) * cutUs);
    return {
      names: this.#names.texts,
      details: this.#details.texts,
      rows: rows.map((row) => this.#finishRow(row, fromUs, stretchUs)),
      durationUs: Math.max(0, this.#lastUs - fromUs),
      stretchUs,
      counters: thinned.map((counter) => ({ ...counter, times: counter.times.map((time) => tenths(time - fromUs)) })),
      leftOut: leftOut + thinnedOut,
    };
  }

  #finishRow({ rank, name, spans, count, density }: Row, fromUs: number, stretchUs: number): ReportRow {
    spans.sort((a, b) => a.start - b.start || b.duration - a.duration);
    const some = (of: 'first' | 'second'): (number | null)[] =>
      spans.some((span) => span[of] !== null) ? spans.map((span) => span[of]) : [];
    return {
      rank,
      name,
      starts: spans.map(({ start }) => tenths(start - fromUs)),
      durations: spans.map(({ duration }) => duration),
      labels: spans.map(({ label }) => label),
      details: spans.map(({ detail }) => detail),
      firsts: some('first'),
      seconds: some('second'),
      ...(spans.length < count ? { density: density.encoded(stretchUs, fromUs, this.#lastUs) } : {}),
    };
  }

  #rowOf({ pid, tid }: ChromeEvent): Row {
    return getOrMake(this.#rows, `${pid} ${tid}`, () => ({
      rank: pid,
      name: `thread ${tid}`,
      order: tid,
      density: new Density(),
      spans: [],
      count: 0,
    }));
  }

  #addSpan(event: ChromeEvent): void {
    const row = this.#rowOf(event);
    const duration = Math.max(0, event.dur ?? 0);
    row.count++;
    row.density.add(event.ts, duration, isWait(event));
    const [text, first, second] = detailOf(event);
    const detail = text === '' ? -1 : this.#details.idOf(text, detailsMax);
    row.spans.push({
      start: tenths(event.ts),
      duration: tenths(duration),
      label: this.#names.idOf(event.name, detailsMax),
      detail,
      first,
      second,
    });
    if (++this.#held > 4 * this.#limits.spansMax) this.#shorten(2 * this.#limits.spansMax);
  }

  /** Keeps the longest spans of each row, in proportion to its number of spans. */
  #shorten(spansMax: number): void {
    const rows = [...this.#rows.values()];
    const total = rows.reduce((sum, { count }) => sum + count, 0);
    if (rows.every(({ spans, count }) => spans.length === count) && total <= spansMax) return;
    this.#held = 0;
    for (const row of rows) {
      const room = Math.max(1, Math.floor((row.count / total) * spansMax));
      if (row.spans.length > room) row.spans = row.spans.sort((a, b) => b.duration - a.duration).slice(0, room);
      this.#held += row.spans.length;
    }
  }

  #addValue({ pid, tid, name, ts, args }: ChromeEvent): void {
    for (const [key, value] of Object.entries(args ?? {})) {
      if (typeof value !== 'number') continue;
      const id = `${pid} ${tid} ${name} ${key}`;
      const counter = this.#counters.get(id) ?? { rank: pid, ...namesOf(name, key), times: [], values: [], most: -Infinity, count: 0 };
      this.#counters.set(id, counter);
      counter.times.push(tenths(ts));
      counter.values.push(value);
      counter.most = Math.max(counter.most, value);
      counter.count++;
      if (counter.values.length < Math.max(valuesHeld, 4 * this.#limits.valuesMax)) continue;
      const { times, values } = thin(counter, counter.values.length / 2);
      this.#counters.set(id, { ...counter, times, values });
    }
  }
}

/** The text of a span's arguments, with places for up to two numbers that vary. */
function detailOf({ args }: ChromeEvent): [text: string, first: number | null, second: number | null] {
  if (args === undefined) return ['', null, null];
  const keys = Object.keys(args);
  const numbers: number[] = [];
  const textOf = (key: string): string => {
    const value: string | number | object = args[key];
    if (typeof value === 'number' && varying.has(key) && numbers.length < places.length) return `${key} ${places[numbers.push(value) - 1]}`;
    // A file that is not ours may have objects there, whose own texts may be anything.
    return `${key} ${typeof value === 'object' ? JSON.stringify(value) : value}`;
  };
  const known = shown.filter((key) => args[key] !== undefined);
  const others = keys.length === known.length ? [] : keys.filter((key) => !shown.includes(key));
  const text = [...known, ...others].map(textOf).join(' · ');
  return [text, numbers[0] ?? null, numbers[1] ?? null];
}

function namesOf(name: string, key: string): Pick<ReportCounter, 'name' | 'unit'> {
  if (key === 'bytes') return { name, unit: 'bytes' };
  return { name: key === 'value' ? name : `${name} ${key}` };
}

function sorted(counter: Counter): Counter {
  const { times, values } = counter;
  if (times.every((time, at) => at === 0 || times[at - 1] <= time)) return counter;
  const order = [...times.keys()].sort((a, b) => times[a] - times[b]);
  return { ...counter, times: order.map((at) => times[at]), values: order.map((at) => values[at]) };
}

/** Keeps the largest of every k values, so that peaks stay. */
function thin({ rank, name, unit, most, times, values }: Counter, valuesMax: number): ReportCounter {
  const every = Math.ceil(values.length / valuesMax);
  const kept = Array.from({ length: Math.ceil(values.length / every) }, (_, k) => {
    let at = k * every;
    for (let next = at + 1; next < Math.min((k + 1) * every, values.length); next++) if (values[next] > values[at]) at = next;
    return at;
  });
  const texts = unit === undefined ? { name } : { name, unit };
  return { rank, ...texts, most, times: kept.map((at) => times[at]), values: kept.map((at) => values[at]) };
}

function tenths(us: number): number {
  return Math.round(us * 10) / 10;
}

/** Texts by number. */
class Interner {
  readonly texts: string[] = [];
  readonly #ids = new Map<string, number>();

  /** Beyond so many, they are all the same. */
  idOf(text: string, most: number): number {
    const found = this.#ids.get(text);
    if (found !== undefined) return found;
    if (this.texts.length >= most) return this.idOf('(one of too many to keep)', Infinity);
    const id = this.texts.push(text) - 1;
    this.#ids.set(text, id);
    return id;
  }
}
