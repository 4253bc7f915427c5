/** The comm thread's end of the store that programs use: carries out the calls that the calling thread's CommStore sends as commands. */
import type { ShoalError } from '../../base/errors.ts';
import { isImmediate, owned, type Store, type StoreResult } from '../../store/store.ts';
import type { StoreCommand } from '../shared/comm-protocol.ts';

/** Keeps programs' keys from Shoal's own. */
const userPrefix = 'user';

export class StoreDesk {
  readonly #store: Store;
  readonly #waits = new Map<number, AbortController>();
  #failure: ShoalError | undefined;

  /** @param failure as `fail`. */
  constructor(store: Store, failure: ShoalError | undefined) {
    this.#store = store.prefix(userPrefix);
    this.#failure = failure;
  }

  /** Waits for keys end with this, now and later: who should set them may be gone. */
  fail(error: ShoalError): void {
    this.#failure = error;
    for (const controller of this.#waits.values()) controller.abort();
  }

  /** Carries out the calls of programs. @throws (rejects) what the store throws. */
  async carryOut({ ticket, operation, timeoutMs }: StoreCommand): Promise<StoreResult> {
    // The answer is a copy, and of these bytes only.
    if (isImmediate(operation)) return owned(await this.#store.start(operation));
    if (this.#failure) throw this.#failure;
    const controller = new AbortController();
    this.#waits.set(ticket, controller);
    try {
      const { signal } = controller;
      return owned(await this.#store.start(operation, { signal, ...(timeoutMs === undefined ? {} : { timeoutMs }) }));
    } catch (thrown) {
      throw this.#failure ?? thrown;
    } finally {
      this.#waits.delete(ticket);
    }
  }

  abort(ticket: number): void {
    this.#waits.get(ticket)?.abort();
  }

  async close(): Promise<void> {
    await this.#store.close();
  }
}
