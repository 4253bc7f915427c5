/** The state machine behind every store: a map of keys to bytes, and who waits for which key.
 *  Synchronous and without I/O, time or promises; it must not know who its clients are.
 *  `add` and `compareSet` follow c10d (torch/csrc/distributed/c10d/HashStore.cpp).
 *
 *        set/add/compareSet ──▶ values ──▶ watchers of the key ──▶ callback once all its keys have been seen
 */
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
  readonly #values = new Map<string, Uint8Array>();
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

  get(key: string): Uint8Array | undefined {
    return this.#values.get(key);
  }

  /** Empty for keys that are not there. @throws ShoalError `usage` when one message cannot hold them. */
  getAll(keys: readonly string[]): Uint8Array[] {
    const values = keys.map((key) => this.#values.get(key) ?? new Uint8Array());
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
    const before = this.#values.get(key);
    const grows = value.byteLength - (before === undefined ? -Buffer.byteLength(key) : before.byteLength);
    if (grows > 0 && this.#totalBytes + grows > this.limits.maxTotalBytes) {
      throw new ShoalError(
        'out-of-memory',
        `the store is full: '${shorten(key)}' needs ${grows} bytes, ${this.#totalBytes} of ${this.limits.maxTotalBytes} are in use; delete keys that are no longer needed`,
        { bytes: grows },
      );
    }
    this.#totalBytes += grows;
    this.#values.set(key, value);
    if (before === undefined) this.#announce(key);
  }

  /** @throws ShoalError `usage` when the value is no integer or the sum leaves ±2^53. */
  add(key: string, amount: number): number {
    checkAmount(key, amount);
    const before = this.#values.get(key);
    const sum = (before === undefined ? 0 : integerOf(key, before)) + amount;
    checkAmount(key, sum);
    this.set(key, Buffer.from(String(sum)));
    return sum;
  }

  compareSet(key: string, expected: Uint8Array, desired: Uint8Array): Uint8Array {
    const before = this.#values.get(key);
    if (before === undefined ? expected.byteLength > 0 : Buffer.compare(before, expected) !== 0) return before ?? expected;
    this.set(key, desired);
    return desired;
  }

  delete(key: string): boolean {
    const before = this.#values.get(key);
    if (before === undefined) return false;
    this.#values.delete(key);
    this.#totalBytes -= before.byteLength + Buffer.byteLength(key);
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
    for (const key of watcher.missing) {
      const watchers = this.#watchers.get(key);
      if (watchers === undefined) this.#watchers.set(key, new Set([watcher]));
      else watchers.add(watcher);
    }
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
    this.#watchers.delete(key);
    for (const watcher of watchers) {
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
