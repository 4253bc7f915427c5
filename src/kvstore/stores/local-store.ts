/** A store in one process without servers: for a training script before it is distributed, and as the reference for the other
 *  kinds. Every operation is complete when its call returns. */
import type { Clock } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import { silentLogger, type Logger } from '../../base/log.ts';
import { CompletedWork } from '../../comm/caller/work.ts';
import { dtypeInfo, type DType, type TypedArray } from '../../memory/dtype.ts';
import type { Kernels } from '../../memory/kernels.ts';
import type { ParameterKernels } from '../../memory/parameter-kernels.ts';
import type { RegionAllocator } from '../../memory/region.ts';
import { countOf, Tensor } from '../../memory/tensor.ts';
import type { CompressionSpec, GradientCodec } from '../compression/codec.ts';
import { createCodec } from '../compression/registry.ts';
import { SnapshotFolder } from '../../checkpoint/snapshot-folder.ts';
import { rowBytesOf } from '../protocol/placement.ts';
import { BlobBox } from '../values/blob-box.ts';
import { emptyLike, Residuals, sumDevices } from '../values/device-values.ts';
import type { OptimizerSpec } from '../optimizers/optimizer.ts';
import { ParameterTable, type Parameter } from '../values/parameter-table.ts';
import type {
  Blob,
  Key,
  KVStore,
  KVWork,
  ParameterInfo,
  RowSparse,
  RowSparsePullOptions,
  Updater,
  Value,
  Values,
} from '../values/types.ts';
import { gatherRows } from '../values/sparse-rows.ts';
import {
  bytesOf,
  copyOf,
  elementsOf,
  firstValues,
  fittingElements,
  fittingRows,
  keysOf,
  nameOf,
  outsPerKey,
  rowIdsOf,
  valuesPerKey,
} from '../values/values-argument.ts';
import { WorkerStore } from '../values/worker-store.ts';

export interface LocalStoreOptions {
  readonly kernels: Kernels;
  readonly parameterKernels: ParameterKernels;
  /** Of `tensor`. */
  readonly allocator: RegionAllocator;
  readonly clock: Clock;
  /** Of calls that name none; only `receiveBlob` can wait. */
  readonly timeoutMs: number;
  /** Told of saved state that is damaged while the state before it is used. Default: nobody. */
  readonly log?: Logger;
}

/** Blobs to itself, and askers for them, that wait. */
const blobsMax = 1024;

export class LocalStore extends WorkerStore implements KVStore {
  readonly type = 'local';
  readonly rank = 0;
  readonly numWorkers = 1;
  readonly numServers = 0;
  readonly workerGroup = 0;
  readonly workersPerGroup = 1;
  readonly #options: LocalStoreOptions;
  readonly #table: ParameterTable;
  readonly #residuals = new Residuals();
  #codec: GradientCodec | undefined;
  readonly #blobs: BlobBox;

  constructor(options: LocalStoreOptions) {
    super(options);
    this.#options = options;
    this.#table = new ParameterTable(options);
    this.#blobs = new BlobBox({ clock: options.clock, waitingMax: blobsMax });
  }

  tensor<D extends DType>(dtype: D, shape: readonly number[]): Tensor<D> {
    this.checkOpen();
    const region = this.#options.allocator.create(Math.max(1, countOf(shape)) * dtypeInfo(dtype).bytes);
    return new Tensor(dtype, shape, region, 0);
  }

  init(keys: Key | readonly Key[], values: Values, options: { readonly shape?: readonly number[] } = {}): Promise<void> {
    return settled(() => {
      this.checkOpen();
      const names = keysOf(keys);
      const firsts = firstValues(names, values).map((first) => elementsOf(first, options.shape));
      for (const name of names) this.#table.checkNew(name);
      for (const [k, key] of names.entries()) {
        const { dtype, shape, data } = firsts[k];
        const parameter = this.#table.add({ key, dtype, shape, count: data.length });
        parameter.data.set(data as never);
      }
    });
  }

  push(keys: Key | readonly Key[], values: Values): KVWork {
    this.#push(this.#pushes(keys, values));
    return new CompletedWork();
  }

  pull(keys: Key | readonly Key[], outs: Values): KVWork {
    this.checkOpen();
    const names = keysOf(keys);
    const copies = outsPerKey(names, outs).map((list, k) => {
      const parameter = this.#table.get(names[k]);
      return { parameter, targets: list.map((out) => fittingElements(parameter, out)) };
    });
    for (const { parameter, targets } of copies) for (const target of targets) target.set(parameter.data as never);
    return new CompletedWork();
  }

  pushPull(keys: Key | readonly Key[], values: Values, outs?: Values): KVWork {
    const pushes = this.#pushes(keys, values);
    const names = keysOf(keys);
    const targets =
      outs === undefined
        ? undefined
        : outsPerKey(names, outs).map((list, k) => list.map((out) => fittingElements(pushes[k].parameter, out)));
    this.#push(pushes);
    for (const [k, { parameter, sources }] of pushes.entries()) {
      for (const target of targets?.[k] ?? sources) target.set(parameter.data as never);
    }
    return new CompletedWork();
  }

  rowSparsePush(key: Key, { indices, values }: RowSparse): KVWork {
    this.checkOpen();
    const parameter = this.#table.get(nameOf(key));
    const rows = rowIdsOf(parameter, indices, { ascending: true });
    this.#table.updateRows(parameter.key, rows, fittingRows(parameter, values, rows.length));
    return new CompletedWork();
  }

  rowSparsePull(key: Key, out: Value, { rowIds }: RowSparsePullOptions): KVWork {
    this.checkOpen();
    const parameter = this.#table.get(nameOf(key));
    const rows = rowIdsOf(parameter, rowIds, { ascending: false });
    const target = fittingRows(parameter, out, rows.length);
    bytesOf(target).set(gatherRows(bytesOf(parameter.data), rows, rowBytesOf(parameter)));
    return new CompletedWork();
  }

  barrier(): Promise<void> {
    return settled(() => this.checkOpen());
  }

  setOptimizer(spec: OptimizerSpec): Promise<void> {
    return settled(() => {
      this.checkOpen();
      this.#table.setOptimizer(spec);
    });
  }

  setUpdater(updater: Updater): void {
    this.checkOpen();
    this.#table.setUpdater(updater);
  }

  setGradientCompression(spec: CompressionSpec): void {
    this.checkOpen();
    this.#codec = createCodec(spec, this.#options.parameterKernels);
    this.#residuals.clear();
  }

  async saveState(folder: string): Promise<void> {
    this.checkOpen();
    await this.#folder(folder).save(this.#table.snapshot());
  }

  async loadState(folder: string): Promise<void> {
    this.checkOpen();
    const snapshot = await this.#folder(folder).loadSaved();
    this.#table.restore(snapshot);
  }

  info(key: Key): Promise<ParameterInfo> {
    return settled(() => {
      this.checkOpen();
      const { key: name, dtype, shape, version } = this.#table.get(nameOf(key));
      return { key: name, dtype, shape, version, ahead: 0, staleness: 0 };
    });
  }

  /** To itself. */
  protected override async passBlob(worker: number, { name, values }: Blob): Promise<void> {
    const { dtype, data } = elementsOf(values);
    this.#blobs.put(worker, name, copyOf(dtype, data));
  }

  protected override awaitBlob(worker: number, name: string, timeoutMs: number): Promise<TypedArray> {
    return this.#blobs.take(worker, name, timeoutMs);
  }

  protected override async shutDown(): Promise<void> {
    this.#blobs.close(new ShoalError('closed', 'the store was closed'));
  }

  #folder(path: string): SnapshotFolder {
    return SnapshotFolder.warning(path, this.#options.log ?? silentLogger);
  }

  #pushes(keys: Key | readonly Key[], values: Values): { parameter: Parameter; sources: TypedArray[] }[] {
    this.checkOpen();
    const names = keysOf(keys);
    return valuesPerKey(names, values).map((list, k) => {
      const parameter = this.#table.get(names[k]);
      return { parameter, sources: list.map((value) => fittingElements(parameter, value)) };
    });
  }

  #push(pushes: readonly { parameter: Parameter; sources: readonly TypedArray[] }[]): void {
    for (const { parameter, sources } of pushes) this.#table.update(parameter.key, this.#sum(parameter, sources));
  }

  #sum({ key, dtype, count }: Parameter, sources: readonly TypedArray[]): TypedArray {
    const codec = dtype === 'float32' ? this.#codec : undefined;
    if (sources.length === 1 && codec === undefined) return sources[0];
    const sum = emptyLike(dtype, count);
    sumDevices(this.#options.kernels, dtype, sum, sources);
    if (codec !== undefined) {
      const encoded = new Uint8Array(codec.encodedBytes(count));
      this.#residuals.encode(codec, key, sum as Float32Array, encoded);
      codec.decode(sum as Float32Array, encoded);
    }
    return sum;
  }
}

/** What is done at once, as what is awaited. */
function settled<T>(body: () => T): Promise<T> {
  return new Promise((resolve) => {
    resolve(body());
  });
}
