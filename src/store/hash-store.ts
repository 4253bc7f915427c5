/** A store within one process: one table, any number of clients. For worlds of one rank, tests and simulation. */
import type { Clock } from '../base/clock.ts';
import { closedStore, KeyWaits } from './key-waits.ts';
import { checkKeys, checkValue, defaultStoreLimits, defaultStoreTimeoutMs, type StoreLimits } from './store-limits.ts';
import { StoreTable } from './store-table.ts';
import type { Store, StoreWait } from './store.ts';

export interface HashStoreOptions {
  readonly clock: Clock;
  /** What the clients share. Default: a table of its own. */
  readonly table?: StoreTable;
  readonly limits?: Partial<StoreLimits>;
  /** For waits that give none. Default 5 minutes. */
  readonly timeoutMs?: number;
}

const name = 'hash store';

export class HashStore implements Store {
  readonly table: StoreTable;
  readonly #waits: KeyWaits;
  #closed = false;

  constructor(options: HashStoreOptions) {
    this.table = options.table ?? new StoreTable({ ...defaultStoreLimits, ...options.limits });
    this.#waits = new KeyWaits(this.table, { clock: options.clock, name, timeoutMs: options.timeoutMs ?? defaultStoreTimeoutMs });
  }

  async set(key: string, value: Uint8Array): Promise<void> {
    this.#checkOpen();
    checkValue(key, value, this.table.limits);
    this.table.set(key, value.slice());
  }

  async get(key: string, options?: StoreWait): Promise<Uint8Array> {
    this.#checkOpen();
    return this.#waits.wait([key], () => this.table.get(key)!.slice(), options);
  }

  async multiGet(keys: readonly string[], options?: StoreWait): Promise<Uint8Array[]> {
    this.#checkOpen();
    return this.#waits.wait(keys, () => this.table.getAll(keys).map((value) => value.slice()), options);
  }

  async add(key: string, amount: number): Promise<number> {
    this.#checkOpen();
    return this.table.add(key, amount);
  }

  async wait(keys: readonly string[], options?: StoreWait): Promise<void> {
    this.#checkOpen();
    return this.#waits.wait(keys, () => undefined, options);
  }

  async compareSet(key: string, expected: Uint8Array, desired: Uint8Array): Promise<Uint8Array> {
    this.#checkOpen();
    checkKeys([key], this.table.limits);
    checkValue(key, desired, this.table.limits);
    return this.table.compareSet(key, expected, desired.slice()).slice();
  }

  async delete(key: string): Promise<boolean> {
    this.#checkOpen();
    return this.table.delete(key);
  }

  async check(keys: readonly string[]): Promise<boolean> {
    this.#checkOpen();
    checkKeys(keys, this.table.limits);
    return this.table.has(keys);
  }

  async count(): Promise<number> {
    this.#checkOpen();
    return this.table.size;
  }

  async close(): Promise<void> {
    this.#closed = true;
    this.#waits.end(closedStore(name));
  }

  #checkOpen(): void {
    if (this.#closed) throw closedStore(name);
  }
}
