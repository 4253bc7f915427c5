/** A part of another store: every key gets a prefix, so that groups, worlds and restarts do not meet.
 *  `count` is that of the whole store beneath, as in c10d. Closing it does not close the store beneath. */
import { setMaxListeners } from 'node:events';
import { closedStore } from './key-waits.ts';
import type { Store, StoreWait } from './store.ts';

export class PrefixStore implements Store {
  readonly #store: Store;
  readonly #prefix: string;
  readonly #closing = new AbortController();

  /** Keys become `prefix/key`. */
  constructor(store: Store, prefix: string) {
    this.#store = store;
    this.#prefix = `${prefix}/`;
    // One listener per wait in flight, which the store beneath bounds.
    setMaxListeners(0, this.#closing.signal);
  }

  async set(key: string, value: Uint8Array): Promise<void> {
    return this.#open().set(this.#full(key), value);
  }

  async get(key: string, options?: StoreWait): Promise<Uint8Array> {
    return this.#untilClosed((signal) => this.#open().get(this.#full(key), { ...options, signal }), options);
  }

  async multiGet(keys: readonly string[], options?: StoreWait): Promise<Uint8Array[]> {
    return this.#untilClosed((signal) => this.#open().multiGet(keys.map(this.#full), { ...options, signal }), options);
  }

  async add(key: string, amount: number): Promise<number> {
    return this.#open().add(this.#full(key), amount);
  }

  async wait(keys: readonly string[], options?: StoreWait): Promise<void> {
    return this.#untilClosed((signal) => this.#open().wait(keys.map(this.#full), { ...options, signal }), options);
  }

  async compareSet(key: string, expected: Uint8Array, desired: Uint8Array): Promise<Uint8Array> {
    return this.#open().compareSet(this.#full(key), expected, desired);
  }

  async delete(key: string): Promise<boolean> {
    return this.#open().delete(this.#full(key));
  }

  async check(keys: readonly string[]): Promise<boolean> {
    return this.#open().check(keys.map(this.#full));
  }

  async count(): Promise<number> {
    return this.#open().count();
  }

  async close(): Promise<void> {
    this.#closing.abort();
  }

  // The empty key and a leading '/' must fail here as they do without a prefix, so they are passed on as they are.
  readonly #full = (key: string): string => (key === '' || key.startsWith('/') ? key : this.#prefix + key);

  #open(): Store {
    if (this.#closing.signal.aborted) throw closedStore(`store prefix '${this.#prefix}'`);
    return this.#store;
  }

  async #untilClosed<T>(call: (signal: AbortSignal) => Promise<T>, options: StoreWait = {}): Promise<T> {
    const signal = options.signal === undefined ? this.#closing.signal : AbortSignal.any([options.signal, this.#closing.signal]);
    try {
      return await call(signal);
    } catch (error) {
      if (this.#closing.signal.aborted) throw closedStore(`store prefix '${this.#prefix}'`);
      throw error;
    }
  }
}
