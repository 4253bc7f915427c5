/** The store as programs have it, in the words of c10d. Values are bytes; text is taken as its UTF-8. */
import { ShoalError } from '../base/errors.ts';
import {
  abortSignal,
  anyList,
  anyNumber,
  anyText,
  checkArgument,
  checkOptions,
  describeValue,
  noOptions,
  optionTable,
} from '../base/schema.ts';
import { PrefixStore } from './prefix-store.ts';
import type { Store, StoreWait } from './store.ts';

export type { StoreWait };

const waitOptions = optionTable<StoreWait>({ timeoutMs: anyNumber, signal: abortSignal });
const encoder = new TextEncoder();

/** Keys and values that all processes of a job share. Operations of one process apply in the order of its calls; `add` and `compareSet` are
 *  atomic over all. Keys have at most 1 KiB, values 16 MiB. Errors: `timeout` names what is missing and where, `peer-lost` the server that
 *  is gone, `closed`. */
export interface JobStore extends AsyncDisposable {
  /** Writes a value, also over another one; calls that wait for the key go on. */
  set(key: string, value: string | Uint8Array): Promise<void>;
  /** Waits until there is such a key. */
  get(key: string, options?: StoreWait): Promise<Uint8Array>;
  /** Waits for all keys; their values in that order. */
  multiGet(keys: readonly string[], options?: StoreWait): Promise<Uint8Array[]>;
  /** Adds to the key's decimal number, which is 0 when there is none; the sum. */
  add(key: string, amount: number): Promise<number>;
  /** Until there are all these keys. */
  wait(keys: readonly string[], options?: StoreWait): Promise<void>;
  /** Where the value is `expected`, or there is none and `expected` is empty, `desired` takes its place. The value there is now; without
   *  any, `expected`. */
  compareSet(key: string, expected: string | Uint8Array, desired: string | Uint8Array): Promise<Uint8Array>;
  /** True when there was such a key. */
  deleteKey(key: string): Promise<boolean>;
  /** Keys in the whole store, those of other prefixes and of Shoal itself with them, as in c10d. */
  numKeys(): Promise<number>;
  /** True when there are all these keys now. */
  check(keys: readonly string[]): Promise<boolean>;
  /** The part of this store whose keys begin with `name` and a slash: c10d's PrefixStore. */
  prefix(name: string): JobStore;
  /** Pending calls reject with `closed`. A prefix closes alone; the store of a group ends with its world. Idempotent. */
  close(): Promise<void>;
}

/** Checks what programs pass, and says it in the words of a store. */
export class CheckedStore implements JobStore {
  readonly #store: Store;

  constructor(store: Store) {
    this.#store = store;
  }

  async set(key: string, value: string | Uint8Array): Promise<void> {
    checkArgument('set: key', key, anyText);
    return this.#store.set(key, bytesOf('set', value));
  }

  async get(key: string, options: StoreWait = noOptions): Promise<Uint8Array> {
    checkArgument('get: key', key, anyText);
    return this.#store.get(key, checkedWait('get', options));
  }

  async multiGet(keys: readonly string[], options: StoreWait = noOptions): Promise<Uint8Array[]> {
    return this.#store.multiGet(checkedKeys('multiGet', keys), checkedWait('multiGet', options));
  }

  async add(key: string, amount: number): Promise<number> {
    checkArgument('add: key', key, anyText);
    if (!Number.isSafeInteger(amount)) throw new ShoalError('usage', `add: amount must be a safe integer, not ${describeValue(amount)}`);
    return this.#store.add(key, amount);
  }

  async wait(keys: readonly string[], options: StoreWait = noOptions): Promise<void> {
    return this.#store.wait(checkedKeys('wait', keys), checkedWait('wait', options));
  }

  async compareSet(key: string, expected: string | Uint8Array, desired: string | Uint8Array): Promise<Uint8Array> {
    checkArgument('compareSet: key', key, anyText);
    return this.#store.compareSet(key, bytesOf('compareSet', expected), bytesOf('compareSet', desired));
  }

  async deleteKey(key: string): Promise<boolean> {
    checkArgument('deleteKey: key', key, anyText);
    return this.#store.delete(key);
  }

  async numKeys(): Promise<number> {
    return this.#store.count();
  }

  async check(keys: readonly string[]): Promise<boolean> {
    return this.#store.check(checkedKeys('check', keys));
  }

  prefix(name: string): JobStore {
    checkArgument('prefix: name', name, anyText);
    if (name === '' || name.startsWith('/'))
      throw new ShoalError('usage', `prefix: a name is needed that does not begin with '/', not '${name}'`);
    return new CheckedStore(new PrefixStore(this.#store, name));
  }

  close(): Promise<void> {
    return this.#store.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

function bytesOf(call: string, value: string | Uint8Array): Uint8Array {
  if (typeof value === 'string') return encoder.encode(value);
  if (value instanceof Uint8Array) return value;
  throw new ShoalError('usage', `${call}: a value is text or a Uint8Array, not ${describeValue(value)}`);
}

function checkedKeys(call: string, keys: readonly string[]): readonly string[] {
  checkArgument(`${call}: keys`, keys, anyList);
  for (const key of keys) checkArgument(`${call}: key`, key, anyText);
  return keys;
}

function checkedWait(call: string, options: StoreWait): StoreWait {
  checkOptions(call, options, waitOptions);
  const { timeoutMs } = options;
  if (timeoutMs !== undefined && !(timeoutMs > 0)) throw new ShoalError('usage', `${call}: timeoutMs must be positive, not ${timeoutMs}`);
  return options;
}
