/** The store of a world for the main thread: calls become commands to the comm thread, which has the store's client.
 *
 *      program ── set, get, … ──▶ CommStore ═══ command ═══▶ StoreDesk ──▶ the part of the world's store that is for programs
 *                                           ◀══ answer ═════
 *
 *  Operations apply in the order of calls, because commands keep it. It must not know the stored data. */
import type { ShoalError } from '../../base/errors.ts';
import { isImmediate, owned, Store, type StoreOperation, type StoreResult, type StoreWait } from '../../store/store.ts';
import type { CommClient } from './comm-client.ts';
import type { StoreCommand } from '../engine/comm-protocol.ts';

/** Keeps programs' keys from Shoal's own. */
const userPrefix = 'user';

/** The main thread's end. */
export class CommStore extends Store {
  readonly #client: CommClient;
  #nextTicket = 1;

  constructor(client: CommClient) {
    super();
    this.#client = client;
  }

  async start(operation: StoreOperation, { timeoutMs, signal }: StoreWait = {}): Promise<StoreResult> {
    const ticket = this.#nextTicket++;
    let result: unknown;
    const onSuccess = (answer: unknown): void => void (result = answer);
    const work = this.#client.start({ type: 'store', ticket, operation, timeoutMs }, `${operation.op} of the store`, { onSuccess });
    const abort = (): void => this.#client.post({ type: 'store-abort', ticket });
    if (signal?.aborted === true) abort();
    signal?.addEventListener('abort', abort, { once: true });
    try {
      await work;
    } finally {
      signal?.removeEventListener('abort', abort);
    }
    return result as StoreResult;
  }

  /** It ends with its world. */
  async close(): Promise<void> {}
}

/** The comm thread's end. */
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
    // What crosses is a copy, and of these bytes only.
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
