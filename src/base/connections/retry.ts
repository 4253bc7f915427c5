/** Connects again and again, ever slower, until it succeeds or there is no point: the one loop of everything that connects
 *  (fabrics, store, messaging, links to servers). It must not know what is connected to.
 *
 *      attempt ─▶ value
 *         ▲  └──▶ error ─▶ final, time over, enough attempts, or the caller's signal? ─▶ the error, and why
 *         └── pause: doubles, with jitter, so that many who lost the same peer do not come back at once */
import { setMaxListeners } from 'node:events';
import { setServedTimer, type Clock } from '../clock.ts';
import { ShoalError } from '../errors.ts';
import type { Random } from '../random.ts';

export interface RetryOptions {
  readonly clock: Clock;
  readonly random: Random;
  /** Limit of all attempts, which also ends the one under way. Time in which the process gets no CPU does not count. Default: none. */
  readonly timeoutMs?: number;
  readonly attemptsMax?: number;
  readonly signal?: AbortSignal | undefined;
  /** True for an error that another attempt cannot change. */
  readonly isFinal: (error: ShoalError) => boolean;
  /** First and longest pause, before jitter, which takes up to half. Default 10, then twice as long each, at most 250. */
  readonly firstPauseMs?: number;
  readonly pauseMostMs?: number;
  /** `pause`: begins with a pause, as something was lost just now, perhaps for many. Default `attempt`. */
  readonly begin?: 'attempt' | 'pause';
}

export type Retried<T> =
  | { readonly value: T }
  /** `final`: the last attempt's error was final. `over`: time or attempts are used up. `aborted`: by the signal. `error` is
   *  undefined when there was no time for any attempt. */
  | { readonly why: 'final' | 'over' | 'aborted'; readonly error: ShoalError | undefined; readonly attempts: number };

/** @param attempt must give up, and release its resources, when `stop` fires; a later result is the attempt's own to end. */
export async function retry<T>(options: RetryOptions, attempt: (stop: AbortSignal, leftMs: number) => Promise<T>): Promise<Retried<T>> {
  const { clock, random, timeoutMs, attemptsMax = Infinity, signal, isFinal } = options;
  const { firstPauseMs = 10, pauseMostMs = 250, begin = 'attempt' } = options;
  const startMs = clock.now();
  const stop = new AbortController();
  setMaxListeners(0, stop.signal);
  const onStop = (): void => stop.abort();
  signal?.addEventListener('abort', onStop, { once: true });
  if (signal?.aborted) onStop();
  const timer = timeoutMs === undefined ? undefined : setServedTimer(clock, timeoutMs, onStop);
  let pauseMs = firstPauseMs;
  const pause = async (): Promise<void> => {
    await pauseUntil(clock, pauseMs * (0.5 + random.next() / 2), stop.signal);
    pauseMs = Math.min(pauseMs * 2, pauseMostMs);
  };
  let error: ShoalError | undefined;
  let attempts = 0;
  try {
    if (begin === 'pause') await pause();
    while (!stop.signal.aborted && attempts < attemptsMax) {
      attempts++;
      try {
        return { value: await attempt(stop.signal, Math.max(1, (timeoutMs ?? Infinity) - (clock.now() - startMs))) };
      } catch (thrown) {
        const latest = ShoalError.from(thrown);
        if (!stop.signal.aborted && isFinal(latest)) return { why: 'final', error: latest, attempts };
        // The reason of an earlier attempt says more than that of the attempt which the deadline cut off.
        if (error === undefined || !(stop.signal.aborted || latest.code === 'timeout')) error = latest;
      }
      if (attempts < attemptsMax) await pause();
    }
    return { why: signal?.aborted ? 'aborted' : 'over', error, attempts };
  } finally {
    timer?.cancel();
    signal?.removeEventListener('abort', onStop);
  }
}

function pauseUntil(clock: Clock, delayMs: number, stop: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const end = (): void => {
      timer.cancel();
      stop.removeEventListener('abort', end);
      resolve();
    };
    const timer = clock.setTimer(delayMs, end, { keepAlive: true });
    stop.addEventListener('abort', end);
    if (stop.aborted) end();
  });
}
