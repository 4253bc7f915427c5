/** Promises over a `StoreTable`: waits with a deadline, an abort signal and a common end.
 *  Used by the stores that hold their table in this process (hash, file); it must not know where the keys come from. */
import type { Clock } from '../base/clock.ts';
import { ShoalError } from '../base/errors.ts';
import { listKeys } from './store-limits.ts';
import type { StoreTable } from './store-table.ts';
import type { StoreWait } from './store.ts';

export interface KeyWaitsOptions {
  readonly clock: Clock;
  /** The store's name for messages: `hash store`, `file store /tmp/x`. */
  readonly name: string;
  /** Timeout of calls that give none. */
  readonly timeoutMs: number;
}

export class KeyWaits {
  readonly #table: StoreTable;
  readonly #options: KeyWaitsOptions;
  readonly #pending = new Set<(error: ShoalError) => void>();
  #ended: ShoalError | undefined;

  constructor(table: StoreTable, options: KeyWaitsOptions) {
    this.#table = table;
    this.#options = options;
  }

  get pending(): number {
    return this.#pending.size;
  }

  /** Resolves with `take()`, called at the very moment the last key is seen.
   *  @throws ShoalError `timeout` naming the missing keys, `aborted`, what `end` was given, `usage` beyond `maxPending` waits at once. */
  wait<T>(keys: readonly string[], take: () => T, wait: StoreWait = {}): Promise<T> {
    const { clock, name } = this.#options;
    const timeoutMs = wait.timeoutMs ?? this.#options.timeoutMs;
    if (this.#ended) return Promise.reject(this.#ended);
    if (this.#pending.size >= this.#table.limits.maxPending) {
      return Promise.reject(new ShoalError('usage', `${name}: more than ${this.#table.limits.maxPending} waits at once`));
    }
    return new Promise<T>((resolve, reject) => {
      const settle = (): void => {
        this.#pending.delete(fail);
        timer.cancel();
        wait.signal?.removeEventListener('abort', abort);
      };
      const fail = (error: ShoalError): void => {
        settle();
        watch?.cancel();
        reject(error);
      };
      const abort = (): void => fail(abortedWait(name, keys, wait.signal));
      const timer = clock.setTimer(timeoutMs, () => fail(timedOutWait(name, watch?.missing() ?? keys, timeoutMs)), { keepAlive: true });
      let watch: ReturnType<StoreTable['watch']> | undefined;
      this.#pending.add(fail);
      if (wait.signal?.aborted) return abort();
      wait.signal?.addEventListener('abort', abort);
      try {
        watch = this.#table.watch(keys, () => {
          settle();
          // Whoever sets the last key has no part in what follows from it.
          try {
            resolve(take());
          } catch (error) {
            reject(ShoalError.from(error));
          }
        });
      } catch (error) {
        fail(ShoalError.from(error));
      }
    });
  }

  /** Rejects every wait, now and later. */
  end(error: ShoalError): void {
    this.#ended ??= error;
    this.fail(error);
  }

  /** Rejects every wait that there is. */
  fail(error: ShoalError): void {
    for (const fail of [...this.#pending]) fail(error);
  }
}

export function timedOutWait(name: string, missing: readonly string[], timeoutMs: number): ShoalError {
  const message = `${name}: still missing ${listKeys(missing)} after ${timeoutMs} ms; the process that should have set it is late or gone`;
  return new ShoalError('timeout', message, { operation: 'store wait', timeoutMs });
}

export function abortedWait(name: string, keys: readonly string[], signal: AbortSignal | undefined): ShoalError {
  return new ShoalError('aborted', `${name}: the wait for ${listKeys(keys)} was aborted`, { cause: signal?.reason });
}
