/** The store of a worker whose parameters lie on servers: checks arguments, puts values where servers reach them, and hands
 *  operations to the client. It must not know servers, slices or rounds.
 *
 *      tensor of this store    reached in place
 *      any other array         staged: one copy into memory of this store, one back
 *      push                    always a copy, so that the caller may go on at once */
import { ShoalError } from '../../base/errors.ts';
import type { PendingWork, WorkHooks } from '../../comm/caller/work.ts';
import { dtypeInfo, type DType, type TypedArray } from '../../memory/dtype.ts';
import { balancedTree, type Kernels } from '../../memory/kernels.ts';
import { countOf, Tensor } from '../../memory/tensor.ts';
import { createCodec } from '../compression/registry.ts';
import type { CompressionSpec } from '../compression/codec.ts';
import type { OptimizerSpec } from '../optimizers/optimizer.ts';
import { createOptimizer } from '../optimizers/registry.ts';
import type { ParameterKernels } from '../../memory/parameter-kernels.ts';
import type { ProcessValues } from '../protocol/process-values.ts';
import { StagedValues } from './staged-values.ts';
import type { BatchEntry, ClientChannel, WorkerInfo } from '../client/protocol.ts';
import { RepeatedCalls, type TransferCall } from '../values/repeated-calls.ts';
import type { InitEntry, ClientParameterInfo } from '../client/options.ts';
import { workerCount } from '../protocol/topology.ts';
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
} from '../values/types.ts';
import type { ValueRef } from '../protocol/value-space.ts';
import {
  bytesOf,
  copyOf,
  elementsOf,
  firstValues,
  fittingElements,
  fittingRows,
  keysOf,
  listedKeys,
  nameOf,
  outsPerKey,
  rowIdsOf,
  valuesPerKey,
  type NamedParameter,
} from '../values/values-argument.ts';
import { WorkerStore } from '../values/worker-store.ts';

export interface DistStoreOptions {
  readonly type: KVStoreType;
  readonly info: WorkerInfo;
  readonly channel: ClientChannel;
  readonly values: ProcessValues;
  readonly kernels: Kernels;
  readonly parameterKernels: ParameterKernels;
  /** For calls that name no timeout. */
  readonly timeoutMs: number;
}

/** Whoever listens for blobs waits as long as the store is open. */
const blobsMs = 0x7fffffff;

export class DistStore extends WorkerStore implements KVStore {
  readonly type: KVStoreType;
  readonly rank: number;
  readonly numWorkers: number;
  readonly numServers: number;
  readonly workerGroup: number;
  readonly workersPerGroup: number;
  readonly #options: DistStoreOptions;
  readonly #channel: ClientChannel;
  readonly #values: ProcessValues;
  readonly #parameters = new Map<string, NamedParameter>();
  /** Calls that the client knows by a number. */
  readonly #batches = new RepeatedCalls<number>({ rememberedMax: 16 });
  #compresses = false;
  #nextBatch = 1;

  constructor(options: DistStoreOptions) {
    super(options);
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
    this.checkOpen();
    const { ref, view } = this.#values.allocate(countOf(shape) * dtypeInfo(dtype).bytes);
    view.fill(0);
    return new Tensor(dtype, shape, this.#values.regionOf(ref.region), ref.offset);
  }

  async init(keys: Key | readonly Key[], values: Values, options: { readonly shape?: readonly number[] } = {}): Promise<void> {
    this.checkOpen();
    const names = keysOf(keys);
    const firsts = firstValues(names, values);
    const { staged, built: entries } = this.#stage((staging) =>
      names.map((key, index): InitEntry => {
        if (this.#parameters.has(key)) throw new ShoalError('usage', `parameter '${key}' exists already; init names a parameter once`);
        const { dtype, shape, data } = elementsOf(firsts[index], options.shape);
        return { key, dtype, shape, value: this.#refOf(firsts[index], data, staging) };
      }),
    );
    await this.#channel.start({ type: 'init', entries }, `init of ${listedKeys(names)}`, { onSettled: (_, error) => staged.free(error) });
    for (const { key, dtype, shape } of entries) this.#parameters.set(key, { key, dtype, shape, count: countOf(shape) });
  }

  push(keys: Key | readonly Key[], values: Values, options: TransferOptions = {}): KVWork {
    this.checkOpen();
    const names = keysOf(keys);
    const lists = valuesPerKey(names, values);
    const { staged, built } = this.#stage((staging) =>
      names.map((key, index): BatchEntry => {
        const parameter = this.#parameter(key);
        return { key, push: this.#copyOf(parameter, lists[index], staging), ...this.#encoding(parameter) };
      }),
    );
    return this.#transfer(built, { ...options, what: `push of ${listedKeys(names)}`, staged });
  }

  pull(keys: Key | readonly Key[], outs: Values, options: TransferOptions = {}): KVWork {
    this.checkOpen();
    const names = keysOf(keys);
    const targets = outsPerKey(names, outs);
    const { staged, built } = this.#stage((staging) =>
      names.map((key, index): BatchEntry => ({ key, out: this.#outsOf(this.#parameter(key), targets[index], staging) })),
    );
    return this.#transfer(built, { ...options, what: `pull of ${listedKeys(names)}`, staged });
  }

  pushPull(keys: Key | readonly Key[], values: Values, outs?: Values, options: TransferOptions = {}): KVWork {
    this.checkOpen();
    const call = { keys, values, outs: outs ?? values };
    const repeated = this.#batches.find(call);
    if (repeated !== undefined)
      return this.#transfer(repeated, { ...options, what: `pushPull of ${(keys as readonly Key[]).length} keys` });
    const names = keysOf(keys);
    const lists = valuesPerKey(names, values);
    const targets = outs === undefined ? lists : outsPerKey(names, outs);
    const { staged, built } = this.#stage((staging) =>
      names.map((key, index) => this.#pushPullEntry(this.#parameter(key), lists[index], targets[index], staging)),
    );
    if (staged.empty && this.#batches.accepts(call)) this.#remember(call, built);
    return this.#transfer(built, { ...options, what: `pushPull of ${listedKeys(names)}`, staged });
  }

  rowSparsePush(key: Key, { indices, values }: RowSparse, options: TransferOptions = {}): KVWork {
    this.checkOpen();
    const parameter = this.#parameter(nameOf(key));
    const rows = rowIdsOf(parameter, indices, { ascending: true });
    const data = fittingRows(parameter, values, rows.length);
    const { staged, built } = this.#stage((staging) => staging.copyIn(bytesOf(data)).ref);
    return this.#rows('push', { key: parameter.key, rows, ref: built, options, staged });
  }

  rowSparsePull(key: Key, out: Value, { rowIds, ...options }: RowSparsePullOptions): KVWork {
    this.checkOpen();
    const parameter = this.#parameter(nameOf(key));
    const rows = rowIdsOf(parameter, rowIds, { ascending: false });
    const data = bytesOf(fittingRows(parameter, out, rows.length));
    const { staged, built } = this.#stage((staging) => this.#ownRef(out) ?? staging.result(staging.take(data.byteLength), out, data));
    return this.#rows('pull', { key: parameter.key, rows, ref: built, options, staged });
  }

  async barrier(): Promise<void> {
    this.checkOpen();
    await this.#channel.start({ type: 'barrier' }, 'barrier');
  }

  async setOptimizer(spec: OptimizerSpec): Promise<void> {
    this.checkOpen();
    this.checkLeader('setOptimizer');
    // Refused here, before any server hears of it.
    createOptimizer(spec, this.#options.parameterKernels);
    await this.#channel.start({ type: 'optimizer', spec }, 'setOptimizer');
  }

  setUpdater(updater: Updater): void {
    void updater;
    throw new ShoalError('unsupported', `a ${this.type} store is updated on its servers; use setOptimizer, or a local or collective store`);
  }

  /** Of this process's link to each server. */
  setCredit(creditBytes: number): void {
    this.checkOpen();
    this.#channel.post({ type: 'credit', creditBytes });
  }

  setGradientCompression(spec: CompressionSpec): void {
    this.checkOpen();
    createCodec(spec, this.#options.parameterKernels);
    for (const batch of this.#batches.clear()) this.#channel.post({ type: 'forget-batch', batch });
    this.#channel.post({ type: 'compression', spec });
    this.#compresses = true;
  }

  async saveState(folder: string): Promise<void> {
    this.checkOpen();
    this.checkLeader('saveState');
    await this.#channel.start({ type: 'state', direction: 'save', folder }, `saveState to ${folder}`);
  }

  async loadState(folder: string): Promise<void> {
    this.checkOpen();
    this.checkLeader('loadState');
    await this.#channel.start({ type: 'state', direction: 'load', folder }, `loadState from ${folder}`);
  }

  async info(key: Key): Promise<ParameterInfo> {
    this.checkOpen();
    const name = nameOf(key);
    let found: ClientParameterInfo | undefined;
    await this.#channel.start({ type: 'info', key: name }, `info of '${name}'`, {
      onSuccess: (answer) => {
        found = answer as ClientParameterInfo;
      },
    });
    return { key: name, ...found! };
  }

  protected override async passBlob(worker: number, blob: Blob): Promise<void> {
    const { kind, name } = blob;
    const { dtype, data } = elementsOf(blob.values);
    // A copy of its own, also when the array is a part of something larger: what is posted is cloned whole.
    const values = copyOf(dtype, data);
    await this.#channel.start({ type: 'send-blob', worker, blob: { kind, name, dtype, values } }, `sendBlob '${name}' to worker ${worker}`);
  }

  protected override async awaitBlob(worker: number, name: string, timeoutMs: number): Promise<TypedArray> {
    let values: TypedArray | undefined;
    await this.#channel.start({ type: 'receive-blob', worker, name, timeoutMs }, `receiveBlob '${name}' from worker ${worker}`, {
      onSuccess: (answer) => {
        values = answer as TypedArray;
      },
    });
    return values!;
  }

  onBlob(worker: number, name: string, onValues: (values: TypedArray) => void): void {
    this.checkOpen();
    this.checkWorker(worker);
    const next = (): void => {
      const work = this.#channel.start({ type: 'receive-blob', worker, name, timeoutMs: blobsMs }, `blobs '${name}' of worker ${worker}`, {
        onSuccess: (answer) => {
          next();
          onValues(answer as TypedArray);
        },
      });
      // The store was closed, or has failed: its own calls say why.
      void work.then(undefined, () => undefined);
    };
    next();
  }

  protected override async shutDown(): Promise<void> {
    try {
      await this.#channel.start({ type: 'close' }, 'closing the store');
    } finally {
      await this.#channel.leave(new ShoalError('closed', 'the store was closed'));
      this.#values.close();
    }
  }

  // ── values ─────────────────────────────────────────────────────────────────────────────────────────────────────

  /** Of a tensor of this store. */
  #ownRef(value: Value): ValueRef | undefined {
    if (!(value instanceof Tensor) || !this.#values.owns(value.region)) return undefined;
    return this.#values.refOf(value.region, value.byteOffset, value.bytes);
  }

  /** What `build` stages is given back when it throws, else by whoever receives it. */
  #stage<T>(build: (staged: StagedValues) => T): { staged: StagedValues; built: T } {
    const staged = new StagedValues((bytes) => this.#values.allocate(bytes));
    try {
      return { staged, built: build(staged) };
    } catch (error) {
      staged.free();
      throw error;
    }
  }

  /** In place where possible, else staged. */
  #refOf(value: Value, data: TypedArray, staged: StagedValues): ValueRef {
    return this.#ownRef(value) ?? staged.copyIn(bytesOf(data)).ref;
  }

  /** A copy of the sum of a list. */
  #copyOf(parameter: NamedParameter, list: readonly Value[], staged: StagedValues): ValueRef {
    const sources = list.map((value) => bytesOf(fittingElements(parameter, value)));
    const block = staged.take(sources[0].byteLength);
    const { kernels } = this.#options;
    if (sources.length === 1) kernels.copy(block.view, sources[0]);
    else kernels.reduce(parameter.dtype, 'sum', [block.view], sources, balancedTree(sources.length));
    return block.ref;
  }

  #outOf(parameter: NamedParameter, out: Value, staged: StagedValues): ValueRef {
    const data = bytesOf(fittingElements(parameter, out));
    return this.#ownRef(out) ?? staged.result(staged.take(data.byteLength), out, data);
  }

  /** The first output, and what is copied from it to the others. */
  #outsOf(parameter: NamedParameter, [first, ...others]: readonly Value[], staged: StagedValues): ValueRef {
    const out = this.#outOf(parameter, first, staged);
    const result = bytesOf(fittingElements(parameter, first));
    for (const other of others) staged.spread(result, other, bytesOf(fittingElements(parameter, other)));
    return out;
  }

  #pushPullEntry(parameter: NamedParameter, list: readonly Value[], targets: readonly Value[], staged: StagedValues): BatchEntry {
    const { key } = parameter;
    const encoding = this.#encoding(parameter);
    const [first] = list;
    if (list.length > 1) {
      return { key, push: this.#copyOf(parameter, list, staged), out: this.#outsOf(parameter, targets, staged), ...encoding };
    }
    const data = fittingElements(parameter, first);
    const own = this.#ownRef(first);
    if (own !== undefined || targets.length > 1 || targets[0] !== first) {
      return { key, push: own ?? staged.copyIn(bytesOf(data)).ref, out: this.#outsOf(parameter, targets, staged), ...encoding };
    }
    // A staged value that is its own result comes back where it went in.
    const block = staged.copyIn(bytesOf(data));
    return { key, push: block.ref, out: staged.result(block, first, bytesOf(data)), ...encoding };
  }

  #encoding({ dtype }: NamedParameter): Pick<BatchEntry, 'encoding'> {
    return this.#compresses && dtype === 'float32' ? { encoding: 'compressed' } : {};
  }

  #parameter(key: string): NamedParameter {
    const parameter = this.#parameters.get(key);
    if (parameter !== undefined) return parameter;
    throw new ShoalError('usage', `there is no parameter '${key}'; every worker calls init (or broadcast) for it first`);
  }

  // ── operations ─────────────────────────────────────────────────────────────────────────────────────────────────

  #transfer(
    entries: readonly BatchEntry[] | number,
    call: TransferOptions & { readonly what: string; readonly staged?: StagedValues },
  ): PendingWork {
    const { priority = 0, timeoutMs, what, staged } = call;
    return this.#channel.start({ type: 'transfer', entries, priority, timeoutMs }, what, hooksOf(staged));
  }

  #rows(
    direction: 'push' | 'pull',
    call: { key: string; rows: Uint32Array; ref: ValueRef; options: TransferOptions; staged: StagedValues },
  ): PendingWork {
    const { key, rows, ref, options, staged } = call;
    const { priority = 0, timeoutMs } = options;
    const request = { key, rows, values: ref, priority, ...(timeoutMs === undefined ? {} : { timeoutMs }) };
    const what = `rowSparse${direction === 'push' ? 'Push' : 'Pull'} of '${key}'`;
    return this.#channel.start({ type: 'rows', direction, request }, what, hooksOf(staged));
  }

  #remember(call: TransferCall, entries: readonly BatchEntry[]): void {
    const batch = this.#nextBatch++;
    const forgotten = this.#batches.remember(call, batch);
    this.#channel.post({ type: 'batch', batch, entries });
    if (forgotten !== undefined) this.#channel.post({ type: 'forget-batch', batch: forgotten });
  }
}

/** For the operation that begins with them. */
function hooksOf(staged: StagedValues | undefined): WorkHooks {
  if (staged === undefined) return {};
  staged.hold();
  return { onSuccess: () => staged.copyOut(), onSettled: (_, error) => staged.end(error) };
}
