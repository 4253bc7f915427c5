/** Time as an argument. This file and `random.ts` are the only places that read the machine's clock or dice. */

/** A running timer. `cancel` is idempotent. */
export interface Timer {
  /** Stops the timer: its callback is not called any more. Later calls have no effect. */
  cancel(): void;
}

/** Monotonic time, wall time and timers, so that whole worlds can run on virtual time. */
export interface Clock {
  /** Monotonic milliseconds with fraction, arbitrary origin, comparable within a process across threads. */
  now(): number;
  /** Milliseconds since the Unix epoch, with fraction; for traces and file names only. */
  wallNow(): number;
  /** Calls back once after `delayMs`. A pending timer does not keep the process alive unless `keepAlive`. */
  setTimer(delayMs: number, callback: () => void, options?: { keepAlive?: boolean }): Timer;
}

export const systemClock: Clock = {
  now: () => performance.timeOrigin + performance.now(),
  wallNow: () => performance.timeOrigin + performance.now(),
  setTimer(delayMs, callback, options = {}) {
    const handle = setTimeout(callback, Math.min(delayMs, 0x7fffffff));
    if (!options.keepAlive) handle.unref();
    return { cancel: () => clearTimeout(handle) };
  },
};

/** Monotonic time for differences within one thread. `Clock` counts from the Unix epoch, where a double resolves a quarter of a
 *  microsecond; operations of that length need finer marks, which count from the start of the process. */
export interface Stopwatch {
  /** Microseconds, arbitrary origin, resolved to a nanosecond or so. */
  nowUs(): number;
}

export const systemStopwatch: Stopwatch = { nowUs: () => performance.now() * 1000 };

/** Seconds since the thread was started in which its event loop ran code, and in which it waited. */
export function threadLoad(): { activeSeconds: number; idleSeconds: number } {
  const { active, idle } = performance.eventLoopUtilization();
  return { activeSeconds: active / 1000, idleSeconds: idle / 1000 };
}

/** Resolves after `delayMs` on the given clock. */
export function sleep(clock: Clock, delayMs: number): Promise<void> {
  return new Promise((resolve) => {
    clock.setTimer(delayMs, resolve, { keepAlive: true });
  });
}

/** The result of `promise`, or of `late` when it takes longer than `delayMs` in which the event loop turned. */
export async function within<T>(clock: Clock, delayMs: number, promise: Promise<T>, late: () => T): Promise<T> {
  let timer: Timer | undefined;
  const over = new Promise<void>((resolve) => {
    timer = setServedTimer(clock, delayMs, resolve);
  });
  try {
    return await Promise.race([promise, over.then(late)]);
  } finally {
    timer?.cancel();
  }
}

/** Longest part of a pause of the process that counts, in a timer of served time. */
const servedTickMs = 250;

/** Calls back after `delayMs` in which the event loop turned: a process that gets no CPU for seconds first reads the data that
 *  has arrived meanwhile. For conclusions from silence. Keeps the process alive unless told otherwise. */
export function setServedTimer(clock: Clock, delayMs: number, callback: () => void, { keepAlive = true } = {}): Timer {
  let leftMs = delayMs;
  const next = (): Timer => {
    const tickMs = Math.min(leftMs, servedTickMs);
    leftMs -= tickMs;
    return clock.setTimer(tickMs, onTick, { keepAlive });
  };
  const onTick = (): void => {
    if (leftMs > 0) timer = next();
    else callback();
  };
  let timer = next();
  return { cancel: () => timer.cancel() };
}

/** A clock that moves only when told; timers fire in order of time, then of creation. */
export class VirtualClock implements Clock {
  #nowMs = 0;
  #sequence = 0;
  readonly #timers: { atMs: number; sequence: number; callback: () => void }[] = [];

  now(): number {
    return this.#nowMs;
  }

  wallNow(): number {
    return this.#nowMs;
  }

  setTimer(delayMs: number, callback: () => void): Timer {
    const timer = { atMs: this.#nowMs + Math.max(0, delayMs), sequence: this.#sequence++, callback };
    this.#timers.push(timer);
    this.#timers.sort((a, b) => a.atMs - b.atMs || a.sequence - b.sequence);
    return {
      cancel: () => {
        const index = this.#timers.indexOf(timer);
        if (index >= 0) this.#timers.splice(index, 1);
      },
    };
  }

  /** Time at which the next timer falls due; undefined: none runs. */
  get nextMs(): number | undefined {
    return this.#timers[0]?.atMs;
  }

  /** Moves time forward to the next timer, and fires that one. */
  fireNext(): void {
    const next = this.#timers.shift();
    if (next === undefined) return;
    this.#nowMs = Math.max(this.#nowMs, next.atMs);
    next.callback();
  }

  /** Moves time forward by `byMs`, firing every timer that falls due on the way. */
  advance(byMs: number): void {
    const untilMs = this.#nowMs + byMs;
    while ((this.nextMs ?? Infinity) <= untilMs) this.fireNext();
    this.#nowMs = untilMs;
  }

  /** Simulates that the process gets no CPU for this time: overdue timers fire afterwards, and timers that they start begin then. */
  stall(byMs: number): void {
    this.#nowMs += byMs;
    const due = this.#timers.filter(({ atMs }) => atMs <= this.#nowMs);
    for (const timer of due) {
      const index = this.#timers.indexOf(timer);
      if (index < 0) continue;
      this.#timers.splice(index, 1);
      timer.callback();
    }
  }
}
