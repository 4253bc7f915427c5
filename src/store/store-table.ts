/** The state machine behind every store: a map of keys to bytes or to queues of them, and who waits for which key.
 *  Synchronous and without I/O, time or promises; it must not know who its clients are.
 *  `add` and `compareSet` follow c10d (torch/csrc/distributed/c10d/HashStore.cpp).
 *
 *        set/add/push/… ──▶ values ──▶ watchers of the key ──▶ callback once all its keys have been seen
 */
import { getOrMake } from '../base/collections/lists.ts';
import { ShoalError } from '../base/errors.ts';
import { checkAmount, checkKey, checkKeys, checkValue, shorten, type StoreLimits } from './store-limits.ts';

/** Somebody waiting for keys. */
export interface Watch {
  /** The keys not seen yet, in the order given. */
  missing(): string[];
  /** The callback will not be called any more. Idempotent. */
  cancel(): void;
}

interface Watcher {
  readonly missing: Set<string>;
  readonly callback: () => void;
}

export class StoreTable {
  readonly limits: StoreLimits;
  /** A key is either a value or a queue, which is never empty. */
  readonly #values = new Map<string, Uint8Array | Uint8Array[]>();
  readonly #watchers = new Map<string, Set<Watcher>>();
  #totalBytes = 0;

  constructor(limits: StoreLimits) {
    this.limits = limits;
  }

  get size(): number {
    return this.#values.size;
  }

  /** Keys and values together. */
  get totalBytes(): number {
    return this.#totalBytes;
  }

  /** @throws ShoalError `usage` when it is a queue. */
  get(key: string): Uint8Array | undefined {
    const value = this.#values.get(key);
    if (Array.isArray(value)) throw new ShoalError('usage', `store key '${shorten(key)}' is a queue, not a value`);
    return value;
  }

  /** JSON text of the keys that begin so, without that beginning. @throws ShoalError `usage` when one message cannot hold it. */
  listKeys(prefix: string): Uint8Array {
    const keys = [...this.#values.keys()].filter((key) => key.startsWith(prefix)).map((key) => key.slice(prefix.length));
    const bytes = Buffer.from(JSON.stringify(keys));
    if (bytes.byteLength <= this.limits.maxValueBytes) return bytes;
    throw new ShoalError('usage', `the names of ${keys.length} store keys have more than ${this.limits.maxValueBytes} bytes`);
  }

  /** Empty for keys that are not there. @throws ShoalError `usage` when one message cannot hold them. */
  getAll(keys: readonly string[]): Uint8Array[] {
    const values = keys.map((key) => this.get(key) ?? new Uint8Array());
    const bytes = values.reduce((sum, value) => sum + value.byteLength, 0);
    if (bytes <= this.limits.maxValueBytes) return values;
    throw new ShoalError('usage', `${keys.length} values have ${bytes} bytes, at most ${this.limits.maxValueBytes} are given at once`, {
      bytes,
    });
  }

  /** Keeps `value` itself: the caller must not change it afterwards.
   *  @throws ShoalError `usage` on a key or value out of bounds, `out-of-memory` when the store is full. */
  set(key: string, value: Uint8Array): void {
    checkKey(key, this.limits);
    checkValue(key, value, this.limits);
    const before = this.get(key);
    this.#grow(key, value.byteLength - (before === undefined ? -Buffer.byteLength(key) : before.byteLength));
    this.#values.set(key, value);
    if (before === undefined) this.#announce(key);
  }

  /** Keeps a copy. @throws ShoalError as `set`. */
  append(key: string, value: Uint8Array): void {
    this.set(key, Buffer.concat([this.get(key) ?? new Uint8Array(), value]));
  }

  /** Keeps `value` itself, at the end of a queue. @throws ShoalError as `set`. */
  push(key: string, value: Uint8Array): void {
    checkKey(key, this.limits);
    checkValue(key, value, this.limits);
    const queue = this.#queue(key);
    this.#grow(key, value.byteLength + (queue === undefined ? Buffer.byteLength(key) : 0));
    if (queue !== undefined) return void queue.push(value);
    this.#values.set(key, [value]);
    this.#announce(key);
  }

  /** Takes the first value of a queue. @throws ShoalError `usage` when the key is a value. */
  pop(key: string): Uint8Array | undefined {
    const queue = this.#queue(key);
    const value = queue?.shift();
    this.#totalBytes -= value?.byteLength ?? 0;
    if (queue?.length === 0) this.delete(key);
    return value;
  }

  /** @throws ShoalError `usage` when the key is a value. */
  queueLength(key: string): number {
    return this.#queue(key)?.length ?? 0;
  }

  #queue(key: string): Uint8Array[] | undefined {
    const queue = this.#values.get(key);
    if (queue === undefined || Array.isArray(queue)) return queue;
    throw new ShoalError('usage', `store key '${shorten(key)}' is a value, not a queue`);
  }

  #grow(key: string, grows: number): void {
    if (grows > 0 && this.#totalBytes + grows > this.limits.maxTotalBytes) {
      const message = `the store is full: '${shorten(key)}' needs ${grows} bytes, ${this.#totalBytes} of ${this.limits.maxTotalBytes} are in use; delete keys that are no longer needed`;
      throw new ShoalError('out-of-memory', message, { bytes: grows });
    }
    this.#totalBytes += grows;
  }

  /** @throws ShoalError `usage` when the value is no integer or the sum leaves ±2^53. */
  add(key: string, amount: number): number {
    checkAmount(key, amount);
    const before = this.get(key);
    const sum = (before === undefined ? 0 : integerOf(key, before)) + amount;
    checkAmount(key, sum);
    this.set(key, Buffer.from(String(sum)));
    return sum;
  }

  compareSet(key: string, expected: Uint8Array, desired: Uint8Array): Uint8Array {
    const before = this.get(key);
    if (before === undefined ? expected.byteLength > 0 : Buffer.compare(before, expected) !== 0) return before ?? expected;
    this.set(key, desired);
    return desired;
  }

  delete(key: string): boolean {
    const before = this.#values.get(key);
    if (before === undefined) return false;
    this.#values.delete(key);
    const values = Array.isArray(before) ? before : [before];
    this.#totalBytes -= values.reduce((sum, value) => sum + value.byteLength, Buffer.byteLength(key));
    return true;
  }

  has(keys: readonly string[]): boolean {
    return keys.every((key) => this.#values.has(key));
  }

  /** Calls back as soon as every key has been seen: during this call when they are all there, otherwise inside the
   *  `set` that brings the last one. A key that is seen and deleted again counts as seen. */
  watch(keys: readonly string[], callback: () => void): Watch {
    checkKeys(keys, this.limits);
    const watcher: Watcher = { missing: new Set(keys.filter((key) => !this.#values.has(key))), callback };
    for (const key of watcher.missing) getOrMake(this.#watchers, key, () => new Set<Watcher>()).add(watcher);
    if (watcher.missing.size === 0) callback();
    return {
      missing: () => [...watcher.missing],
      cancel: () => {
        for (const key of watcher.missing) this.#unwatch(key, watcher);
      },
    };
  }

  #announce(key: string): void {
    const watchers = this.#watchers.get(key);
    if (watchers === undefined) return;
    for (const watcher of watchers) {
      // A watcher that takes the only value of a queue leaves the others waiting.
      if (!this.#values.has(key)) return;
      this.#unwatch(key, watcher);
      watcher.missing.delete(key);
      if (watcher.missing.size === 0) watcher.callback();
    }
  }

  #unwatch(key: string, watcher: Watcher): void {
    const watchers = this.#watchers.get(key);
    if (watchers === undefined) return;
    watchers.delete(watcher);
    if (watchers.size === 0) this.#watchers.delete(key);
  }
}

function integerOf(key: string, value: Uint8Array): number {
  const text = Buffer.from(value.buffer, value.byteOffset, value.byteLength).toString('latin1');
  const number = Number(text);
  if (/^-?\d{1,16}$/.test(text) && Number.isSafeInteger(number)) return number;
  throw new ShoalError('usage', `add to store key '${shorten(key)}': its value is no decimal integer`);
}
