/** The store of a worker whose parameters lie on servers: puts values where servers reach them, and hands operations to the client. It must
 *  not know servers, slices or rounds.
 *
 *      tensor of this store    reached in place
 *      any other array         staged: one copy into memory of this store, one back
 *      push                    always a copy, so that the caller may go on at once */
import { bytesOf } from '../../base/bytes.ts';
import { BoundedCache } from '../../base/collections/bounded-cache.ts';
import { ShoalError } from '../../base/errors.ts';
import type { PendingWork } from '../../comm/caller/work.ts';
import { dtypeInfo, type DType, type TypedArray } from '../../memory/dtype.ts';
import { countOf, Tensor } from '../../memory/tensor.ts';
import type { Backend, Question, RowTransfer, Setting, StorePlace, Surroundings, Transfer, TransferLists } from '../calls/operation.ts';
import { createCodec } from '../../ps/compression/registry.ts';
import { createOptimizer } from '../../ps/optimizers/registry.ts';
import type { ProcessValues } from '../../ps/protocol/process-values.ts';
import { StagedValues, type StagedPlace } from './staged-values.ts';
import type { ClientChannel, WorkerInfo, Answer } from '../../ps/client/commands.ts';
import type { InitEntry, TransferEntry } from '../../ps/client/client-options.ts';
import { sumDevices } from '../../ps/values/device-values.ts';
import { workerCount } from '../../ps/protocol/topology.ts';
import type { KVStoreType, Value } from '../calls/types.ts';
import type { ValueRef } from '../../ps/protocol/value-space.ts';
import { fittingElements, fittingRows, listedKeys, rowIdsOf, type NamedParameter } from '../calls/values-argument.ts';

export interface DistBackendOptions extends Pick<Surroundings, 'kernels' | 'parameterKernels' | 'timeoutMs'> {
  readonly type: KVStoreType;
  readonly info: WorkerInfo;
  readonly channel: ClientChannel;
  readonly values: ProcessValues;
}

/** A listener for blobs waits as long as the store is open. */
const blobsMs = 0x7fffffff;
const batchesMax = 16;

export class DistBackend implements Backend {
  readonly place: StorePlace;
  readonly #options: DistBackendOptions;
  readonly #channel: ClientChannel;
  readonly #values: ProcessValues;
  readonly #parameters = new Map<string, NamedParameter>();
  /** Lists that the client knows by a number. */
  readonly #batches = new BoundedCache<TransferLists, number>(batchesMax, (batch) => this.#channel.post({ type: 'forget-batch', batch }));
  #nextBatch = 1;

  constructor(options: DistBackendOptions) {
    const { type, info, channel, values, timeoutMs } = options;
    const { worker, workerGroup, topology } = info;
    const { serverGroups, serversPerGroup, workersPerGroup } = topology;
    const numbers = { numWorkers: workerCount(topology), numServers: serverGroups * serversPerGroup, workersPerGroup };
    this.place = { type, role: 'worker', rank: worker, workerGroup, ...numbers, timeoutMs };
    this.#options = options;
    this.#channel = channel;
    this.#values = values;
  }

  tensor<D extends DType>(dtype: D, shape: readonly number[]): Tensor<D> {
    const { ref, view } = this.#values.allocate(countOf(shape) * dtypeInfo(dtype).bytes);
    view.fill(0);
    return new Tensor(dtype, shape, this.#values.regionOf(ref.region), ref.offset);
  }

  start(operation: Transfer | RowTransfer): PendingWork {
    return 'lists' in operation ? this.#transfer(operation) : this.#rows(operation);
  }

  async ask(question: Question): Promise<Answer> {
    if (question.type === 'init') return this.#init(question);
    // A spec is refused here, before any server hears of it.
    if (question.type === 'optimizer') createOptimizer(question.spec, this.#options.parameterKernels);
    let found: Answer;
    await this.#channel.start(question, question.type, { onSuccess: (answer) => (found = answer as Answer) });
    return found;
  }

  set(setting: Setting): void {
    if (setting.type === 'listen') this.#listen(setting);
    if (setting.type === 'credit') this.#channel.post(setting);
    if (setting.type !== 'compression') return;
    createCodec(setting.spec, this.#options.parameterKernels);
    this.#channel.post(setting);
  }

  async close(): Promise<void> {
    try {
      await this.#channel.start({ type: 'close' }, 'closing the store');
    } finally {
      await this.#channel.leave(new ShoalError('closed', 'the store was closed'));
      this.#values.close();
    }
  }

  // ── operations ─────────────────────────────────────────────────────────────────────────────────────────────────

  async #init({ entries }: Extract<Question, { type: 'init' }>): Promise<undefined> {
    const expected = entries.reduce((sum, { data }) => sum + data.byteLength, 0);
    const { staged, built } = this.#stage(expected, (staging) =>
      entries.map(({ key, dtype, shape, value, data }): InitEntry => {
        if (this.#parameters.has(key)) throw new ShoalError('usage', `parameter '${key}' exists already; init names a parameter once`);
        return { key, dtype, shape, value: this.#ownRef(value) ?? staging.copyIn(bytesOf(data), dtypeInfo(dtype).bytes).ref };
      }),
    );
    await this.#channel.start({ type: 'init', entries: built }, 'init', { onSettled: (_, error) => staged.free(error) });
    for (const { key, dtype, shape } of built) this.#parameters.set(key, { key, dtype, shape, count: countOf(shape) });
  }

  #transfer({ type, lists, priority = 0, timeoutMs }: Transfer): PendingWork {
    const what = `${type} of ${listedKeys(lists.keys)}`;
    const batch = this.#batches.get(lists);
    if (batch !== undefined) return this.#channel.start({ type: 'transfer', entries: batch, priority, timeoutMs }, what);
    const parameters = lists.keys.map((key) => this.#parameter(key));
    const times = lists.values === undefined || lists.outs === undefined || lists.outs === lists.values ? 1 : 2;
    let expected = 0;
    for (const { dtype, count } of parameters) expected += times * count * dtypeInfo(dtype).bytes;
    const { staged, built } = this.#stage(expected, (staging) => parameters.map((each, k) => this.#entry(each, lists, k, staging)));
    if (lists.recurs && staged.empty)
      this.#channel.post({ type: 'batch', batch: this.#batches.put(lists, this.#nextBatch++), entries: built });
    return this.#begin({ type: 'transfer', entries: built, priority, timeoutMs }, what, staged);
  }

  #rows({ type, key, rows, value, priority = 0, timeoutMs }: RowTransfer): PendingWork {
    const parameter = this.#parameter(key);
    const pushes = type === 'rowSparsePush';
    const ids = rowIdsOf(parameter, rows, { ascending: pushes });
    const data = bytesOf(fittingRows(parameter, value, ids.length));
    const { bytes } = dtypeInfo(parameter.dtype);
    const { staged, built } = this.#stage(data.byteLength, (staging) => {
      if (pushes) return staging.copyIn(data, bytes).ref;
      return this.#ownRef(value) ?? staging.result(staging.take(data.byteLength, bytes), value, data);
    });
    const request = { key, rows: ids, values: built, priority, timeoutMs };
    return this.#begin({ type: 'rows', direction: pushes ? 'push' : 'pull', request }, `${type} of '${key}'`, staged);
  }

  #begin(command: Parameters<ClientChannel['start']>[0], what: string, staged: StagedValues): PendingWork {
    staged.hold();
    return this.#channel.start(command, what, { onSuccess: () => staged.copyOut(), onSettled: (_, error) => staged.end(error) });
  }

  #listen({ worker, name, onValues }: Extract<Setting, { type: 'listen' }>): void {
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

  // ── values ─────────────────────────────────────────────────────────────────────────────────────────────────────

  /** The place of a tensor of this store; undefined for any other value. */
  #ownRef(value: Value): ValueRef | undefined {
    if (!(value instanceof Tensor) || !this.#values.owns(value.region)) return undefined;
    return this.#values.refOf(value.region, value.byteOffset, value.bytes);
  }

  /** Staged memory is given back when `build` throws, else by the caller. */
  #stage<T>(expectedBytes: number, build: (staged: StagedValues) => T): { staged: StagedValues; built: T } {
    const staged = new StagedValues(this.#values, expectedBytes);
    try {
      return { staged, built: build(staged) };
    } catch (error) {
      staged.free();
      throw error;
    }
  }

  /** A copy of the sum of a list. */
  #copyOf({ dtype }: NamedParameter, sources: readonly TypedArray[], staged: StagedValues): StagedPlace {
    const place = staged.take(sources[0].byteLength, dtypeInfo(dtype).bytes);
    sumDevices(this.#options.kernels, dtype, place.view, sources.map(bytesOf));
    return place;
  }

  /** The first output, and what is copied from it to the others. */
  #outsOf(parameter: NamedParameter, [first, ...others]: readonly Value[], staged: StagedValues): ValueRef {
    const result = bytesOf(fittingElements(parameter, first));
    const out = this.#ownRef(first) ?? staged.result(staged.take(result.byteLength, dtypeInfo(parameter.dtype).bytes), first, result);
    for (const other of others) staged.spread(result, other, bytesOf(fittingElements(parameter, other)));
    return out;
  }

  #entry(parameter: NamedParameter, { values, outs }: TransferLists, k: number, staged: StagedValues): TransferEntry {
    const { key } = parameter;
    if (values === undefined) return { key, out: this.#outsOf(parameter, outs![k], staged) };
    const { [k]: list } = values;
    const sources = list.map((value) => fittingElements(parameter, value));
    if (outs === undefined) return { key, push: this.#copyOf(parameter, sources, staged).ref };
    const [first] = list;
    const own = list.length === 1 ? this.#ownRef(first) : undefined;
    if (own !== undefined) return { key, push: own, out: this.#outsOf(parameter, outs[k], staged) };
    const place = this.#copyOf(parameter, sources, staged);
    // A staged value that is its own result comes back where it went in.
    const isResult = list.length === 1 && outs[k].length === 1 && outs[k][0] === first;
    const out = isResult ? staged.result(place, first, bytesOf(sources[0])) : this.#outsOf(parameter, outs[k], staged);
    return { key, push: place.ref, out };
  }

  #parameter(key: string): NamedParameter {
    const parameter = this.#parameters.get(key);
    if (parameter !== undefined) return parameter;
    throw new ShoalError('usage', `there is no parameter '${key}'; every worker calls init (or broadcast) for it first`);
  }
}
