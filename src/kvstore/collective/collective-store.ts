/** A store without servers over a process group: a push is an all-reduce, and every worker applies the same update to its own
 *  copy of the parameters. Calls that communicate must be made by every worker in the same order, as those of the group.
 *
 *    push       values ─copy─▶ buckets ─all-reduce─▶ sums ─update─▶ own copy      small values packed, large ones alone
 *    pushPull   large values: all-reduced in the output itself                    no staging
 *    pull       own copy ─▶ outputs                                               no communication
 *
 *  Worker 0's `setOptimizer` and `loadState` reach the others at the next `barrier`; a push before that
 *  barrier fails everywhere with `mismatch`. Barriers and rows take several steps each, so they have a separate group,
 *  with its own order of calls. Priorities have no effect here. */
import { createHash } from 'node:crypto';
import type { Clock } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import { silentLogger, type Logger } from '../../base/log.ts';
import type { CallOptions, ProcessGroup, Work } from '../../group/caller/types.ts';
import type { DType, TypedArray } from '../../memory/dtype.ts';
import type { Kernels } from '../../memory/kernels.ts';
import type { ParameterKernels } from '../../memory/parameter-kernels.ts';
import { countOf, Tensor } from '../../memory/tensor.ts';
import { BlobBox } from '../values/blob-box.ts';
import { BucketSums, partOf, type BucketSum } from './bucket-sums.ts';
import { planBuckets, type Bucket } from './buckets.ts';
import { SnapshotFolder } from '../../checkpoint/snapshot-folder.ts';
import type { CompressionSpec, GradientCodec } from '../compression/codec.ts';
import { createCodec } from '../compression/registry.ts';
import { ControlBarrier } from './control-barrier.ts';
import { copyElements, emptyLike } from '../values/device-values.ts';
import { GroupBlobs } from './group-blobs.ts';
import type { OptimizerSpec } from '../optimizers/optimizer.ts';
import { createOptimizer } from '../optimizers/registry.ts';
import { OrderedOperations } from './ordered-operations.ts';
import { rowBytesOf } from '../protocol/placement.ts';
import { elements } from '../protocol/value-space.ts';
import { ParameterTable } from '../values/parameter-table.ts';
import type { PlannedPush, PushPlan } from './push-plan.ts';
import { RepeatedCalls, type TransferCall } from '../values/repeated-calls.ts';
import { gatherRows, sumRows } from '../values/sparse-rows.ts';
import { StagingTensors } from './staging-tensors.ts';
import type {
  Blob,
  Key,
  KVStore,
  KVWork,
  ParameterInfo,
  RowSparse,
  RowSparsePullOptions,
  TransferOptions,
  Updater,
  Value,
  Values,
} from '../values/types.ts';
import { HeldValues } from '../values/held-values.ts';
import {
  bytesOf,
  checkNotReleased,
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

export interface CollectiveStoreOptions {
  readonly group: ProcessGroup;
  readonly kernels: Kernels;
  readonly parameterKernels: ParameterKernels;
  readonly clock: Clock;
  /** Of calls that name none. */
  readonly timeoutMs: number;
  /** Told of saved state that is damaged while the state before it is used. Default: nobody. */
  readonly log?: Logger;
  /** What was made for this store alone ends with it. Default: the group stays. */
  readonly onClosed?: () => Promise<void>;
}

const MiB = 2 ** 20;
const bucketing = { bucketBytes: 4 * MiB, aloneBytes: MiB / 2 };
const operationsMax = 65_536;
const blobsMax = 1024;

export class CollectiveStore extends WorkerStore implements KVStore {
  readonly type = 'collective';
  readonly rank: number;
  readonly numWorkers: number;
  readonly numServers = 0;
  readonly workerGroup = 0;
  readonly workersPerGroup: number;
  readonly #options: CollectiveStoreOptions;
  readonly #group: ProcessGroup;
  /** For operations of several steps. */
  readonly #steps: ProcessGroup;
  readonly #table: ParameterTable;
  readonly #operations: OrderedOperations;
  readonly #staging: StagingTensors;
  readonly #sums: BucketSums;
  readonly #box: BlobBox;
  readonly #blobs: GroupBlobs;
  readonly #control: ControlBarrier;
  readonly #plans = new RepeatedCalls<PushPlan>({ rememberedMax: 16 });
  /** Keys of each operation that has not taken effect. */
  readonly #unfinished = new Set<readonly string[]>();
  #codec: GradientCodec | undefined;

  private constructor(options: CollectiveStoreOptions, steps: ProcessGroup) {
    super(options);
    const { group, clock } = options;
    this.rank = group.rank;
    this.numWorkers = group.size;
    this.workersPerGroup = group.size;
    this.#options = options;
    this.#group = group;
    this.#steps = steps;
    this.#table = new ParameterTable(options);
    this.#operations = new OrderedOperations({ clock, operationsMax });
    this.#staging = new StagingTensors(group, { idleBytesMax: 64 * MiB });
    this.#sums = new BucketSums({ group, kernels: options.kernels, staging: this.#staging });
    this.#box = new BlobBox({ clock, waitingMax: blobsMax });
    this.#blobs = new GroupBlobs(group, this.#box);
    this.#control = new ControlBarrier(steps, this.#table, { onRestored: () => this.#plans.clear() });
  }

  /** Every rank of the group calls it. */
  static async open(options: CollectiveStoreOptions): Promise<CollectiveStore> {
    const { group, timeoutMs } = options;
    const everyone = Array.from({ length: group.size }, (_, rank) => rank);
    const steps = await group.newGroup(everyone, { name: `${group.name}/kvstore`, timeoutMs });
    return new CollectiveStore(options, steps as ProcessGroup);
  }

  tensor<D extends DType>(dtype: D, shape: readonly number[]): Tensor<D> {
    this.checkOpen();
    return this.#group.tensor(dtype, shape);
  }

  async init(keys: Key | readonly Key[], values: Values, options: { readonly shape?: readonly number[] } = {}): Promise<void> {
    this.checkOpen();
    const names = keysOf(keys);
    const firsts = firstValues(names, values).map((first, k) => {
      const { dtype, shape, data } = elementsOf(first, options.shape);
      return { key: names[k], dtype, shape, count: data.length, data };
    });
    for (const name of names) this.#table.checkNew(name);
    const described = firsts.map(({ key, dtype, shape }) => `${key} ${dtype}[${shape.join(',')}]`);
    const name = this.#named(
      `init of ${described[0]}${described.length > 1 ? ` and ${described.length - 1} more` : ''}`,
      digest(described),
    );
    await this.#spread(firsts, name);
  }

  push(keys: Key | readonly Key[], values: Values, options: TransferOptions = {}): KVWork {
    return this.#reduce('push', { keys, values, outs: undefined }, options);
  }

  pull(keys: Key | readonly Key[], outs: Values): KVWork {
    this.checkOpen();
    const names = keysOf(keys);
    const copies = outsPerKey(names, outs).map((list, k) => {
      const parameter = this.#table.get(names[k]);
      return { key: parameter.key, outs: list, targets: list.map((out) => fittingElements(parameter, out)) };
    });
    const copy = (): void => {
      for (const { key, targets } of copies) for (const target of targets) target.set(this.#table.get(key).data as never);
    };
    return this.#locally(
      `pull of ${listedKeys(names)}`,
      copies.flatMap(({ outs: places }) => places),
      copy,
    );
  }

  pushPull(keys: Key | readonly Key[], values: Values, outs?: Values, options: TransferOptions = {}): KVWork {
    return this.#reduce('pushPull', { keys, values, outs: outs ?? values }, options);
  }

  rowSparsePush(key: Key, { indices, values }: RowSparse, { timeoutMs = this.#options.timeoutMs }: TransferOptions = {}): KVWork {
    this.checkOpen();
    const parameter = this.#table.get(nameOf(key));
    const rows = rowIdsOf(parameter, indices, { ascending: true });
    const own = { rows, values: copyOf(parameter.dtype, fittingRows(parameter, values, rows.length)) };
    const keys = [parameter.key];
    const what = `rowSparsePush of ${listedKeys(keys)}`;
    this.#operations.checkRoom();
    this.#unfinished.add(keys);
    const effect = function* (this: CollectiveStore): Effect {
      try {
        const parts = yield* this.#gatherRows(parameter, own, { name: what, timeoutMs });
        const whole = parts.map((part) => ({ rows: part.rows, values: bytesOf(part.values) }));
        const sum = sumRows(this.#options.kernels, parameter.dtype, rowBytesOf(parameter), whole);
        const sums = elements(parameter.dtype, sum.values);
        if (this.#table.refusedAt(parameter.dtype, sums) >= 0) {
          throw refusal(
            parameter.key,
            parts.map(({ values }) => this.#table.refusedAt(parameter.dtype, values) >= 0),
          );
        }
        this.#table.updateRows(parameter.key, sum.rows, sums);
      } finally {
        this.#unfinished.delete(keys);
      }
    };
    return this.#operations.start({ what, works: [], effect: effect.bind(this) });
  }

  rowSparsePull(key: Key, out: Value, { rowIds }: RowSparsePullOptions): KVWork {
    this.checkOpen();
    const parameter = this.#table.get(nameOf(key));
    const rows = rowIdsOf(parameter, rowIds, { ascending: false });
    const target = fittingRows(parameter, out, rows.length);
    return this.#locally(`rowSparsePull of '${parameter.key}'`, [out], () => {
      bytesOf(target).set(gatherRows(bytesOf(this.#table.get(parameter.key).data), rows, rowBytesOf(parameter)));
    });
  }

  async barrier(): Promise<void> {
    this.checkOpen();
    this.#operations.checkRoom();
    await this.#operations.start({ what: 'barrier', works: [], effect: () => this.#control.run() });
  }

  /** Takes effect, on all workers, at the next `barrier`. */
  async setOptimizer(spec: OptimizerSpec): Promise<void> {
    this.checkOpen();
    this.checkLeader('setOptimizer');
    const { spec: complete } = createOptimizer(spec, this.#options.parameterKernels);
    if (this.numWorkers === 1) this.#table.setOptimizer(complete);
    else this.#control.announce({ optimizer: complete });
  }

  setUpdater(updater: Updater): void {
    this.checkOpen();
    this.#table.setUpdater(updater);
  }

  setGradientCompression(spec: CompressionSpec): void {
    this.checkOpen();
    this.#codec = createCodec(spec, this.#options.parameterKernels);
    this.#sums.forgetResiduals();
  }

  async saveState(folder: string): Promise<void> {
    this.checkOpen();
    this.checkLeader('saveState');
    await this.#operations.idle();
    await this.#folder(folder).save(this.#table.snapshot());
  }

  /** Takes effect, on all workers, at the next `barrier`; only worker 0 reads the folder. */
  async loadState(folder: string): Promise<void> {
    this.checkOpen();
    this.checkLeader('loadState');
    const snapshot = await this.#folder(folder).loadSaved();
    // Refused here, not on all workers at the barrier.
    this.#table.check(snapshot);
    if (this.numWorkers === 1) {
      this.#table.restore(snapshot);
      this.#plans.clear();
    } else this.#control.announce({ snapshot });
  }

  async info(key: Key): Promise<ParameterInfo> {
    this.checkOpen();
    const { key: name, dtype, shape, version } = this.#table.get(nameOf(key));
    const ahead = [...this.#unfinished].filter((keys) => keys.includes(name)).length;
    // Every version holds a push of this worker: there is no update by others alone.
    return { key: name, dtype, shape, version, ahead, staleness: 0 };
  }

  protected override passBlob(worker: number, blob: Blob): Promise<void> {
    return this.#blobs.send(worker, blob);
  }

  protected override awaitBlob(worker: number, name: string, timeoutMs: number): Promise<TypedArray> {
    return this.#blobs.receive(worker, name, timeoutMs);
  }

  protected override async shutDown(): Promise<void> {
    await this.#operations.idle();
    this.#box.close(new ShoalError('closed', 'the store was closed'));
    await this.#steps.destroy();
    await this.#options.onClosed?.();
  }

  // ── operations ──────────────────────────────────────────────────────────────────────────────────────────────────

  /** Worker 0's values become everyone's. */
  async #spread(firsts: readonly (NamedParameter & { readonly data: TypedArray })[], name: string): Promise<void> {
    this.#operations.checkRoom();
    const parts = planBuckets(firsts, { ...bucketing, aloneBytes: Infinity }).map((bucket) => {
      const staging = this.#staging.take(bucket.dtype, bucket.count);
      for (const { index, from, count } of bucket.members) {
        if (this.rank === 0) partOf(staging, from, count).set(firsts[index].data as never);
      }
      return { bucket, staging, work: this.#group.broadcast(staging.tensor, { root: 0, name, timeoutMs: this.#options.timeoutMs }) };
    });
    await this.#operations.start({
      what: name,
      works: parts.map(({ work }) => work),
      effect: () =>
        once(() => {
          for (const { key } of firsts) this.#table.checkNew(key);
          for (const { bucket, staging } of parts) {
            for (const { index, from, count } of bucket.members) {
              const { key, dtype, shape } = firsts[index];
              this.#table.add({ key, dtype, shape, count }).data.set(partOf(staging, from, count) as never);
            }
            staging.giveBack();
          }
        }),
    });
  }

  #plan(call: TransferCall): PushPlan {
    const remembered = this.#plans.find(call);
    if (remembered !== undefined) {
      for (const tensor of remembered.tensors) checkNotReleased(tensor);
      return remembered;
    }
    const names = keysOf(call.keys);
    const lists = valuesPerKey(names, call.values);
    const { outs } = call;
    const outLists = outs === undefined ? lists.map(() => []) : outs === call.values ? lists : outsPerKey(names, outs);
    const pushes = lists.map((list, k): PlannedPush => {
      const parameter = this.#table.get(names[k]);
      const elements = (value: Value): TypedArray => fittingElements(parameter, value);
      return { parameter, sources: list.map(elements), outs: outLists[k], targets: outLists[k].map(elements) };
    });
    const buckets = planBuckets(
      pushes.map(({ parameter }) => parameter),
      bucketing,
    );
    const held = new HeldValues();
    for (const out of outLists.flat()) held.add(out);
    const tensors = [...lists.flat(), ...outLists.flat()].filter((value) => value instanceof Tensor);
    const plan = { names, pushes, buckets, tensors, held, digest: digest(names) };
    if (this.#plans.accepts(call)) this.#plans.remember(call, plan);
    return plan;
  }

  /** All-reduces what was pushed bucket by bucket, each an operation of its own: where its communication is complete when
   *  the call returns, as on one host, its effect comes while the sum is still in the cache. */
  #reduce(verb: string, call: TransferCall, { timeoutMs = this.#options.timeoutMs }: TransferOptions): KVWork {
    this.checkOpen();
    this.#operations.checkRoom();
    const { names, pushes, buckets, held, digest: ofNames } = this.#plan(call);
    const what = `${verb} of ${listedKeys(names)}`;
    const options = { name: this.#named(what, ofNames), timeoutMs };
    // Before sums take their place.
    const refused = pushes.filter(({ parameter, sources }) =>
      sources.some((source) => this.#table.refusedAt(parameter.dtype, source) >= 0),
    );
    const start = (bucket: Bucket): KVWork => {
      const compressed = bucket.dtype === 'float32' ? this.#codec : undefined;
      const { work, sumOf, giveBack } =
        compressed === undefined ? this.#sums.start(bucket, pushes, options) : this.#sums.startEncoded(compressed, bucket, pushes, options);
      const effect = (): Effect => this.#update(bucket, pushes, { sumOf, giveBack, refused, call: options });
      return this.#operations.start({ what, works: [work], effect });
    };
    held.hold();
    const parts: KVWork[] = [];
    try {
      for (const bucket of buckets) parts.push(start(bucket));
    } catch (thrown) {
      held.letGo();
      throw thrown;
    }
    this.#unfinished.add(names);
    const whole = (): void => {
      this.#unfinished.delete(names);
      const failed = parts.find(({ error }) => error !== undefined)?.error;
      if (failed !== undefined) throw failed;
    };
    return this.#operations.start({ what, works: [], effect: () => once(whole), ended: () => held.letGo() });
  }

  *#update(bucket: Bucket, pushes: readonly PlannedPush[], { sumOf, giveBack, refused, call }: ReducedBucket): Effect {
    let failure: unknown;
    let culprit: PlannedPush | undefined;
    for (const member of bucket.members) {
      const push = pushes[member.index];
      const { parameter, targets } = push;
      try {
        const sum = sumOf(member);
        if (this.#table.refusedAt(parameter.dtype, sum) >= 0) culprit ??= failure === undefined ? push : undefined;
        const value = this.#table.update(parameter.key, sum);
        for (const target of targets) {
          if (target !== sum || !this.#table.assigns) copyElements(this.#options.kernels, target, value);
        }
      } catch (thrown) {
        // The others take effect: on every worker the same ones.
        failure ??= thrown;
      }
    }
    giveBack();
    if (failure === undefined) return;
    if (culprit === undefined) throw failure;
    // The sum is the same everywhere, and so is this: every worker says whether it was its gradient.
    const flags = new Uint8Array(this.numWorkers);
    yield [this.#steps.allGather(flags, Uint8Array.of(refused.includes(culprit) ? 1 : 0), call)];
    throw refusal(culprit.parameter.key, Array.from(flags, Boolean));
  }

  /** Everyone's rows, in the order of ranks. */
  *#gatherRows({ dtype, shape }: NamedParameter, own: PushedRows, call: CallOptions): Generator<readonly Work[], PushedRows[]> {
    const width = countOf(shape.slice(1));
    const counts = new Uint32Array(this.numWorkers);
    yield [this.#steps.allGather(counts, Uint32Array.of(own.rows.length), call)];
    const total = counts.reduce((sum, count) => sum + count, 0);
    const all = { rows: new Uint32Array(total), values: emptyLike(dtype, total * width) };
    yield [
      this.#steps.allGather(all.rows, own.rows, { ...call, counts: [...counts] }),
      this.#steps.allGather(all.values, own.values, { ...call, counts: Array.from(counts, (count) => count * width) }),
    ];
    let at = 0;
    return Array.from(counts, (count) => {
      const [from, to] = [at, (at += count)];
      return { rows: all.rows.subarray(from, to), values: all.values.subarray(from * width, to * width) };
    });
  }

  #folder(path: string): SnapshotFolder {
    return SnapshotFolder.warning(path, this.#options.log ?? silentLogger);
  }

  #locally(what: string, outs: readonly Value[], effect: () => void): KVWork {
    this.#operations.checkRoom();
    const held = new HeldValues();
    for (const out of outs) held.add(out);
    held.hold();
    return this.#operations.start({ what, works: [], effect: () => once(effect), ended: () => held.letGo() });
  }

  /** What ranks compare: the call, all its keys, and what decides how they are treated. */
  #named(what: string, ofKeys: string): string {
    const codec = this.#codec === undefined ? '' : `, compressed ${JSON.stringify(this.#codec.spec)}`;
    const unannounced = this.#control.pending ? ', before the barrier that announces what worker 0 has set' : '';
    return `${what}, ${ofKeys}${codec}${unannounced}`;
  }
}

/** Of one worker. */
interface PushedRows {
  /** Distinct and ascending. */
  readonly rows: Uint32Array;
  /** rows × width elements. */
  readonly values: TypedArray;
}

interface ReducedBucket extends Omit<BucketSum, 'work'> {
  /** What this worker pushed that the optimiser refuses. */
  readonly refused: readonly PlannedPush[];
  readonly call: CallOptions;
}

/** @param whose by worker: whether its gradient was refused. None: their sum was. */
function refusal(key: string, whose: readonly boolean[]): ShoalError {
  const workers = whose.flatMap((refused, worker) => (refused ? [`worker ${worker}`] : []));
  const what = workers.length === 0 ? 'the sum of the gradients' : `the gradient of ${workers.join(' and ')}`;
  return new ShoalError('usage', `${what} for '${key}' holds NaN or infinity; the push was refused`);
}

type Effect = Generator<readonly Work[], void>;

function* once(effect: () => void): Effect {
  effect();
  yield* [];
}

/** Of all parts, for names of calls that are compared between ranks. */
function digest(parts: readonly string[]): string {
  return createHash('sha256').update(JSON.stringify(parts)).digest('hex').slice(0, 16);
}
