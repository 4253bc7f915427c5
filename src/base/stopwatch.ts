/** Short intervals. `Clock` counts from the Unix epoch, where a double resolves a quarter of a microsecond; an operation of
 *  the same length needs finer marks, which count from the start of the process. */

/** Monotonic time for differences within one thread. */
export interface Stopwatch {
  /** Microseconds, arbitrary origin, resolved to a nanosecond or so. */
  nowUs(): number;
}

export const systemStopwatch: Stopwatch = { nowUs: () => performance.now() * 1000 };
