/** A store in one process without servers: for a training script before it is distributed, and as the reference for the other
 *  kinds. Every operation is complete when its call returns. */
import { ShoalError } from '../../base/errors.ts';
import { silentLogger } from '../../base/log.ts';
import { CompletedWork } from '../../comm/caller/work.ts';
import { dtypeInfo, type DType, type TypedArray } from '../../memory/dtype.ts';
import type { RegionAllocator } from '../../memory/region.ts';
import { countOf, Tensor } from '../../memory/tensor.ts';
import type {
  Answer,
  Backend,
  Question,
  RowTransfer,
  Setting,
  StorePlace,
  Surroundings,
  Transfer,
  ValueLists,
} from '../calls/operation.ts';
import type { GradientCodec } from '../compression/codec.ts';
import { createCodec } from '../compression/registry.ts';
import { SnapshotFolder } from '../../checkpoint/snapshot-folder.ts';
import { rowBytesOf } from '../protocol/placement.ts';
import { BlobBox } from '../values/blob-box.ts';
import { emptyLike, Residuals, sumDevices } from '../values/device-values.ts';
import { ParameterTable, type Parameter } from '../values/parameter-table.ts';
import type { KVWork } from '../values/types.ts';
import { gatherRows } from '../values/sparse-rows.ts';
import { bytesOf, fittingElements, fittingRows, rowIdsOf } from '../values/values-argument.ts';

export interface LocalBackendOptions extends Surroundings {
  /** Memory of `tensor`. */
  readonly allocator: RegionAllocator;
}

/** Blobs to itself, and askers for them, that wait. */
const blobsMax = 1024;

export class LocalBackend implements Backend {
  readonly place: StorePlace;
  readonly #options: LocalBackendOptions;
  readonly #table: ParameterTable;
  readonly #residuals = new Residuals();
  #codec: GradientCodec | undefined;
  readonly #blobs: BlobBox;

  constructor(options: LocalBackendOptions) {
    const alone = { rank: 0, numWorkers: 1, numServers: 0, workerGroup: 0, workersPerGroup: 1 };
    this.place = { type: 'local', role: 'worker', ...alone, timeoutMs: options.timeoutMs };
    this.#options = options;
    this.#table = new ParameterTable(options);
    this.#blobs = new BlobBox({ clock: options.clock, waitingMax: blobsMax });
  }

  tensor<D extends DType>(dtype: D, shape: readonly number[]): Tensor<D> {
    const region = this.#options.allocator.create(Math.max(1, countOf(shape)) * dtypeInfo(dtype).bytes);
    return new Tensor(dtype, shape, region, 0);
  }

  start(operation: Transfer | RowTransfer): KVWork {
    if ('lists' in operation) this.#transfer(operation);
    else this.#rows(operation);
    return new CompletedWork();
  }

  async ask(question: Question): Promise<Answer> {
    switch (question.type) {
      case 'init':
        for (const { key } of question.entries) this.#table.checkNew(key);
        for (const { key, dtype, shape, data } of question.entries)
          this.#table.add({ key, dtype, shape, count: data.length }).data.set(data as never);
        return undefined;
      case 'barrier':
        return undefined;
      case 'optimizer':
        this.#table.setOptimizer(question.spec);
        return undefined;
      case 'state': {
        const folder = SnapshotFolder.warning(question.folder, this.#options.log ?? silentLogger);
        if (question.direction === 'save') await folder.save(this.#table.snapshot());
        else this.#table.restore(await folder.loadSaved());
        return undefined;
      }
      case 'info': {
        const { dtype, shape, version } = this.#table.get(question.key);
        return { dtype, shape, version, ahead: 0, staleness: 0 };
      }
      case 'send-blob':
        this.#blobs.put(question.worker, question.blob.name, question.blob.values);
        return undefined;
      case 'receive-blob':
        return this.#blobs.take(question.worker, question.name, question.timeoutMs);
    }
  }

  set(setting: Setting): void {
    if (setting.type === 'updater') this.#table.setUpdater(setting.updater);
    if (setting.type !== 'compression') return;
    this.#codec = createCodec(setting.spec, this.#options.parameterKernels);
    this.#residuals.clear();
  }

  async close(): Promise<void> {
    this.#blobs.close(new ShoalError('closed', 'the store was closed'));
  }

  #transfer({ lists: { keys, values, outs } }: Transfer): void {
    const parameters = keys.map((key) => this.#table.get(key));
    const fitting = (lists: ValueLists | undefined): TypedArray[][] | undefined =>
      lists?.map((list, k) => list.map((value) => fittingElements(parameters[k], value)));
    const [sources, targets] = [fitting(values), fitting(outs)];
    if (sources) for (const [k, parameter] of parameters.entries()) this.#table.update(parameter.key, this.#sum(parameter, sources[k]));
    if (targets) for (const [k, { data }] of parameters.entries()) for (const target of targets[k]) target.set(data as never);
  }

  #rows({ type, key, rows, value }: RowTransfer): void {
    const parameter = this.#table.get(key);
    const ids = rowIdsOf(parameter, rows, { ascending: type === 'rowSparsePush' });
    const elements = fittingRows(parameter, value, ids.length);
    if (type === 'rowSparsePush') this.#table.updateRows(key, ids, elements);
    else bytesOf(elements).set(gatherRows(bytesOf(parameter.data), ids, rowBytesOf(parameter)));
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
