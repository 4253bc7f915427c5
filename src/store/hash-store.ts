/** A store within one process: one table, any number of clients. For worlds of one rank, tests and simulation. */
import type { Clock } from '../base/clock.ts';
import { apply, found, keysOf } from './apply-operation.ts';
import { KeyWaits } from './key-waits.ts';
import { defaultStoreLimits, defaultStoreTimeoutMs, type StoreLimits } from './store-limits.ts';
import { StoreTable } from './store-table.ts';
import { closedStore, isImmediate, Store, type StoreOperation, type StoreResult, type StoreWait } from './store.ts';

export interface HashStoreOptions {
  readonly clock: Clock;
  /** The table that the clients share. Default: one of its own. */
  readonly table?: StoreTable;
  readonly limits?: Partial<StoreLimits>;
  /** Timeout of waits that give none. Default 5 minutes. */
  readonly timeoutMs?: number;
}

const name = 'hash store';

export class HashStore extends Store {
  readonly table: StoreTable;
  readonly #waits: KeyWaits;
  #closed = false;

  constructor(options: HashStoreOptions) {
    super();
    this.table = options.table ?? new StoreTable({ ...defaultStoreLimits, ...options.limits });
    this.#waits = new KeyWaits(this.table, { clock: options.clock, name, timeoutMs: options.timeoutMs ?? defaultStoreTimeoutMs });
  }

  async start(operation: StoreOperation, wait?: StoreWait): Promise<StoreResult> {
    if (this.#closed) throw closedStore(name);
    if (isImmediate(operation)) return apply(this.table, operation);
    return this.#waits.wait(keysOf(operation), () => found(this.table, operation), wait);
  }

  async close(): Promise<void> {
    this.#closed = true;
    this.#waits.end(closedStore(name));
  }
}
