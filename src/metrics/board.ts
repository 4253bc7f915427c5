/** Memory through which the calling thread of a process tells its comm thread of steps and, with metrics on, of its calls and its heap:
 *  the comm thread answers whoever asks, also while a script computes.
 *
 *      0 steps · 1 time of the last one · 2, 3 heap: used, all · 4, 5 seconds of the event loop: active, idle     8 … counts of calls */
import { systemStopwatch, threadLoad, type Clock, type Timer } from '../base/clock.ts';
import { CallCounters, counterWords, type CountedKind, type CountedPath } from './call-counters.ts';
import { sample, type Sample } from './definitions.ts';

const headWords = 8;
/** Time between two looks of the calling thread at its own heap. */
const heapMs = 2000;
/** One of so many calls that end at once is timed. */
const timedOneIn = 64;

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
  #next: Timer | undefined;

  constructor(memory: SharedArrayBuffer, clock: Clock) {
    this.#head = new Float64Array(memory, 0, headWords);
    this.#counters = countersIn(memory);
    this.#clock = clock;
    if (this.#counters) this.#noteHeap();
  }

  /** A step has ended. @returns the time of the one before, on the clock; 0: there was none. */
  step(): number {
    const beforeMs = this.#head[1];
    this.#head[1] = this.#clock.now();
    this.#head[0] += 1;
    return beforeMs;
  }

  /** The counter of a call that is made again and again; undefined: metrics are off. */
  tally(group: number, kind: CountedKind, path: CountedPath, bytes: number): CallTally | undefined {
    return this.#counters && new CallTally(this.#counters, this.#counters.row(group, kind, path), bytes);
  }

  close(): void {
    this.#next?.cancel();
  }

  #noteHeap(): void {
    const { heapUsed, heapTotal } = process.memoryUsage();
    const { activeSeconds, idleSeconds } = threadLoad();
    this.#head.set([heapUsed, heapTotal, activeSeconds, idleSeconds], 2);
    this.#next = this.#clock.setTimer(heapMs, () => this.#noteHeap());
  }
}

/** Counts one call each time it is made. */
export class CallTally {
  readonly #counters: CallCounters;
  readonly #row: number;
  readonly #bytes: number;
  #untilTimed = 1;
  #stands = 1;

  constructor(counters: CallCounters, row: number, bytes: number) {
    this.#counters = counters;
    this.#row = row;
    this.#bytes = bytes;
  }

  /** @returns the time for `end`; 0: this call is not timed. */
  begin(): number {
    this.#counters.count(this.#row, this.#bytes);
    if (--this.#untilTimed > 0) return 0;
    this.#untilTimed = timedOneIn;
    return systemStopwatch.nowUs();
  }

  /** The call has ended at once: it stands for those before it that were not timed. */
  end(beganUs: number): void {
    this.ran(beganUs, this.#stands);
    this.#stands = timedOneIn;
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
