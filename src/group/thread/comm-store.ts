/** The store of a world for the main thread: calls become commands to the comm thread, which has the store's client.
 *
 *      program ── set, get, … ──▶ CommStore ═══ command ═══▶ StoreDesk ──▶ the part of the world's store that is for programs
 *                                           ◀══ answer ═════
 *
 *  Operations apply in the order of calls, because commands keep it. It must not know the stored data. */
import type { ShoalError } from '../../base/errors.ts';
import { PrefixStore } from '../../store/prefix-store.ts';
import type { Store, StoreWait } from '../../store/store.ts';
import type { CommClient } from './comm-client.ts';
import type { StoreCommand } from '../engine/comm-protocol.ts';

/** Keeps programs' keys from Shoal's own. */
const userPrefix = 'user';

/** The main thread's end. */
export class CommStore implements Store {
  readonly #client: CommClient;
  #nextTicket = 1;

  constructor(client: CommClient) {
    this.#client = client;
  }

  set(key: string, value: Uint8Array): Promise<void> {
    // What crosses is a copy, and of these bytes only.
    return this.#call('set', [key, Uint8Array.from(value)]);
  }

  get(key: string, wait?: StoreWait): Promise<Uint8Array> {
    return this.#call('get', [key], wait);
  }

  multiGet(keys: readonly string[], wait?: StoreWait): Promise<Uint8Array[]> {
    return this.#call('multiGet', [keys], wait);
  }

  add(key: string, amount: number): Promise<number> {
    return this.#call('add', [key, amount]);
  }

  wait(keys: readonly string[], wait?: StoreWait): Promise<void> {
    return this.#call('wait', [keys], wait);
  }

  compareSet(key: string, expected: Uint8Array, desired: Uint8Array): Promise<Uint8Array> {
    return this.#call('compareSet', [key, Uint8Array.from(expected), Uint8Array.from(desired)]);
  }

  delete(key: string): Promise<boolean> {
    return this.#call('delete', [key]);
  }

  check(keys: readonly string[]): Promise<boolean> {
    return this.#call('check', [keys]);
  }

  count(): Promise<number> {
    return this.#call('count', []);
  }

  /** It ends with its world. */
  async close(): Promise<void> {}

  async #call<T>(method: StoreCommand['method'], args: readonly unknown[], { timeoutMs, signal }: StoreWait = {}): Promise<T> {
    const ticket = this.#nextTicket++;
    let result: unknown;
    const onSuccess = (answer: unknown): void => void (result = answer);
    const work = this.#client.start({ type: 'store', ticket, method, args, timeoutMs }, `${method} of the store`, { onSuccess });
    const abort = (): void => this.#client.post({ type: 'store-abort', ticket });
    if (signal?.aborted === true) abort();
    signal?.addEventListener('abort', abort, { once: true });
    try {
      await work;
    } finally {
      signal?.removeEventListener('abort', abort);
    }
    return result as T;
  }
}

/** The comm thread's end. */
export class StoreDesk {
  readonly #store: Store;
  readonly #waits = new Map<number, AbortController>();
  #failure: ShoalError | undefined;

  /** @param failure as `fail`. */
  constructor(store: Store, failure: ShoalError | undefined) {
    this.#store = new PrefixStore(store, userPrefix);
    this.#failure = failure;
  }

  /** Waits for keys end with this, now and later: who should set them may be gone. */
  fail(error: ShoalError): void {
    this.#failure = error;
    for (const controller of this.#waits.values()) controller.abort();
  }

  /** Carries out the calls of programs. @throws (rejects) what the store throws. */
  async carryOut({ ticket, method, args, timeoutMs }: StoreCommand): Promise<unknown> {
    const run = this.#store[method].bind(this.#store) as (...given: unknown[]) => Promise<unknown>;
    if (method !== 'get' && method !== 'multiGet' && method !== 'wait') return run(...args);
    if (this.#failure) throw this.#failure;
    const controller = new AbortController();
    this.#waits.set(ticket, controller);
    try {
      return await run(...args, { signal: controller.signal, ...(timeoutMs === undefined ? {} : { timeoutMs }) });
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
