/** A dial, and the wait for its answer: the one of all backends whose transport does not wait by itself. */
import { setServedTimer, type Clock } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import type { PipeConnectOptions } from '../backend.ts';

export interface DialOptions extends PipeConnectOptions {
  readonly url: string;
  readonly clock: Clock;
  /** The reason why there was no answer in time. */
  readonly late: () => string;
}

/** @param begin dials, and calls `finish` with the answer, or with the reason for which there is none; further calls of it change nothing.
 *  @throws ShoalError `timeout`, `aborted`, and what `finish` was given. */
export function dial(
  { url, clock, timeoutMs, signal, late }: DialOptions,
  begin: (finish: (error?: ShoalError) => void) => void,
): Promise<void> {
  return new Promise((resolve, reject) => {
    const finish = (error?: ShoalError): void => {
      timer.cancel();
      signal.removeEventListener('abort', onAbort);
      if (error === undefined) resolve();
      else reject(error);
    };
    const onAbort = (): void => finish(givenUp(url));
    const timer = setServedTimer(clock, timeoutMs, () => finish(new ShoalError('timeout', late(), { timeoutMs })));
    signal.addEventListener('abort', onAbort, { once: true });
    if (signal.aborted) onAbort();
    else begin(finish);
  });
}

/** A dial that its signal has ended. */
export function givenUp(url: string): ShoalError {
  return new ShoalError('aborted', `connecting to ${url} was given up`);
}
