/** The store of a worker whose parameters lie on servers: checks arguments, puts values where servers reach them, and hands
 *  operations to the stub thread. It must not know servers, slices or rounds.
 *
 *      tensor of this store    reached in place
 *      any other array         staged: one copy into memory of this store, one back
 *      push                    always a copy, so that the caller may go on at once */
import { ShoalError } from '../base/errors.ts';
import type { PendingWork } from '../group/work.ts';
import { dtypeInfo, type DType, type TypedArray } from '../memory/dtype.ts';
import { balancedTree, type Kernels } from '../memory/kernels.ts';
import { countOf, Tensor } from '../memory/tensor.ts';
import { createCodec } from './compression/registry.ts';
import type { CompressionSpec } from './compression/codec.ts';
import type { OptimizerSpec } from './optimizers/optimizer.ts';
import { createOptimizer } from './optimizers/registry.ts';
import type { ParameterKernels } from '../memory/parameter-kernels.ts';
import type { ProcessValues } from './process-values.ts';
import type { StubChannel } from './stub-channel.ts';
import type { BatchEntry, WorkerInfo } from './stub-protocol.ts';
import type { InitEntry, StubParameterInfo } from './stub-options.ts';
import { workerCount } from './topology.ts';
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
import type { ValueBlock, ValueRef } from './value-space.ts';
import { elementsOf, keysOf, outsPerKey, rowIdsOf, valuesPerKey, type NamedParameter } from './values-argument.ts';

export interface DistStoreOptions {
  readonly type: KVStoreType;
  readonly info: WorkerInfo;
  readonly channel: StubChannel;
  readonly values: ProcessValues;
  readonly kernels: Kernels;
  readonly parameterKernels: ParameterKernels;
  /** Ends what the store of this thread has started. */
  readonly onClosed: () => Promise<void>;
}

/** A call that is repeated with the same lists is known to the stub by a number. */
interface Batch {
  readonly number: number;
  readonly keys: readonly Key[];
  readonly pushes: readonly Value[];
  readonly outs: readonly Value[];
}

const batchesMax = 16;

export class DistStore implements KVStore {
  readonly type: KVStoreType;
  readonly role = 'worker';
  readonly rank: number;
  readonly numWorkers: number;
  readonly numServers: number;
  readonly workerGroup: number;
  readonly workersPerGroup: number;
  readonly #options: DistStoreOptions;
  readonly #channel: StubChannel;
  readonly #values: ProcessValues;
  readonly #parameters = new Map<string, NamedParameter>();
  #batches: Batch[] = [];
  #compresses = false;
  #nextBatch = 1;
  #closing: Promise<void> | undefined;

  constructor(options: DistStoreOptions) {
    const { worker, workerGroup, topology } = options.info;
    this.type = options.type;
    this.rank = worker;
    this.numWorkers = workerCount(topology);
    this.numServers = topology.serverGroups * topology.serversPerGroup;
    this.workerGroup = workerGroup;
    this.workersPerGroup = topology.workersPerGroup;
    this.#options = options;
    this.#channel = options.channel;
    this.#values = options.values;
  }

  tensor<D extends DType>(dtype: D, shape: readonly number[]): Tensor<D> {
    this.#checkOpen();
    const { ref } = this.#values.allocate(Math.max(1, countOf(shape)) * dtypeInfo(dtype).bytes);
    return new Tensor(dtype, shape, this.#values.regionOf(ref.region), ref.offset);
  }

  async init(keys: Key | readonly Key[], values: Values, options: { readonly shape?: readonly number[] } = {}): Promise<void> {
    this.#checkOpen();
    const names = keysOf(keys);
    const lists = valuesPerKey(names, values);
    const staged: ValueBlock[] = [];
    const entries = names.map((key, index): InitEntry => {
      if (this.#parameters.has(key)) throw new ShoalError('usage', `parameter '${key}' exists already; init names a parameter once`);
      const { dtype, shape, data } = elementsOf(lists[index][0], options.shape);
      return { key, dtype, shape, value: this.#refOf(lists[index][0], data, staged) };
    });
    try {
      await this.#channel.start({ type: 'init', entries }, `init of ${listed(names)}`);
      for (const { key, dtype, shape } of entries) this.#parameters.set(key, { key, dtype, shape, count: countOf(shape) });
    } finally {
      for (const block of staged) block.free();
    }
  }

  push(keys: Key | readonly Key[], values: Values, options: TransferOptions = {}): KVWork {
    this.#checkOpen();
    const names = keysOf(keys);
    const lists = valuesPerKey(names, values);
    const staged: ValueBlock[] = [];
    const entries = names.map((key, index): BatchEntry => {
      const parameter = this.#parameter(key);
      return { key, push: this.#copyOf(parameter, lists[index], staged), ...this.#encoding(parameter) };
    });
    return this.#transfer(entries, { ...options, what: `push of ${listed(names)}`, onSettled: () => free(staged) });
  }

  pull(keys: Key | readonly Key[], outs: Value | readonly Value[], options: TransferOptions = {}): KVWork {
    this.#checkOpen();
    const names = keysOf(keys);
    const staged: ValueBlock[] = [];
    const copies: (() => void)[] = [];
    const targets = outsPerKey(names, outs);
    const entries = names.map((key, index) => ({ key, out: this.#outOf(this.#parameter(key), targets[index], { staged, copies }) }));
    return this.#transfer(entries, {
      ...options,
      what: `pull of ${listed(names)}`,
      onSuccess: () => copies.forEach((copy) => copy()),
      onSettled: () => free(staged),
    });
  }

  pushPull(keys: Key | readonly Key[], values: Values, outs?: Value | readonly Value[], options: TransferOptions = {}): KVWork {
    this.#checkOpen();
    const repeated = this.#repeated(keys, values, outs);
    if (repeated !== undefined)
      return this.#transfer(repeated, { ...options, what: `pushPull of ${(keys as readonly Key[]).length} keys` });
    const names = keysOf(keys);
    const lists = valuesPerKey(names, values);
    const targets = outs === undefined ? lists.map((list) => list[0]) : outsPerKey(names, outs);
    const staged: ValueBlock[] = [];
    const copies: (() => void)[] = [];
    const entries = names.map((key, index): BatchEntry => {
      const parameter = this.#parameter(key);
      const list = lists[index];
      const [first] = list as [Value];
      const push = list.length === 1 ? this.#refOf(first, this.#checked(parameter, first), staged) : this.#copyOf(parameter, list, staged);
      const target = targets[index];
      const own = this.#ownRef(target);
      // A staged value that is its own result comes back where it went in.
      if (own === undefined && target === first && list.length === 1) {
        const block = staged.at(-1)!;
        const data = bytesOf(this.#checked(parameter, target));
        copies.push(() => data.set(block.view));
        return { key, push, out: push, ...this.#encoding(parameter) };
      }
      return { key, push, out: this.#outOf(parameter, target, { staged, copies }), ...this.#encoding(parameter) };
    });
    if (staged.length === 0 && Array.isArray(keys)) this.#remember(keys as readonly Key[], values, outs, entries);
    return this.#transfer(entries, {
      ...options,
      what: `pushPull of ${listed(names)}`,
      onSuccess: () => copies.forEach((copy) => copy()),
      onSettled: () => free(staged),
    });
  }

  async broadcast(
    keys: Key | readonly Key[],
    values: Values,
    outs: Value | readonly Value[],
    options: TransferOptions = {},
  ): Promise<void> {
    await this.init(keys, values);
    await this.pull(keys, outs, options);
  }

  rowSparsePush(key: Key, { indices, values }: RowSparse, options: TransferOptions = {}): KVWork {
    this.#checkOpen();
    const parameter = this.#parameter(String(key));
    const rows = rowIdsOf(parameter, indices, { ascending: true });
    const { data } = elementsOf(values);
    this.#checkRows(parameter, data, rows);
    const block = this.#values.allocate(Math.max(1, data.byteLength));
    block.view.set(bytesOf(data));
    return this.#rows('push', { key: parameter.key, rows, ref: block.ref, options, onSettled: () => block.free() });
  }

  rowSparsePull(key: Key, out: Value, { rowIds, ...options }: RowSparsePullOptions): KVWork {
    this.#checkOpen();
    const parameter = this.#parameter(String(key));
    const rows = rowIdsOf(parameter, rowIds, { ascending: false });
    const { data } = elementsOf(out);
    this.#checkRows(parameter, data, rows);
    const own = this.#ownRef(out);
    if (own !== undefined) return this.#rows('pull', { key: parameter.key, rows, ref: own, options });
    const block = this.#values.allocate(Math.max(1, data.byteLength));
    const onSuccess = (): void => bytesOf(data).set(block.view);
    return this.#rows('pull', { key: parameter.key, rows, ref: block.ref, options, onSuccess, onSettled: () => block.free() });
  }

  async barrier(): Promise<void> {
    this.#checkOpen();
    await this.#channel.start({ type: 'barrier' }, 'barrier');
  }

  async setOptimizer(spec: OptimizerSpec): Promise<void> {
    this.#checkOpen();
    this.#checkLeader('setOptimizer');
    // Refused here, before any server hears of it.
    createOptimizer(spec, this.#options.parameterKernels);
    await this.#channel.start({ type: 'optimizer', spec }, 'setOptimizer');
  }

  setUpdater(updater: Updater): void {
    void updater;
    throw new ShoalError('unsupported', `a ${this.type} store is updated on its servers; use setOptimizer, or a local or collective store`);
  }

  setGradientCompression(spec: CompressionSpec): void {
    this.#checkOpen();
    createCodec(spec, this.#options.parameterKernels);
    for (const { number } of this.#batches.splice(0)) this.#channel.post({ type: 'forget-batch', batch: number });
    this.#channel.post({ type: 'compression', spec });
    this.#compresses = true;
  }

  async saveState(folder: string): Promise<void> {
    this.#checkOpen();
    this.#checkLeader('saveState');
    await this.#channel.start({ type: 'state', direction: 'save', folder }, `saveState to ${folder}`);
  }

  async loadState(folder: string): Promise<void> {
    this.#checkOpen();
    this.#checkLeader('loadState');
    await this.#channel.start({ type: 'state', direction: 'load', folder }, `loadState from ${folder}`);
  }

  async info(key: Key): Promise<ParameterInfo> {
    this.#checkOpen();
    const name = String(key);
    let found: StubParameterInfo | undefined;
    await this.#channel.start({ type: 'info', key: name }, `info of '${name}'`, {
      onSuccess: (answer) => {
        found = answer as StubParameterInfo;
      },
    });
    return { key: name, ...found! };
  }

  async sendBlob(worker: number, blob: Blob): Promise<void> {
    this.#checkOpen();
    this.#checkWorker(worker);
    const { kind, name } = blob;
    const { dtype, data } = elementsOf(blob.values);
    // A copy of its own, also when the array is a part of something larger: what is posted is cloned whole.
    const values = data.slice();
    await this.#channel.start({ type: 'send-blob', worker, blob: { kind, name, dtype, values } }, `sendBlob '${name}' to worker ${worker}`);
  }

  async receiveBlob(worker: number, name: string, options: { readonly timeoutMs?: number } = {}): Promise<TypedArray> {
    this.#checkOpen();
    this.#checkWorker(worker);
    const { timeoutMs = 300_000 } = options;
    let values: TypedArray | undefined;
    await this.#channel.start({ type: 'receive-blob', worker, name, timeoutMs }, `receiveBlob '${name}' from worker ${worker}`, {
      onSuccess: (answer) => {
        values = answer as TypedArray;
      },
    });
    return values!;
  }

  served(): Promise<void> {
    return Promise.reject(new ShoalError('usage', 'served is for servers; this process is a worker'));
  }

  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  async #close(): Promise<void> {
    try {
      await this.#channel.start({ type: 'close' }, 'closing the store');
    } finally {
      this.#channel.fail(new ShoalError('closed', 'the store was closed'));
      this.#channel.close();
      await this.#options.onClosed();
    }
  }

  // ── values ─────────────────────────────────────────────────────────────────────────────────────────────────────

  /** Of a tensor of this store. */
  #ownRef(value: Value): ValueRef | undefined {
    if (!(value instanceof Tensor) || !this.#values.owns(value.region)) return undefined;
    return this.#values.refOf(value.region, value.byteOffset, value.bytes);
  }

  /** In place where possible, else staged. */
  #refOf(value: Value, data: TypedArray, staged: ValueBlock[]): ValueRef {
    const own = this.#ownRef(value);
    if (own !== undefined) return own;
    const block = this.#values.allocate(data.byteLength);
    block.view.set(bytesOf(data));
    staged.push(block);
    return block.ref;
  }

  /** A copy of the sum of a list. */
  #copyOf(parameter: NamedParameter, list: readonly Value[], staged: ValueBlock[]): ValueRef {
    const sources = list.map((value) => bytesOf(this.#checked(parameter, value)));
    const block = this.#values.allocate(sources[0].byteLength);
    staged.push(block);
    const { kernels } = this.#options;
    if (sources.length === 1) kernels.copy(block.view, sources[0]);
    else kernels.reduce(parameter.dtype, 'sum', [block.view], sources, balancedTree(sources.length));
    return block.ref;
  }

  #outOf(parameter: NamedParameter, out: Value, { staged, copies }: { staged: ValueBlock[]; copies: (() => void)[] }): ValueRef {
    const data = bytesOf(this.#checked(parameter, out));
    const own = this.#ownRef(out);
    if (own !== undefined) return own;
    const block = this.#values.allocate(data.byteLength);
    staged.push(block);
    copies.push(() => data.set(block.view));
    return block.ref;
  }

  #encoding({ dtype }: NamedParameter): Pick<BatchEntry, 'encoding'> {
    return this.#compresses && dtype === 'float32' ? { encoding: 'compressed' } : {};
  }

  #parameter(key: string): NamedParameter {
    const parameter = this.#parameters.get(key);
    if (parameter !== undefined) return parameter;
    throw new ShoalError('usage', `there is no parameter '${key}'; every worker calls init (or broadcast) for it first`);
  }

  /** The elements of a value that fits the parameter. */
  #checked({ key, dtype, shape, count }: NamedParameter, value: Value): TypedArray {
    const { dtype: given, data } = elementsOf(value, undefined, dtype);
    if (given === dtype && data.length === count) return data;
    throw new ShoalError(
      'mismatch',
      `parameter '${key}' is ${dtype}[${shape.join(', ')}], the value is ${given} with ${data.length} elements`,
    );
  }

  #checkRows({ key, dtype, shape }: NamedParameter, data: TypedArray, rows: Uint32Array): void {
    const width = countOf(shape.slice(1));
    if (data.length === rows.length * width) return;
    throw new ShoalError(
      'mismatch',
      `${rows.length} rows of '${key}' are ${rows.length * width} elements of ${dtype}, the values are ${data.length}`,
    );
  }

  // ── operations ─────────────────────────────────────────────────────────────────────────────────────────────────

  #transfer(
    entries: readonly BatchEntry[] | number,
    call: TransferOptions & { what: string; onSuccess?: () => void; onSettled?: () => void },
  ): PendingWork {
    const { priority = 0, timeoutMs, what, onSuccess, onSettled } = call;
    return this.#channel.start({ type: 'transfer', entries, priority, timeoutMs }, what, {
      ...(onSuccess === undefined ? {} : { onSuccess }),
      ...(onSettled === undefined ? {} : { onSettled }),
    });
  }

  #rows(
    direction: 'push' | 'pull',
    call: { key: string; rows: Uint32Array; ref: ValueRef; options: TransferOptions; onSuccess?: () => void; onSettled?: () => void },
  ): PendingWork {
    const { key, rows, ref, options, onSuccess, onSettled } = call;
    const { priority = 0, timeoutMs } = options;
    const request = { key, rows, values: ref, priority, ...(timeoutMs === undefined ? {} : { timeoutMs }) };
    const what = `rowSparse${direction === 'push' ? 'Push' : 'Pull'} of '${key}'`;
    return this.#channel.start({ type: 'rows', direction, request }, what, {
      ...(onSuccess === undefined ? {} : { onSuccess }),
      ...(onSettled === undefined ? {} : { onSettled }),
    });
  }

  /** The number of a call with these very lists, all of whose values are reached in place. */
  #repeated(keys: Key | readonly Key[], values: Values, outs: Value | readonly Value[] | undefined): number | undefined {
    if (!Array.isArray(keys) || !Array.isArray(values)) return undefined;
    const targets = (outs ?? values) as readonly Value[];
    return this.#batches.find((batch) => same(batch.keys, keys) && same(batch.pushes, values) && same(batch.outs, targets))?.number;
  }

  #remember(keys: readonly Key[], values: Values, outs: Value | readonly Value[] | undefined, entries: readonly BatchEntry[]): void {
    const number = this.#nextBatch++;
    const pushes = [...(values as readonly Value[])];
    this.#batches.unshift({ number, keys: [...keys], pushes, outs: outs === undefined ? pushes : [...(outs as readonly Value[])] });
    this.#channel.post({ type: 'batch', batch: number, entries });
    const oldest = this.#batches.length > batchesMax ? this.#batches.pop() : undefined;
    if (oldest !== undefined) this.#channel.post({ type: 'forget-batch', batch: oldest.number });
  }

  #checkOpen(): void {
    if (this.#closing !== undefined) throw new ShoalError('closed', 'the store was closed');
  }

  #checkLeader(call: string): void {
    if (this.rank !== 0) throw new ShoalError('usage', `worker ${this.rank} called ${call}; worker 0 calls it, for all`);
  }

  #checkWorker(worker: number): void {
    if (Number.isInteger(worker) && worker >= 0 && worker < this.numWorkers) return;
    throw new ShoalError('usage', `there is no worker ${worker}; workers are 0…${this.numWorkers - 1}`);
  }
}

function bytesOf(data: TypedArray): Uint8Array {
  return new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
}

function free(blocks: readonly ValueBlock[]): void {
  for (const block of blocks) block.free();
}

function same<T>(a: readonly T[], b: readonly T[]): boolean {
  if (a.length !== b.length) return false;
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return false;
  return true;
}

/** `'a', 'b'`, `'a', 'b', 'c' and 7 more`. */
function listed(keys: readonly string[]): string {
  const shown = keys.slice(0, 3).map((key) => `'${key}'`);
  return keys.length > 3 ? `${shown.join(', ')} and ${keys.length - 3} more` : shown.join(', ');
}
