/** The store that programs have, of every kind: it checks the arguments of calls and hands operations to a backend, which compares them
 *  with its parameters. */
import { ShoalError } from '../../base/errors.ts';
import {
  anyList,
  anyNumber,
  anyObject,
  anyText,
  anything,
  callback,
  checkArgument,
  checkFields,
  checkNoOptions,
  checkOptions,
  describeValue,
  noOptions,
  optionTable,
} from '../../base/schema.ts';
import type { DType, TypedArray } from '../../memory/dtype.ts';
import type { Tensor } from '../../memory/tensor.ts';
import type { CompressionSpec } from '../../ps/compression/codec.ts';
import type { OptimizerSpec } from '../../ps/optimizers/optimizer.ts';
import { copyOf, elementsOf, firstValues, keysOf, listsPerKey, nameOf } from './values-argument.ts';
import type { Backend, ServerStore, Transfer, TransferLists } from './operation.ts';
import { copyOfCall, RepeatedCalls, type TransferCall } from './repeated-calls.ts';
import type {
  Key,
  KVStore,
  KVStoreType,
  KVWork,
  RowSparse,
  RowSparsePullOptions,
  TransferOptions,
  Updater,
  Value,
  Values,
} from './types.ts';
import type { KeylessInfo, ParameterInfo } from '../../ps/client/client-options.ts';
import type { Blob } from '../../ps/values/blob-box.ts';

const initOptions = optionTable<NonNullable<Parameters<KVStore['init']>[2]>>({ shape: anyList });
const transferOptions = optionTable<TransferOptions>({ priority: anyNumber, timeoutMs: anyNumber });
const rowSparseFields = optionTable<RowSparse>({ indices: anything, values: anything });
const rowSparsePullOptions = optionTable<RowSparsePullOptions>({ rowIds: anything, priority: anyNumber, timeoutMs: anyNumber });
const blobFields = optionTable<Blob>({ kind: anyText, name: anyText, values: anything });
const receiveOptions = optionTable<NonNullable<Parameters<KVStore['receiveBlob']>[2]>>({ timeoutMs: anyNumber });
const twoBitOptions = optionTable<Extract<CompressionSpec, { type: '2bit' }>>({ type: anyText, threshold: anyNumber });
const halfOptions = optionTable<Extract<CompressionSpec, { type: 'fp16' }>>({ type: anyText });

export class CheckedStore implements KVStore {
  readonly type: KVStoreType;
  readonly role: 'worker' | 'server';
  readonly rank: number;
  readonly numWorkers: number;
  readonly numServers: number;
  readonly workerGroup: number;
  readonly workersPerGroup: number;
  readonly #end: Backend | ServerStore;
  readonly #repeated = new RepeatedCalls<TransferLists>();
  #closing: Promise<void> | undefined;

  constructor(end: Backend | ServerStore) {
    const { type, role, rank, numWorkers, numServers, workerGroup, workersPerGroup } = end.place;
    this.#end = end;
    this.type = type;
    this.role = role;
    this.rank = rank;
    this.numWorkers = numWorkers;
    this.numServers = numServers;
    this.workerGroup = workerGroup;
    this.workersPerGroup = workersPerGroup;
  }

  /** The backend, or the server, behind a store of this class; undefined for anything else. @throws ShoalError `closed`. */
  static endOf(store: unknown): Backend | ServerStore | undefined {
    if (typeof store !== 'object' || store === null || !(#end in store)) return undefined;
    return 'served' in store.#end ? store.#end : store.#open();
  }

  tensor<D extends DType>(dtype: D, shape: readonly number[]): Tensor<D> {
    return this.#open().tensor(dtype, shape);
  }

  async init(keys: Key | readonly Key[], values: Values, options: { readonly shape?: readonly number[] } = noOptions): Promise<void> {
    checkOptions('init', options, initOptions);
    const backend = this.#open();
    const names = keysOf(keys);
    const firsts = firstValues(names, values);
    const entries = names.map((key, k) => ({ key, value: firsts[k], ...elementsOf(firsts[k], options.shape) }));
    await backend.ask({ type: 'init', entries });
  }

  push(keys: Key | readonly Key[], values: Values, options: TransferOptions = noOptions): KVWork {
    return this.#transfer('push', { keys, values, outs: undefined }, options);
  }

  pull(keys: Key | readonly Key[], outs: Values, options: TransferOptions = noOptions): KVWork {
    return this.#transfer('pull', { keys, values: undefined, outs }, options);
  }

  pushPull(keys: Key | readonly Key[], values: Values, outs?: Values, options: TransferOptions = noOptions): KVWork {
    if ((outs as unknown) === null)
      throw new ShoalError('usage', 'pushPull: outs is null; leave it out to get the values where they came from');
    return this.#transfer('pushPull', { keys, values, outs: outs ?? values }, options);
  }

  async broadcast(keys: Key | readonly Key[], values: Values, outs: Values, options: TransferOptions = noOptions): Promise<void> {
    checkTransfer('broadcast', options);
    await this.init(keys, values);
    await this.pull(keys, outs, options);
  }

  rowSparsePush(key: Key, rows: RowSparse, options: TransferOptions = noOptions): KVWork {
    checkFields('rowSparsePush', rows, rowSparseFields);
    checkRowIds('rowSparsePush: indices', rows.indices);
    checkTransfer('rowSparsePush', options);
    const { priority, timeoutMs } = options;
    const backend = this.#open();
    return backend.start({ type: 'rowSparsePush', key: nameOf(key), rows: rows.indices, value: rows.values, priority, timeoutMs });
  }

  rowSparsePull(key: Key, out: Value, options: RowSparsePullOptions): KVWork {
    checkFields('rowSparsePull', options, rowSparsePullOptions);
    checkRowIds('rowSparsePull: rowIds', options.rowIds);
    checkTimeout('rowSparsePull', options);
    const { rowIds: rows, priority, timeoutMs } = options;
    return this.#open().start({ type: 'rowSparsePull', key: nameOf(key), rows, value: out, priority, timeoutMs });
  }

  async barrier(...given: readonly unknown[]): Promise<void> {
    checkNoOptions('barrier', given);
    await this.#open().ask({ type: 'barrier' });
  }

  async setOptimizer(spec: OptimizerSpec): Promise<void> {
    checkArgument('setOptimizer: spec', spec, anyObject);
    checkArgument('setOptimizer: name', spec.name, anyText);
    await this.#lead('setOptimizer').ask({ type: 'optimizer', spec });
  }

  setUpdater(updater: Updater): void {
    checkArgument('setUpdater: updater', updater, callback);
    const backend = this.#open();
    if (this.#hasServers) {
      const message = `a ${this.type} store is updated on its servers; use setOptimizer, or a local or collective store`;
      throw new ShoalError('unsupported', message);
    }
    backend.set({ type: 'updater', updater });
  }

  setCredit(creditBytes: number): void {
    if (!Number.isSafeInteger(creditBytes) || creditBytes <= 0)
      throw new ShoalError('usage', `setCredit: the credit is a positive integer, not ${describeValue(creditBytes)}`);
    const backend = this.#open();
    if (!this.#hasServers) throw new ShoalError('unsupported', `setCredit: a ${this.type} store has no links to servers`);
    backend.set({ type: 'credit', creditBytes });
  }

  setGradientCompression(spec: CompressionSpec): void {
    checkArgument('setGradientCompression: spec', spec, anyObject);
    checkArgument('setGradientCompression: type', spec.type, anyText);
    if (spec.type === '2bit') checkOptions('setGradientCompression', spec, twoBitOptions);
    if (spec.type === 'fp16') checkOptions('setGradientCompression', spec, halfOptions);
    this.#open().set({ type: 'compression', spec });
  }

  async saveState(folder: string): Promise<void> {
    checkArgument('saveState: folder', folder, anyText);
    await this.#lead('saveState').ask({ type: 'state', direction: 'save', folder });
  }

  async loadState(folder: string): Promise<void> {
    checkArgument('loadState: folder', folder, anyText);
    await this.#lead('loadState').ask({ type: 'state', direction: 'load', folder });
  }

  async info(key: Key): Promise<ParameterInfo> {
    const backend = this.#open();
    const name = nameOf(key);
    return { key: name, ...((await backend.ask({ type: 'info', key: name })) as KeylessInfo) };
  }

  async sendBlob(worker: number, blob: Blob): Promise<void> {
    checkFields('sendBlob', blob, blobFields);
    const { kind, name } = blob;
    checkArgument('sendBlob: name', name, anyText);
    if (kind !== 'feature' && kind !== 'gradient')
      throw new ShoalError('usage', `sendBlob: kind must be 'feature' or 'gradient', not ${describeValue(kind)}`);
    const backend = this.#with(worker);
    const { dtype, data } = elementsOf(blob.values);
    await backend.ask({ type: 'send-blob', worker, blob: { kind, name, dtype, values: copyOf(dtype, data) } });
  }

  async receiveBlob(worker: number, name: string, options: { readonly timeoutMs?: number } = noOptions): Promise<TypedArray> {
    checkArgument('receiveBlob: name', name, anyText);
    checkOptions('receiveBlob', options, receiveOptions);
    checkTimeout('receiveBlob', options);
    const { timeoutMs = this.#end.place.timeoutMs } = options;
    return (await this.#with(worker).ask({ type: 'receive-blob', worker, name, timeoutMs })) as TypedArray;
  }

  onBlob(worker: number, name: string, onValues: (values: TypedArray) => void): void {
    checkArgument('onBlob: name', name, anyText);
    checkArgument('onBlob: onValues', onValues, callback);
    const backend = this.#with(worker);
    if (!this.#hasServers) throw new ShoalError('unsupported', `onBlob: a ${this.type} store has receiveBlob alone`);
    backend.set({ type: 'listen', worker, name, onValues });
  }

  async served(...given: readonly unknown[]): Promise<void> {
    checkNoOptions('served', given);
    if (!('served' in this.#end)) throw new ShoalError('usage', 'served is for servers; this process is a worker');
    await this.#end.served();
  }

  async close(...given: readonly unknown[]): Promise<void> {
    checkNoOptions('close', given);
    return this.end();
  }

  /** Does what `close` does, for `await using`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** Ends the store, once; every call returns the same promise. `mode` is for stores that are scheduled: whether what waits is done
   *  first. */
  protected end(mode?: 'drain' | 'abort'): Promise<void> {
    this.#closing ??= this.#end.close(mode);
    return this.#closing;
  }

  #transfer(type: Transfer['type'], call: TransferCall, options: TransferOptions): KVWork {
    checkTransfer(type, options);
    const backend = this.#open();
    const { priority, timeoutMs } = options;
    return backend.start({ type, lists: this.#listsOf(type, call), priority, timeoutMs });
  }

  #listsOf(type: Transfer['type'], given: TransferCall): TransferLists {
    const known = this.#repeated.find(given);
    if (known !== undefined) return known;
    const recurs = this.#repeated.accepts(given);
    const call = recurs ? copyOfCall(given) : given;
    const keys = keysOf(call.keys);
    const values = type === 'pull' ? undefined : listsPerKey(keys, call.values as Values, 'value');
    const isInPlace = type === 'pushPull' && call.outs === call.values;
    const outs = type === 'push' ? undefined : isInPlace ? values : listsPerKey(keys, call.outs as Values, 'output');
    const lists = { keys, values, outs, recurs };
    if (recurs) this.#repeated.remember(call, lists);
    return lists;
  }

  get #hasServers(): boolean {
    return this.type === 'dist_sync' || this.type === 'dist_async';
  }

  /** @throws ShoalError `usage` on servers, `closed`. */
  #open(): Backend {
    const end = this.#end;
    if ('served' in end) throw serverRefusal();
    if (this.#closing !== undefined) throw new ShoalError('closed', 'the store was closed');
    return end;
  }

  /** @throws ShoalError `usage` on other workers than 0. */
  #lead(call: string): Backend {
    const backend = this.#open();
    if (this.rank !== 0) throw new ShoalError('usage', `worker ${this.rank} called ${call}; worker 0 calls it, for all`);
    return backend;
  }

  /** @throws ShoalError `usage` when there is no such worker. */
  #with(worker: number): Backend {
    const backend = this.#open();
    if (Number.isInteger(worker) && worker >= 0 && worker < this.numWorkers) return backend;
    throw new ShoalError('usage', `there is no worker ${worker}; workers are 0…${this.numWorkers - 1}`);
  }
}

export function serverRefusal(): ShoalError {
  return new ShoalError('usage', 'this process is a server (kv.role); only workers use parameters. Await kv.served() here');
}

function checkTransfer(call: string, options: TransferOptions): void {
  checkOptions(call, options, transferOptions);
  checkTimeout(call, options);
}

function checkTimeout(call: string, { timeoutMs }: { readonly timeoutMs?: number }): void {
  if (timeoutMs !== undefined && !(timeoutMs > 0)) throw new ShoalError('usage', `${call}: timeoutMs must be positive, not ${timeoutMs}`);
}

function checkRowIds(role: string, rows: unknown): void {
  if (rows instanceof Uint32Array || rows instanceof Int32Array) return;
  throw new ShoalError('usage', `${role} must be a Uint32Array or an Int32Array, not ${describeValue(rows)}`);
}
