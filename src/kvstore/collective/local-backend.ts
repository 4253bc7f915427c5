/** A store in one process without servers: for a training script before it is distributed, and as the reference for the other
 *  kinds. Every operation is complete when its call returns. A store of several workers overrides what the others must hear of. */
import { bytesOf } from '../../base/bytes.ts';
import { must } from '../../base/assert.ts';
import { ShoalError } from '../../base/errors.ts';
import { silentLogger } from '../../base/log.ts';
import { SnapshotFolder } from '../../checkpoint/snapshot-folder.ts';
import type { Snapshot } from '../../checkpoint/snapshot.ts';
import { CompletedWork } from '../../comm/caller/work.ts';
import { dtypeInfo, type DType, type TypedArray } from '../../memory/dtype.ts';
import type { RegionAllocator } from '../../memory/region.ts';
import { countOf, Tensor } from '../../memory/tensor.ts';
import type {
  Backend,
  FirstValue,
  Question,
  RowTransfer,
  Setting,
  StorePlace,
  Surroundings,
  Transfer,
  ValueLists,
} from '../calls/operation.ts';
import type { GradientCodec } from '../../ps/compression/codec.ts';
import { createCodec } from '../../ps/compression/registry.ts';
import type { OptimizerSpec } from '../../ps/optimizers/optimizer.ts';
import { createOptimizer } from '../../ps/optimizers/registry.ts';
import { rowBytesOf } from '../../ps/protocol/placement.ts';
import { BlobBox, type BlobData } from '../../ps/values/blob-box.ts';
import { emptyLike, Residuals, sumDevices } from '../../ps/values/device-values.ts';
import { ParameterTable, type Parameter } from './parameter-table.ts';
import type { KVWork } from '../calls/types.ts';
import { gatherRows } from '../../ps/values/sparse-rows.ts';
import { fittingElements, fittingRows, rowIdsOf } from '../calls/values-argument.ts';
import type { Answer } from '../../ps/client/commands.ts';

export interface LocalBackendOptions extends Surroundings {
  /** Memory of `tensor`. A store whose tensors come from elsewhere needs none. */
  readonly allocator?: RegionAllocator;
}

/** Worker 0's: an optimiser, or a state that it has loaded. */
export interface Announcement {
  readonly optimizer?: OptimizerSpec;
  readonly snapshot?: Snapshot;
}

/** Blobs, and askers for them, that wait. */
const blobsMax = 1024;
const alone = { type: 'local', role: 'worker', rank: 0, numWorkers: 1, numServers: 0, workerGroup: 0, workersPerGroup: 1 } as const;

export class LocalBackend implements Backend {
  readonly place: StorePlace;
  protected readonly table: ParameterTable;
  protected readonly box: BlobBox;
  protected readonly residuals = new Residuals();
  protected codec: GradientCodec | undefined;
  readonly #options: LocalBackendOptions;

  constructor(options: LocalBackendOptions, place: Omit<StorePlace, 'timeoutMs'> = alone) {
    this.place = { ...place, timeoutMs: options.timeoutMs };
    this.#options = options;
    this.table = new ParameterTable(options);
    this.box = new BlobBox({ clock: options.clock, waitingMax: blobsMax });
  }

  tensor<D extends DType>(dtype: D, shape: readonly number[]): Tensor<D> {
    const allocator = must(this.#options.allocator, () => 'a store alone has memory');
    return new Tensor(dtype, shape, allocator.create(Math.max(1, countOf(shape)) * dtypeInfo(dtype).bytes), 0);
  }

  start(operation: Transfer | RowTransfer): KVWork {
    if ('lists' in operation) this.#transfer(operation);
    else this.#rows(operation);
    return new CompletedWork();
  }

  async ask(question: Question): Promise<Answer> {
    switch (question.type) {
      case 'init':
        return this.init(question.entries);
      case 'barrier':
        return this.barrier();
      case 'optimizer': {
        // A spec is refused here.
        const { spec: optimizer } = createOptimizer(question.spec, this.#options.parameterKernels);
        this.announce({ optimizer });
        return undefined;
      }
      case 'state':
        return this.#state(question.direction, SnapshotFolder.warning(question.folder, this.#options.log ?? silentLogger));
      case 'info': {
        const { key, dtype, shape, version } = this.table.get(question.key);
        // Every version holds a push of this worker: there is no update by others alone.
        return { dtype, shape, version, ahead: this.ahead(key), staleness: 0, workers: version === 0 ? 0 : this.place.numWorkers };
      }
      case 'send-blob':
        return this.send(question.worker, question.blob);
      case 'receive-blob':
        return this.receive(question.worker, question.name, question.timeoutMs);
    }
  }

  set(setting: Setting): void {
    if (setting.type === 'updater') this.table.setUpdater(setting.updater);
    if (setting.type !== 'compression') return;
    this.codec = createCodec(setting.spec, this.#options.parameterKernels);
    // Another codec begins without what the last one lost.
    this.residuals.clear();
  }

  async #state(direction: 'save' | 'load', folder: SnapshotFolder): Promise<undefined> {
    if (direction === 'load') this.announce({ snapshot: await folder.loadSaved() });
    else {
      await this.idle();
      await folder.save(this.table.snapshot());
    }
  }

  async close(): Promise<void> {
    this.box.close(new ShoalError('closed', 'the store was closed'));
  }

  // ── what other workers must hear of ────────────────────────────────────────────────────────────────────────────

  protected async init(entries: readonly FirstValue[]): Promise<undefined> {
    for (const { key } of entries) this.table.checkNew(key);
    for (const { key, dtype, shape, data } of entries) this.table.add({ key, dtype, shape, count: data.length }).data.set(data as never);
  }

  protected async barrier(): Promise<undefined> {}

  protected announce({ optimizer, snapshot }: Announcement): void {
    if (optimizer !== undefined) this.table.setOptimizer(optimizer);
    if (snapshot !== undefined) this.table.restore(snapshot);
  }

  /** Pushes of this worker under way that the key's version does not contain. */
  protected ahead(_key: string): number {
    return 0;
  }

  /** Resolves when every push has taken effect. */
  protected async idle(): Promise<void> {}

  protected async send(worker: number, { name, values }: BlobData): Promise<undefined> {
    this.box.put(worker, name, values);
  }

  protected receive(worker: number, name: string, timeoutMs: number): Promise<TypedArray> {
    return this.box.take(worker, name, timeoutMs);
  }

  // ── alone ──────────────────────────────────────────────────────────────────────────────────────────────────────

  #transfer({ lists: { keys, values, outs } }: Transfer): void {
    const parameters = keys.map((key) => this.table.get(key));
    const fitting = (lists: ValueLists | undefined): TypedArray[][] | undefined =>
      lists?.map((list, k) => list.map((value) => fittingElements(parameters[k], value)));
    const [sources, targets] = [fitting(values), fitting(outs)];
    if (sources) for (const [k, parameter] of parameters.entries()) this.table.update(parameter.key, this.#sum(parameter, sources[k]));
    if (targets) for (const [k, { data }] of parameters.entries()) for (const target of targets[k]) target.set(data as never);
  }

  #rows({ type, key, rows, value }: RowTransfer): void {
    const parameter = this.table.get(key);
    const ids = rowIdsOf(parameter, rows, { ascending: type === 'rowSparsePush' });
    const elements = fittingRows(parameter, value, ids.length);
    if (type === 'rowSparsePush') this.table.updateRows(key, ids, elements);
    else bytesOf(elements).set(gatherRows(bytesOf(parameter.data), ids, rowBytesOf(parameter)));
  }

  #sum({ key, dtype, count }: Parameter, sources: readonly TypedArray[]): TypedArray {
    const codec = dtype === 'float32' ? this.codec : undefined;
    if (sources.length === 1 && codec === undefined) return sources[0];
    const sum = emptyLike(dtype, count);
    sumDevices(this.#options.kernels, dtype, sum, sources);
    if (codec !== undefined) {
      const encoded = new Uint8Array(codec.encodedBytes(count));
      this.residuals.encode(codec, key, sum as Float32Array, encoded);
      codec.decode(sum as Float32Array, encoded);
    }
    return sum;
  }
}
