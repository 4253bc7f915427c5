/** Checks the arguments of calls before any store sees them: the same for every kind of store. The store itself checks them against its
 *  parameters. */
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
import type { CompressionSpec } from '../compression/codec.ts';
import type { OptimizerSpec } from '../optimizers/optimizer.ts';
import type {
  Blob,
  Key,
  KVStore,
  KVStoreType,
  KVWork,
  ParameterInfo,
  RowSparse,
  RowSparsePullOptions,
  TransferOptions,
  Updater,
  Value,
  Values,
} from './types.ts';

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
  readonly #store: KVStore;

  constructor(store: KVStore) {
    this.#store = store;
    this.type = store.type;
    this.role = store.role;
    this.rank = store.rank;
    this.numWorkers = store.numWorkers;
    this.numServers = store.numServers;
    this.workerGroup = store.workerGroup;
    this.workersPerGroup = store.workersPerGroup;
  }

  tensor<D extends DType>(dtype: D, shape: readonly number[]): Tensor<D> {
    return this.#store.tensor(dtype, shape);
  }

  async init(keys: Key | readonly Key[], values: Values, options: { readonly shape?: readonly number[] } = noOptions): Promise<void> {
    checkOptions('init', options, initOptions);
    return this.#store.init(keys, values, options);
  }

  push(keys: Key | readonly Key[], values: Values, options: TransferOptions = noOptions): KVWork {
    checkTransfer('push', options);
    return this.#store.push(keys, values, options);
  }

  pull(keys: Key | readonly Key[], outs: Values, options: TransferOptions = noOptions): KVWork {
    checkTransfer('pull', options);
    return this.#store.pull(keys, outs, options);
  }

  pushPull(keys: Key | readonly Key[], values: Values, outs?: Values, options: TransferOptions = noOptions): KVWork {
    checkTransfer('pushPull', options);
    if ((outs as unknown) === null)
      throw new ShoalError('usage', 'pushPull: outs is null; leave it out to get the values where they came from');
    return this.#store.pushPull(keys, values, outs, options);
  }

  async broadcast(keys: Key | readonly Key[], values: Values, outs: Values, options: TransferOptions = noOptions): Promise<void> {
    checkTransfer('broadcast', options);
    return this.#store.broadcast(keys, values, outs, options);
  }

  rowSparsePush(key: Key, rows: RowSparse, options: TransferOptions = noOptions): KVWork {
    checkFields('rowSparsePush', rows, rowSparseFields);
    checkRowIds('rowSparsePush: indices', rows.indices);
    checkTransfer('rowSparsePush', options);
    return this.#store.rowSparsePush(key, rows, options);
  }

  rowSparsePull(key: Key, out: Value, options: RowSparsePullOptions): KVWork {
    checkFields('rowSparsePull', options, rowSparsePullOptions);
    checkRowIds('rowSparsePull: rowIds', options.rowIds);
    checkTimeout('rowSparsePull', options);
    return this.#store.rowSparsePull(key, out, options);
  }

  async barrier(...given: readonly unknown[]): Promise<void> {
    checkNoOptions('barrier', given);
    return this.#store.barrier();
  }

  async setOptimizer(spec: OptimizerSpec): Promise<void> {
    checkArgument('setOptimizer: spec', spec, anyObject);
    checkArgument('setOptimizer: name', spec.name, anyText);
    return this.#store.setOptimizer(spec);
  }

  setUpdater(updater: Updater): void {
    checkArgument('setUpdater: updater', updater, callback);
    this.#store.setUpdater(updater);
  }

  setCredit(creditBytes: number): void {
    if (!Number.isSafeInteger(creditBytes) || creditBytes <= 0)
      throw new ShoalError('usage', `setCredit: the credit is a positive integer, not ${describeValue(creditBytes)}`);
    if (this.#store.setCredit === undefined)
      throw new ShoalError('unsupported', `setCredit: a ${this.#store.type} store has no links to servers`);
    this.#store.setCredit(creditBytes);
  }

  setGradientCompression(spec: CompressionSpec): void {
    checkArgument('setGradientCompression: spec', spec, anyObject);
    checkArgument('setGradientCompression: type', spec.type, anyText);
    if (spec.type === '2bit') checkOptions('setGradientCompression', spec, twoBitOptions);
    if (spec.type === 'fp16') checkOptions('setGradientCompression', spec, halfOptions);
    this.#store.setGradientCompression(spec);
  }

  async saveState(folder: string): Promise<void> {
    checkArgument('saveState: folder', folder, anyText);
    return this.#store.saveState(folder);
  }

  async loadState(folder: string): Promise<void> {
    checkArgument('loadState: folder', folder, anyText);
    return this.#store.loadState(folder);
  }

  async info(key: Key): Promise<ParameterInfo> {
    return this.#store.info(key);
  }

  async sendBlob(worker: number, blob: Blob): Promise<void> {
    checkFields('sendBlob', blob, blobFields);
    checkArgument('sendBlob: name', blob.name, anyText);
    if (blob.kind !== 'feature' && blob.kind !== 'gradient')
      throw new ShoalError('usage', `sendBlob: kind must be 'feature' or 'gradient', not ${describeValue(blob.kind)}`);
    return this.#store.sendBlob(worker, blob);
  }

  async receiveBlob(worker: number, name: string, options: { readonly timeoutMs?: number } = noOptions): Promise<TypedArray> {
    checkArgument('receiveBlob: name', name, anyText);
    checkOptions('receiveBlob', options, receiveOptions);
    checkTimeout('receiveBlob', options);
    return this.#store.receiveBlob(worker, name, options);
  }

  onBlob(worker: number, name: string, onValues: (values: TypedArray) => void): void {
    checkArgument('onBlob: name', name, anyText);
    checkArgument('onBlob: onValues', onValues, callback);
    if (this.#store.onBlob === undefined) throw new ShoalError('unsupported', `onBlob: a ${this.#store.type} store has receiveBlob alone`);
    this.#store.onBlob(worker, name, onValues);
  }

  async served(...given: readonly unknown[]): Promise<void> {
    checkNoOptions('served', given);
    return this.#store.served();
  }

  async close(...given: readonly unknown[]): Promise<void> {
    checkNoOptions('close', given);
    return this.#store.close();
  }

  /** As `close`, for `await using`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
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
