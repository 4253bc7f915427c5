/** The store of a world for the main thread: calls become commands to the comm thread, which has the store's client.
 *
 *      program ── set, get, … ──▶ CommStore ═══ command ═══▶ StoreDesk ──▶ the part of the world's store that is for programs
 *                                           ◀══ answer ═════
 *
 *  Operations apply in the order of calls, because commands keep it. It must not know the stored data. */
import { Store, type StoreOperation, type StoreResult, type StoreWait } from '../../store/store.ts';
import type { CommClient } from './comm-client.ts';

export class CommStore extends Store {
  readonly #client: CommClient;
  #nextTicket = 1;

  constructor(client: CommClient) {
    super();
    this.#client = client;
  }

  async start(operation: StoreOperation, { timeoutMs, signal }: StoreWait = {}): Promise<StoreResult> {
    const ticket = this.#nextTicket++;
    const asked = this.#client.ask<StoreResult>({ type: 'store', ticket, operation, timeoutMs }, `${operation.op} of the store`);
    const abort = (): void => this.#client.post({ type: 'store-abort', ticket });
    if (signal?.aborted === true) abort();
    signal?.addEventListener('abort', abort, { once: true });
    try {
      return await asked;
    } finally {
      signal?.removeEventListener('abort', abort);
    }
  }

  /** It ends with its world. */
  async close(): Promise<void> {}
}
