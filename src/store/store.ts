/** The bootstrap store: a small key-value service through which ranks find each other. Semantics of c10d's Store.
 *  Values are bytes; keys are text without a leading '/'. It must not know what is stored.
 *
 *      program ── set, get, … ──▶ Store, which checks the arguments ── operation ──▶ `start` of a table, a folder, a server, a prefix
 *
 *  Contract (conformance suite, every implementation): operations of one client apply in the order called; `add` and
 *  `compareSet` are atomic over all clients; `wait` and `get` block until the key exists or the deadline passes, and name
 *  the missing keys; a dead server fails every pending and later call with `peer-lost`; sizes are bounded
 *  (key ≤ 1 KiB, value ≤ 16 MiB: `usage` beyond). */
import { setMaxListeners } from 'node:events';
import { decodeJson } from '../base/bytes.ts';
import { ShoalError, type ErrorCode } from '../base/errors.ts';
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

/** Limits of a wait for keys. */
export interface StoreWait {
  /** 0: the call looks once. Default: the store's. */
  readonly timeoutMs?: number;
  /** Ends the wait with `aborted`. */
  readonly signal?: AbortSignal;
}

/** Keys and values that all processes of a job share. Operations of one process apply in the order of its calls; `add` and `compareSet` are
 *  atomic over all. Keys have at most 1 KiB, values 16 MiB. Errors: `timeout` names what is missing and where, `peer-lost` the server that
 *  is gone, `closed`. */
export interface JobStore extends AsyncDisposable {
  /** Writes a value, also over another one; calls that wait for the key go on. */
  set(key: string, value: string | Uint8Array): Promise<void>;
  /** Writes all values, in this order. */
  multiSet(keys: readonly string[], values: readonly (string | Uint8Array)[]): Promise<void>;
  /** Adds bytes to the end of a value, which is empty when there is none. */
  append(key: string, value: string | Uint8Array): Promise<void>;
  /** Adds a value to the end of the queue of this name. A key is either a value or a queue. */
  queuePush(key: string, value: string | Uint8Array): Promise<void>;
  /** Takes the queue's first value, for which it waits; each value reaches one caller. With `timeoutMs: 0` it looks once. */
  queuePop(key: string, options?: StoreWait): Promise<Uint8Array>;
  /** Values in the queue; 0 when there is none. */
  queueLen(key: string): Promise<number>;
  /** Waits until there is such a key. */
  get(key: string, options?: StoreWait): Promise<Uint8Array>;
  /** Waits for all keys; their values in that order. */
  multiGet(keys: readonly string[], options?: StoreWait): Promise<Uint8Array[]>;
  /** Adds to the key's decimal number, which is 0 when there is none; the sum. */
  add(key: string, amount: number): Promise<number>;
  /** Waits until all these keys exist. */
  wait(keys: readonly string[], options?: StoreWait): Promise<void>;
  /** Stores `desired` when the value is `expected`, or when there is none and `expected` is empty. Resolves to the value there is now;
   *  without any, to `expected`. */
  compareSet(key: string, expected: string | Uint8Array, desired: string | Uint8Array): Promise<Uint8Array>;
  /** True when there was such a key. */
  deleteKey(key: string): Promise<boolean>;
  /** Keys in the whole store, those of other prefixes and of Shoal itself with them, as in c10d. */
  numKeys(): Promise<number>;
  /** The names of the keys, queues too, that begin with this store's prefix, without it. */
  listKeys(): Promise<string[]>;
  /** True when there are all these keys now. A queue is there as long as it holds a value. */
  check(keys: readonly string[]): Promise<boolean>;
  /** The part of this store whose keys begin with `name` and a slash: c10d's PrefixStore. */
  prefix(name: string): JobStore;
  /** Pending calls reject with `closed`. A prefix closes alone; the store of a group ends with its world. Idempotent. */
  close(): Promise<void>;
}

/** Operations that a table answers at once. */
export type ImmediateOperation =
  | { readonly op: 'set'; readonly key: string; readonly value: Uint8Array }
  | { readonly op: 'delete'; readonly key: string }
  | { readonly op: 'add'; readonly key: string; readonly amount: number }
  | { readonly op: 'check'; readonly keys: readonly string[] }
  | { readonly op: 'compareSet'; readonly key: string; readonly expected: Uint8Array; readonly desired: Uint8Array }
  | { readonly op: 'count' }
  | { readonly op: 'append'; readonly key: string; readonly value: Uint8Array }
  | { readonly op: 'queuePush'; readonly key: string; readonly value: Uint8Array }
  | { readonly op: 'queueLen'; readonly key: string }
  | { readonly op: 'listKeys'; readonly prefix: string };

/** Operations that wait for keys. */
export type WaitingOperation =
  | { readonly op: 'get'; readonly key: string }
  | { readonly op: 'wait'; readonly keys: readonly string[] }
  | { readonly op: 'multiGet'; readonly keys: readonly string[] }
  | { readonly op: 'queuePop'; readonly key: string };

export type StoreOperation = ImmediateOperation | WaitingOperation;

export type StoreResult =
  | { readonly kind: 'done' }
  | { readonly kind: 'bytes'; readonly bytes: Uint8Array }
  | { readonly kind: 'integer'; readonly integer: number }
  | { readonly kind: 'flag'; readonly flag: boolean }
  | { readonly kind: 'missing'; readonly keys: readonly string[] }
  | { readonly kind: 'error'; readonly code: ErrorCode; readonly message: string }
  | { readonly kind: 'list'; readonly values: readonly Uint8Array[] };

export function isImmediate(operation: StoreOperation): operation is ImmediateOperation {
  return !['get', 'multiGet', 'wait', 'queuePop'].includes(operation.op);
}

const waitOptions = optionTable<StoreWait>({ timeoutMs: anyNumber, signal: abortSignal });
const encoder = new TextEncoder();

/** A store, over a `start` of its own. */
export abstract class Store implements JobStore {
  /** Begins an operation, in the order of the calls. The bytes of the operation are nobody else's, those of the result may be.
   *  @throws (rejects) ShoalError; a result is of the kind that the operation has. */
  abstract start(operation: StoreOperation, wait?: StoreWait): Promise<StoreResult>;

  abstract close(): Promise<void>;

  async set(key: string, value: string | Uint8Array): Promise<void> {
    await this.start({ op: 'set', key: keyOf('set', key), value: bytesOf('set', value) });
  }

  async multiSet(keys: readonly string[], values: readonly (string | Uint8Array)[]): Promise<void> {
    checkedKeys('multiSet', keys);
    checkArgument('multiSet: values', values, anyList);
    if (keys.length !== values.length)
      throw new ShoalError('usage', `multiSet: as many values as keys are needed, not ${values.length} for ${keys.length}`);
    const writes = keys.map((key, place) => ({ op: 'set', key, value: bytesOf('multiSet', values[place]) }) as const);
    await Promise.all(writes.map((write) => this.start(write)));
  }

  async append(key: string, value: string | Uint8Array): Promise<void> {
    await this.start({ op: 'append', key: keyOf('append', key), value: bytesOf('append', value) });
  }

  async queuePush(key: string, value: string | Uint8Array): Promise<void> {
    await this.start({ op: 'queuePush', key: keyOf('queuePush', key), value: bytesOf('queuePush', value) });
  }

  async queuePop(key: string, options: StoreWait = noOptions): Promise<Uint8Array> {
    return expected('bytes', await this.start({ op: 'queuePop', key: keyOf('queuePop', key) }, checkedWait('queuePop', options))).bytes;
  }

  async queueLen(key: string): Promise<number> {
    return expected('integer', await this.start({ op: 'queueLen', key: keyOf('queueLen', key) })).integer;
  }

  async get(key: string, options: StoreWait = noOptions): Promise<Uint8Array> {
    return expected('bytes', await this.start({ op: 'get', key: keyOf('get', key) }, checkedWait('get', options))).bytes;
  }

  async multiGet(keys: readonly string[], options: StoreWait = noOptions): Promise<Uint8Array[]> {
    const operation = { op: 'multiGet', keys: checkedKeys('multiGet', keys) } as const;
    return [...expected('list', await this.start(operation, checkedWait('multiGet', options))).values];
  }

  async add(key: string, amount: number): Promise<number> {
    if (!Number.isSafeInteger(amount)) throw new ShoalError('usage', `add: amount must be a safe integer, not ${describeValue(amount)}`);
    return expected('integer', await this.start({ op: 'add', key: keyOf('add', key), amount })).integer;
  }

  async wait(keys: readonly string[], options: StoreWait = noOptions): Promise<void> {
    await this.start({ op: 'wait', keys: checkedKeys('wait', keys) }, checkedWait('wait', options));
  }

  async compareSet(key: string, expectedValue: string | Uint8Array, desiredValue: string | Uint8Array): Promise<Uint8Array> {
    const values = { expected: bytesOf('compareSet', expectedValue), desired: bytesOf('compareSet', desiredValue) };
    return expected('bytes', await this.start({ op: 'compareSet', key: keyOf('compareSet', key), ...values })).bytes;
  }

  async deleteKey(key: string): Promise<boolean> {
    return expected('flag', await this.start({ op: 'delete', key: keyOf('deleteKey', key) })).flag;
  }

  async numKeys(): Promise<number> {
    return expected('integer', await this.start({ op: 'count' })).integer;
  }

  async listKeys(): Promise<string[]> {
    const { bytes } = expected('bytes', await this.start({ op: 'listKeys', prefix: '' }));
    return decodeJson(bytes) as string[];
  }

  async check(keys: readonly string[]): Promise<boolean> {
    return expected('flag', await this.start({ op: 'check', keys: checkedKeys('check', keys) })).flag;
  }

  prefix(name: string): Store {
    checkArgument('prefix: name', name, anyText);
    if (name === '' || name.startsWith('/'))
      throw new ShoalError('usage', `prefix: a name is needed that does not begin with '/', not '${name}'`);
    return new PrefixStore(this, name);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

/** A part of another store: every key gets a prefix, so that groups, worlds and restarts do not meet.
 *  `numKeys` is that of the whole store beneath, as in c10d. */
export class PrefixStore extends Store {
  readonly #store: Store;
  readonly #prefix: string;
  readonly #isOwner: boolean;
  readonly #closing = new AbortController();

  /** Keys become `prefix/key`. @param isOwner nobody else uses the store beneath, which closes with this one. */
  constructor(store: Store, prefix: string, isOwner = false) {
    super();
    this.#store = store;
    this.#prefix = `${prefix}/`;
    this.#isOwner = isOwner;
    // One listener per wait in flight, which the store beneath bounds.
    setMaxListeners(0, this.#closing.signal);
  }

  async start(operation: StoreOperation, wait: StoreWait = {}): Promise<StoreResult> {
    const closing = this.#closing.signal;
    const closed = (): ShoalError => closedStore(`store prefix '${this.#prefix}'`);
    if (closing.aborted) throw closed();
    const signal = wait.signal === undefined ? closing : AbortSignal.any([wait.signal, closing]);
    try {
      return await this.#store.start(this.#prefixed(operation), { ...wait, signal });
    } catch (error) {
      throw closing.aborted ? closed() : error;
    }
  }

  async close(): Promise<void> {
    this.#closing.abort();
    if (this.#isOwner) await this.#store.close();
  }

  #prefixed(operation: StoreOperation): StoreOperation {
    // The empty key and a leading '/' must fail here as they do without a prefix, so they are passed on as they are.
    const full = (key: string): string => (key === '' || key.startsWith('/') ? key : this.#prefix + key);
    if ('key' in operation) return { ...operation, key: full(operation.key) };
    if ('prefix' in operation) return { ...operation, prefix: this.#prefix + operation.prefix };
    return 'keys' in operation ? { ...operation, keys: operation.keys.map(full) } : operation;
  }
}

export function closedStore(name: string): ShoalError {
  return new ShoalError('closed', `${name} is closed`);
}

/** A result with bytes of its own. */
export function owned(result: StoreResult): StoreResult {
  if (result.kind === 'bytes') return { kind: 'bytes', bytes: new Uint8Array(result.bytes) };
  return result.kind === 'list' ? { kind: 'list', values: result.values.map((value) => new Uint8Array(value)) } : result;
}

/** @throws ShoalError `protocol` for a result of another kind. */
function expected<K extends StoreResult['kind']>(kind: K, result: StoreResult): Extract<StoreResult, { kind: K }> {
  if (result.kind !== kind) throw new ShoalError('protocol', `the store answered '${result.kind}' to another kind of operation`);
  return owned(result) as Extract<StoreResult, { kind: K }>;
}

/** A copy: a store keeps values after the call. */
function bytesOf(call: string, value: string | Uint8Array): Uint8Array {
  if (typeof value === 'string') return encoder.encode(value);
  if (value instanceof Uint8Array) return new Uint8Array(value);
  throw new ShoalError('usage', `${call}: a value is text or a Uint8Array, not ${describeValue(value)}`);
}

function keyOf(call: string, key: string): string {
  checkArgument(`${call}: key`, key, anyText);
  return key;
}

function checkedKeys(call: string, keys: readonly string[]): readonly string[] {
  checkArgument(`${call}: keys`, keys, anyList);
  return keys.map((key) => keyOf(call, key));
}

function checkedWait(call: string, options: StoreWait): StoreWait {
  checkOptions(call, options, waitOptions);
  const { timeoutMs } = options;
  if (timeoutMs !== undefined && !(timeoutMs >= 0))
    throw new ShoalError('usage', `${call}: timeoutMs must be a number from 0, not ${timeoutMs}`);
  return options;
}
