/** Memory through which the calling thread of a process tells its comm thread of steps and, with metrics on, of its calls and its heap:
 *  the comm thread answers whoever asks, also while a script computes.
 *
 *      0 steps · 1 time of the last one · 2, 3 heap: used, all · 4, 5 seconds of the event loop: active, idle     8 … counts of calls */
import { systemStopwatch, threadLoad, type Clock, type Timer } from '../base/clock.ts';
import { CallCounters, counterWords, type CountedKind, type CountedPath } from './call-counters.ts';
import { sample, type Sample } from './definitions.ts';

const headWords = 8;
/** Time between two looks of the calling thread at its own heap. */
const heapMs = 1000;
/** One of so many calls that end at once is timed. */
const timedOneIn = 256;
/** Tallies that are asked for what they have counted; older ones say it with their next timed call. */
const talliesMax = 1024;

/** Memory of a process. @param counts it has room for counts of calls. */
export function boardMemory({ counts }: { readonly counts: boolean }): SharedArrayBuffer {
  return new SharedArrayBuffer((headWords + (counts ? counterWords : 0)) * Float64Array.BYTES_PER_ELEMENT);
}

/** The counts in the memory of a process; undefined: it has no room for them. */
export function countersIn(memory: SharedArrayBuffer): CallCounters | undefined {
  const words = new Float64Array(memory);
  return words.length > headWords ? new CallCounters(words.subarray(headWords)) : undefined;
}

/** The calling thread's end. */
export class Board {
  readonly #head: Float64Array;
  readonly #counters: CallCounters | undefined;
  readonly #clock: Clock;
  readonly #tallies: CallTally[] = [];
  #next: Timer | undefined;

  constructor(memory: SharedArrayBuffer, clock: Clock) {
    this.#head = new Float64Array(memory, 0, headWords);
    this.#counters = countersIn(memory);
    this.#clock = clock;
    if (this.#counters) this.#tell();
  }

  /** The end of the last step, on the clock; 0: there was none. */
  get stepMs(): number {
    return this.#head[1];
  }

  /** A step has ended. */
  step(): void {
    this.#head[1] = this.#clock.now();
    this.#head[0] += 1;
  }

  /** The counter of a call that is made again and again; undefined: metrics are off. */
  tally(group: number, kind: CountedKind, path: CountedPath, bytes: number): CallTally | undefined {
    if (!this.#counters) return undefined;
    const tally = new CallTally(this.#counters, this.#counters.row(group, kind, path), bytes);
    if (this.#tallies.push(tally) > talliesMax) this.#tallies.shift();
    return tally;
  }

  close(): void {
    for (const tally of this.#tallies) tally.flush();
    this.#next?.cancel();
  }

  #tell(): void {
    const { heapUsed, heapTotal } = process.memoryUsage();
    const { activeSeconds, idleSeconds } = threadLoad();
    for (const tally of this.#tallies) tally.flush();
    this.#head.set([heapUsed, heapTotal, activeSeconds, idleSeconds], 2);
    this.#next = this.#clock.setTimer(heapMs, () => this.#tell());
  }
}

/** Counts one call each time it is made, in a field of its own: memory of both threads hears of it when a call is timed, and now and
 *  then. */
export class CallTally {
  readonly #counters: CallCounters;
  readonly #row: number;
  readonly #bytes: number;
  /** Calls until one is timed; those of them that `flush` has not counted began at `#unflushed`. */
  #left = 1;
  #unflushed = 1;
  #period = 1;
  #stands = 1;

  constructor(counters: CallCounters, row: number, bytes: number) {
    this.#counters = counters;
    this.#row = row;
    this.#bytes = bytes;
  }

  /** @returns the time for `end`; 0: this call is not timed. */
  begin(): number {
    if (--this.#left > 0) return 0;
    this.flush();
    this.#stands = this.#period;
    this.#period = Math.min(timedOneIn, 2 * this.#period);
    this.#left = this.#unflushed = this.#period;
    return systemStopwatch.nowUs();
  }

  flush(): void {
    const calls = this.#unflushed - this.#left;
    this.#unflushed = this.#left;
    this.#counters.count(this.#row, this.#bytes * calls, calls);
  }

  /** The call has ended at once: it stands for those before it that were not timed. */
  end(beganUs: number): void {
    this.ran(beganUs, this.#stands);
  }

  /** The time now, for `ran`. */
  get nowUs(): number {
    return systemStopwatch.nowUs();
  }

  ran(beganUs: number, calls = 1): void {
    this.#counters.time(this.#row, (systemStopwatch.nowUs() - beganUs) / 1e6, calls);
  }
}

/** Reads the board in the comm thread. */
export function readBoard(memory: SharedArrayBuffer, nowMs: number): { steps: number; stepSeconds?: number; samples: Sample[] } {
  const [steps, atMs, used, total, active, idle] = new Float64Array(memory, 0, headWords);
  const thread = { thread: 'main' };
  const heap =
    total === 0
      ? []
      : [sample('heap', used, thread), sample('heapTotal', total, thread), sample('active', active, thread), sample('idle', idle, thread)];
  return { steps, ...(steps > 0 && { stepSeconds: (nowMs - atMs) / 1000 }), samples: [sample('steps', steps), ...heap] };
}
