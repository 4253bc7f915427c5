/** Events of one thread in a bounded ring of preallocated arrays: recording allocates nothing, and when the ring is full the
 *  oldest event goes. A span is stored when it ends, as one event with its duration, so an overflow can never leave half of one.
 *  The meaning of names and the file that events go to are not known here (see chrome.ts).
 *
 *    slot   0      1      2     …    capacity−1
 *         ┌──────┬──────┬──────┬───┬──────┐
 *         │kind  │name  │lane  │ time │ value │ two arguments      one typed array each
 *         └──────┴──────┴──────┴───┴──────┘
 *                  ▲ written % capacity: the next slot, which holds the oldest event once the ring is full */
import { assert } from '../base/assert.ts';
import type { Clock } from '../base/clock.ts';
import { Traffic, type Movement, type TrafficRow } from './traffic.ts';

/** Handle of an interned name; 0 is the name of everything beyond `namesMax`. */
export type NameId = number;

/** Handle of a lane: a row of the timeline, such as `main`, `channel 1`. 0 is the thread itself. */
export type LaneId = number;

export interface NameOptions {
  /** Category of names, for filtering. Default `shoal`. */
  readonly category?: string;
  /** Meaning of the argument of events with this name, such as `bytes`. Default: it is not written. */
  readonly argument?: string;
  /** Meaning of the second argument. Default: it is not written. */
  readonly second?: string;
  /** Details that are the same for all events with this name. The same name with other details is another name. */
  readonly details?: Readonly<Record<string, string | number>>;
}

/** Records the events of one thread. Methods never throw and never block. */
export interface TraceRecorder {
  /** False: every method returns at once; callers may skip preparing arguments. */
  readonly enabled: boolean;
  /** Interns a name and returns its handle; call it before the hot path. At most `namesMax`; beyond, 0. */
  name(text: string, options?: NameOptions): NameId;
  /** The row of this name in the timeline, a new one at first. At most `lanesMax`; beyond, 0. */
  lane(text: string): LaneId;
  /** Records a span that ends now; the caller has kept its start (of this recorder's clock, milliseconds). Spans of one lane may
   *  overlap. Arguments that are NaN are not written. */
  complete(name: NameId, startMs: number, lane?: LaneId, argument?: number, second?: number): void;
  /** Records a value that is drawn as a curve. */
  counter(name: NameId, value: number): void;
  /** Adds the movements of an operation between ranks, as indices into `ranks`. Their sums stay, whatever falls out of the ring. */
  moved(ranks: readonly number[], movements: readonly Movement[]): void;
  /** The time on the clock that spans are measured with, for `complete`. */
  now(): number;
  /** The events in the ring, oldest first, as plain data. */
  snapshot(): TraceSnapshot;
}

export interface NameInfo {
  readonly text: string;
  readonly category: string;
  readonly argument: string | undefined;
  readonly second: string | undefined;
  readonly details: Readonly<Record<string, string | number>> | undefined;
}

/** Kinds of events. The order is that of `TraceSnapshot.kinds`. */
export const spanKind = 0;
export const counterKind = 1;

/** The events of one thread; plain data, for another thread. Entry i of each array belongs to event i. */
export interface TraceSnapshot {
  readonly names: readonly NameInfo[];
  readonly lanes: readonly string[];
  /** Start of the recording: on the recorder's clock and in wall time, milliseconds. */
  readonly startMs: number;
  readonly startWallMs: number;
  /** Events that fell out of the ring. */
  readonly dropped: number;
  readonly kinds: Uint8Array;
  readonly nameIds: Uint32Array;
  readonly laneIds: Uint16Array;
  /** Start of spans, moment of counters; milliseconds on the recorder's clock. */
  readonly timesMs: Float64Array;
  /** Duration of spans in milliseconds, value of counters. */
  readonly values: Float64Array;
  readonly arguments: Float64Array;
  readonly seconds: Float64Array;
  readonly traffic: readonly TrafficRow[];
}

export interface RecorderOptions {
  readonly clock: Clock;
  /** Name of the thread: `main`, `comm`. */
  readonly thread: string;
  /** Size of the ring. Default 65536. */
  readonly eventsMax?: number;
  /** Most names. Default 4096. */
  readonly namesMax?: number;
  /** Most lanes. Default 64. */
  readonly lanesMax?: number;
}

const noEvents: TraceSnapshot = {
  names: [],
  lanes: [],
  startMs: 0,
  startWallMs: 0,
  dropped: 0,
  kinds: new Uint8Array(0),
  nameIds: new Uint32Array(0),
  laneIds: new Uint16Array(0),
  timesMs: new Float64Array(0),
  values: new Float64Array(0),
  arguments: new Float64Array(0),
  seconds: new Float64Array(0),
  traffic: [],
};

/** Records nothing: the recorder when tracing is off. */
export const nullRecorder: TraceRecorder = {
  enabled: false,
  name: () => 0,
  lane: () => 0,
  complete() {},
  counter() {},
  moved() {},
  now: () => 0,
  snapshot: () => noEvents,
};

/** A recorder that records. */
export function createRecorder(options: RecorderOptions): TraceRecorder {
  return new RingRecorder(options);
}

class RingRecorder implements TraceRecorder {
  readonly enabled = true;
  readonly #clock: Clock;
  readonly #startMs: number;
  readonly #startWallMs: number;

  readonly #namesMax: number;
  readonly #nameIds = new Map<string, NameId>();
  readonly #names: NameInfo[] = [{ text: '(other)', category: 'shoal', argument: undefined, second: undefined, details: undefined }];
  readonly #lanesMax: number;
  readonly #lanes: string[];

  readonly #capacity: number;
  #written = 0;
  readonly #kind: Uint8Array;
  readonly #name: Uint32Array;
  readonly #lane: Uint16Array;
  readonly #time: Float64Array;
  readonly #value: Float64Array;
  readonly #argument: Float64Array;
  readonly #second: Float64Array;

  readonly #traffic = new Traffic();

  constructor(options: RecorderOptions) {
    const { clock, thread, eventsMax = 65_536, namesMax = 4096, lanesMax = 64 } = options;
    assert(eventsMax >= 1 && namesMax >= 1 && lanesMax >= 1 && lanesMax <= 65_536, () => 'recorder bounds are positive');
    this.#clock = clock;
    this.#startMs = clock.now();
    this.#startWallMs = clock.wallNow();
    this.#namesMax = namesMax;
    this.#lanesMax = lanesMax;
    this.#lanes = [thread];
    this.#capacity = eventsMax;
    this.#kind = new Uint8Array(eventsMax);
    this.#name = new Uint32Array(eventsMax);
    this.#lane = new Uint16Array(eventsMax);
    this.#time = new Float64Array(eventsMax);
    this.#value = new Float64Array(eventsMax);
    this.#argument = new Float64Array(eventsMax);
    this.#second = new Float64Array(eventsMax);
  }

  name(text: string, { category = 'shoal', argument, second, details }: NameOptions = {}): NameId {
    const key = `${category}\n${argument ?? ''}\n${second ?? ''}\n${details ? JSON.stringify(details) : ''}\n${text}`;
    const known = this.#nameIds.get(key);
    if (known !== undefined) return known;
    if (this.#names.length >= this.#namesMax) return 0;
    const id = this.#names.push({ text, category, argument, second, details }) - 1;
    this.#nameIds.set(key, id);
    return id;
  }

  lane(text: string): LaneId {
    const known = this.#lanes.indexOf(text, 1);
    if (known > 0) return known;
    return this.#lanes.length < this.#lanesMax ? this.#lanes.push(text) - 1 : 0;
  }

  complete(name: NameId, startMs: number, lane: LaneId = 0, argument = 0, second = Number.NaN): void {
    this.#push(spanKind, name, lane, startMs, this.#clock.now() - startMs, argument, second);
  }

  counter(name: NameId, value: number): void {
    this.#push(counterKind, name, 0, this.#clock.now(), value, 0, Number.NaN);
  }

  moved(ranks: readonly number[], movements: readonly Movement[]): void {
    this.#traffic.add(ranks, movements);
  }

  now(): number {
    return this.#clock.now();
  }

  snapshot(): TraceSnapshot {
    const kept = Math.min(this.#written, this.#capacity);
    // From the oldest slot to the end of the ring, then from its begin.
    const oldest = (this.#written - kept) % this.#capacity;
    const inOrder = <A extends Uint8Array | Uint16Array | Uint32Array | Float64Array>(ring: A): A => {
      const events = ring.slice(0, kept) as A;
      events.set(ring.subarray(oldest, kept));
      events.set(ring.subarray(0, oldest), kept - oldest);
      return events;
    };
    return {
      names: [...this.#names],
      lanes: [...this.#lanes],
      startMs: this.#startMs,
      startWallMs: this.#startWallMs,
      dropped: this.#written - kept,
      kinds: inOrder(this.#kind),
      nameIds: inOrder(this.#name),
      laneIds: inOrder(this.#lane),
      timesMs: inOrder(this.#time),
      values: inOrder(this.#value),
      arguments: inOrder(this.#argument),
      seconds: inOrder(this.#second),
      traffic: this.#traffic.rows(),
    };
  }

  #push(kind: number, name: NameId, lane: LaneId, timeMs: number, value: number, argument: number, second: number): void {
    const slot = this.#written++ % this.#capacity;
    this.#kind[slot] = kind;
    this.#name[slot] = name;
    this.#lane[slot] = lane;
    this.#time[slot] = timeMs;
    this.#value[slot] = value;
    this.#argument[slot] = argument;
    this.#second[slot] = second;
  }
}
