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
  /** Adds a row to the timeline. At most `lanesMax`; beyond, 0. */
  lane(text: string): LaneId;
  /** Opens a span on the lane; spans of a lane nest. */
  begin(name: NameId, lane?: LaneId, argument?: number): void;
  /** Closes the lane's innermost span. Without one it does nothing. */
  end(lane?: LaneId): void;
  /** Records a span that ends now; the caller has kept its start (of this recorder's clock, milliseconds). Spans of one lane may
   *  overlap. Arguments that are NaN are not written. */
  complete(name: NameId, startMs: number, lane?: LaneId, argument?: number, second?: number): void;
  instant(name: NameId, lane?: LaneId, argument?: number): void;
  /** Records a value that is drawn as a curve. */
  counter(name: NameId, value: number): void;
  /** Adds the movements of an operation between ranks, as indices into `ranks`. Their sums stay, whatever falls out of the ring. */
  moved(ranks: readonly number[], movements: readonly Movement[]): void;
  /** The time on the clock that spans are measured with, for `complete`. */
  now(): number;
  /** The events in the ring, oldest first, as plain data. Open spans appear as ending now. */
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
export const instantKind = 1;
export const counterKind = 2;

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
  /** Start of spans, moment of other events; milliseconds on the recorder's clock. */
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
  /** Deepest nesting of spans on a lane; deeper ones are not recorded. Default 32. */
  readonly depthMax?: number;
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
  begin() {},
  end() {},
  complete() {},
  instant() {},
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

  // Open spans: lane l, depth d at l * depthMax + d. `#depth` counts beyond `depthMax` too, so that ends still match begins.
  readonly #depthMax: number;
  readonly #depth: Uint32Array;
  readonly #openName: Uint32Array;
  readonly #openTime: Float64Array;
  readonly #openArgument: Float64Array;

  constructor(options: RecorderOptions) {
    const { clock, thread, eventsMax = 65_536, namesMax = 4096, lanesMax = 64, depthMax = 32 } = options;
    assert(eventsMax >= 1 && namesMax >= 1 && lanesMax >= 1 && lanesMax <= 65_536 && depthMax >= 1, () => 'recorder bounds are positive');
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
    this.#depthMax = depthMax;
    this.#depth = new Uint32Array(lanesMax);
    this.#openName = new Uint32Array(lanesMax * depthMax);
    this.#openTime = new Float64Array(lanesMax * depthMax);
    this.#openArgument = new Float64Array(lanesMax * depthMax);
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
    return this.#lanes.length < this.#lanesMax ? this.#lanes.push(text) - 1 : 0;
  }

  begin(name: NameId, lane: LaneId = 0, argument = 0): void {
    const depth = this.#depth[lane]++;
    if (depth >= this.#depthMax) return;
    const at = lane * this.#depthMax + depth;
    this.#openName[at] = name;
    this.#openTime[at] = this.#clock.now();
    this.#openArgument[at] = argument;
  }

  end(lane: LaneId = 0): void {
    if (this.#depth[lane] === 0) return;
    const depth = --this.#depth[lane];
    if (depth >= this.#depthMax) return;
    const at = lane * this.#depthMax + depth;
    const startMs = this.#openTime[at];
    this.#push(spanKind, this.#openName[at], lane, startMs, this.#clock.now() - startMs, this.#openArgument[at], Number.NaN);
  }

  complete(name: NameId, startMs: number, lane: LaneId = 0, argument = 0, second = Number.NaN): void {
    this.#push(spanKind, name, lane, startMs, this.#clock.now() - startMs, argument, second);
  }

  instant(name: NameId, lane: LaneId = 0, argument = 0): void {
    this.#push(instantKind, name, lane, this.#clock.now(), 0, argument, Number.NaN);
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
    const open = this.#openSpans();
    const count = kept + open.length;
    const snapshot = {
      names: [...this.#names],
      lanes: [...this.#lanes],
      startMs: this.#startMs,
      startWallMs: this.#startWallMs,
      dropped: this.#written - kept,
      kinds: new Uint8Array(count),
      nameIds: new Uint32Array(count),
      laneIds: new Uint16Array(count),
      timesMs: new Float64Array(count),
      values: new Float64Array(count),
      arguments: new Float64Array(count),
      seconds: new Float64Array(count).fill(Number.NaN),
      traffic: this.#traffic.rows(),
    };
    for (let i = 0; i < kept; i++) {
      const slot = (this.#written - kept + i) % this.#capacity;
      snapshot.kinds[i] = this.#kind[slot];
      snapshot.nameIds[i] = this.#name[slot];
      snapshot.laneIds[i] = this.#lane[slot];
      snapshot.timesMs[i] = this.#time[slot];
      snapshot.values[i] = this.#value[slot];
      snapshot.arguments[i] = this.#argument[slot];
      snapshot.seconds[i] = this.#second[slot];
    }
    const nowMs = this.#clock.now();
    for (const [index, { lane, at }] of open.entries()) {
      const i = kept + index;
      snapshot.kinds[i] = spanKind;
      snapshot.nameIds[i] = this.#openName[at];
      snapshot.laneIds[i] = lane;
      snapshot.timesMs[i] = this.#openTime[at];
      snapshot.values[i] = nowMs - this.#openTime[at];
      snapshot.arguments[i] = this.#openArgument[at];
    }
    return snapshot;
  }

  #openSpans(): { lane: LaneId; at: number }[] {
    return this.#lanes.flatMap((_, lane) => {
      const depth = Math.min(this.#depth[lane], this.#depthMax);
      return Array.from({ length: depth }, (_unused, level) => ({ lane, at: lane * this.#depthMax + level }));
    });
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
