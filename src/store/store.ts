/** The bootstrap store: a small key-value service through which ranks find each other. Semantics of c10d's Store.
 *  Values are bytes; keys are text without a leading '/'. It must not know what is stored.
 *
 *  Contract (conformance suite, every implementation): operations of one client apply in the order called; `add` and
 *  `compareSet` are atomic over all clients; `wait` and `get` block until the key exists or the deadline passes, and name
 *  the missing keys; a dead server fails every pending and later call with `peer-lost`; sizes are bounded
 *  (key ≤ 1 KiB, value ≤ 16 MiB: `usage` beyond). */
export interface Store {
  set(key: string, value: Uint8Array): Promise<void>;
  /** Waits for the key. @throws ShoalError `timeout` naming the key and the store. */
  get(key: string, options?: StoreWait): Promise<Uint8Array>;
  /** Waits for all keys, and gives their values as they are when the last one appears; empty for one that has been deleted by then.
   *  One request, where `get` makes one for each. @throws ShoalError as `wait`; `usage` when they are more than one message holds. */
  multiGet(keys: readonly string[], options?: StoreWait): Promise<Uint8Array[]>;
  /** Adds to a decimal integer value (absent = 0) and returns the sum. */
  add(key: string, amount: number): Promise<number>;
  /** @throws ShoalError `timeout` naming the keys that are still missing. */
  wait(keys: readonly string[], options?: StoreWait): Promise<void>;
  /** c10d: when the value equals `expected`, or the key is absent and `expected` is empty, stores `desired`.
   *  Returns the value now stored, or `expected` when the key is absent and nothing was stored. */
  compareSet(key: string, expected: Uint8Array, desired: Uint8Array): Promise<Uint8Array>;
  /** True when the key existed. */
  delete(key: string): Promise<boolean>;
  /** True when all keys exist; does not wait. */
  check(keys: readonly string[]): Promise<boolean>;
  /** How many keys there are. */
  count(): Promise<number>;
  /** Bounded; pending calls reject with `closed`. Idempotent. */
  close(): Promise<void>;
}

/** How long a call waits for keys. */
export interface StoreWait {
  /** Default: the store's. */
  readonly timeoutMs?: number;
  /** Ends the wait with `aborted`. */
  readonly signal?: AbortSignal;
}
