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
import { bytesOf } from '../../base/bytes.ts';
import { listed } from '../../base/collections/lists.ts';
import { ShoalError } from '../../base/errors.ts';
import type { CallOptions, ProcessGroup, Work } from '../../group/caller/types.ts';
import type { DType, TypedArray } from '../../memory/dtype.ts';
import { countOf, type Tensor } from '../../memory/tensor.ts';
import type { FirstValue, RowTransfer, Surroundings, Transfer, TransferLists, ValueLists } from '../calls/operation.ts';
import { LocalBackend, type Announcement } from './local-backend.ts';
import { BucketSums, partOf, type BucketSum, type PlannedPush } from './bucket-sums.ts';
import { planBuckets, type Bucket } from './buckets.ts';
import { ControlBarrier } from './control-barrier.ts';
import { copyElements, emptyLike } from '../../ps/values/device-values.ts';
import { GroupBlobs } from './group-blobs.ts';
import { OrderedOperations } from './ordered-operations.ts';
import { rowBytesOf } from '../../ps/protocol/placement.ts';
import { elements } from '../../ps/protocol/value-space.ts';
import { gatherRows, sumRows } from '../../ps/values/sparse-rows.ts';
import { StagingTensors } from './staging-tensors.ts';
import type { KVWork, Value } from '../calls/types.ts';
import { HeldValues } from '../calls/held-values.ts';
import {
  checkNotReleased,
  copyOf,
  fittingElements,
  fittingRows,
  listedKeys,
  rowIdsOf,
  type NamedParameter,
} from '../calls/values-argument.ts';
import type { BlobData } from '../../ps/values/blob-box.ts';

export interface CollectiveBackendOptions extends Surroundings {
  readonly group: ProcessGroup;
  /** Ends what was made for this store alone. Default: the group stays. */
  readonly onClosed?: () => Promise<void>;
}

const MiB = 2 ** 20;
const bucketing = { bucketBytes: 4 * MiB, aloneBytes: MiB / 2 };
const operationsMax = 65_536;

export class CollectiveBackend extends LocalBackend {
  readonly #options: CollectiveBackendOptions;
  readonly #group: ProcessGroup;
  /** The group for operations of several steps. */
  readonly #steps: ProcessGroup;
  readonly #operations: OrderedOperations;
  readonly #staging: StagingTensors;
  readonly #sums: BucketSums;
  readonly #blobs: GroupBlobs;
  readonly #control: ControlBarrier;
  /** Plans of lists that come again. */
  #plans = new WeakMap<TransferLists, PushPlan>();
  /** Keys of each operation that has not taken effect. */
  readonly #unfinished = new Set<readonly string[]>();

  private constructor(options: CollectiveBackendOptions, steps: ProcessGroup) {
    const { group, clock } = options;
    const { rank, size } = group;
    super(options, { type: 'collective', role: 'worker', rank, numWorkers: size, numServers: 0, workerGroup: 0, workersPerGroup: size });
    this.#options = options;
    this.#group = group;
    this.#steps = steps;
    this.#operations = new OrderedOperations({ clock, operationsMax });
    this.#staging = new StagingTensors(group, { idleBytesMax: 64 * MiB });
    this.#sums = new BucketSums({ group, kernels: options.kernels, staging: this.#staging, residuals: this.residuals });
    this.#blobs = new GroupBlobs(group, this.box);
    this.#control = new ControlBarrier(steps, this.table, { onRestored: () => this.#forgetPlans() });
  }

  /** Every rank of the group calls it. */
  static async open(options: CollectiveBackendOptions): Promise<CollectiveBackend> {
    const { group, timeoutMs } = options;
    const everyone = Array.from({ length: group.size }, (_, rank) => rank);
    const steps = await group.newGroup(everyone, { name: `${group.name}/kvstore`, timeoutMs });
    return new CollectiveBackend(options, steps as ProcessGroup);
  }

  override tensor<D extends DType>(dtype: D, shape: readonly number[]): Tensor<D> {
    return this.#group.tensor(dtype, shape);
  }

  /** Every operation is begun in the order of the calls; a worker that made another call hears of it by the name. */
  override start(operation: Transfer | RowTransfer): KVWork {
    this.#operations.checkRoom();
    switch (operation.type) {
      case 'push':
      case 'pushPull':
        return this.#reduce(operation);
      case 'pull':
        return this.#pull(operation.lists);
      case 'rowSparsePush':
        return this.#pushRows(operation);
      case 'rowSparsePull':
        return this.#pullRows(operation);
    }
  }

  override async close(): Promise<void> {
    await this.#operations.idle();
    await super.close();
    await this.#steps.destroy();
    await this.#options.onClosed?.();
  }

  // ── operations ──────────────────────────────────────────────────────────────────────────────────────────────────

  /** Worker 0's values become everyone's. */
  protected override async init(firsts: readonly FirstValue[]): Promise<undefined> {
    for (const { key } of firsts) this.table.checkNew(key);
    const described = firsts.map(({ key, dtype, shape }) => `${key} ${dtype}[${shape.join(',')}]`);
    const name = this.#named(`init of ${listed(described, 1)}`, digest(described));
    this.#operations.checkRoom();
    const parameters = firsts.map(({ key, dtype, shape, data }) => ({ key, dtype, shape, count: data.length }));
    const parts = planBuckets(parameters, { ...bucketing, aloneBytes: Infinity }).map((bucket) => {
      const staging = this.#staging.take(bucket.dtype, bucket.count);
      for (const { index, from, count } of bucket.members) {
        if (this.place.rank === 0) partOf(staging, from, count).set(firsts[index].data as never);
      }
      return { bucket, staging, work: this.#group.broadcast(staging.tensor, { root: 0, name, timeoutMs: this.place.timeoutMs }) };
    });
    const add = (): void => {
      for (const { key } of firsts) this.table.checkNew(key);
      for (const { bucket, staging } of parts) {
        for (const { index, from, count } of bucket.members)
          this.table.add(parameters[index]).data.set(partOf(staging, from, count) as never);
        staging.giveBack();
      }
    };
    await this.#operations.start({ what: name, works: parts.map(({ work }) => work), effect: () => once(add) });
  }

  #plan(lists: TransferLists): PushPlan {
    const { keys, values, outs } = lists;
    const known = this.#plans.get(lists);
    if (known !== undefined) {
      for (const list of [...values!, ...(outs ?? [])]) for (const tensor of list) checkNotReleased(tensor as Tensor);
      return known;
    }
    const pushes = keys.map((key, k): PlannedPush => {
      const parameter = this.table.get(key);
      const elements = (value: Value): TypedArray => fittingElements(parameter, value);
      const places = outs?.[k] ?? [];
      return { parameter, sources: values![k].map(elements), outs: places, targets: places.map(elements) };
    });
    const parameters = pushes.map(({ parameter }) => parameter);
    const plan = { pushes, buckets: planBuckets(parameters, bucketing), held: new HeldValues(outs ?? []), digest: digest(keys) };
    if (lists.recurs) this.#plans.set(lists, plan);
    return plan;
  }

  /** All-reduces what was pushed bucket by bucket, each an operation of its own: where its communication is complete when
   *  the call returns, as on one host, its effect comes while the sum is still in the cache. */
  #reduce({ type, lists, timeoutMs = this.place.timeoutMs }: Transfer): KVWork {
    const { keys } = lists;
    const { pushes, buckets, held, digest: ofKeys } = this.#plan(lists);
    const what = `${type} of ${listedKeys(keys)}`;
    const options = { name: this.#named(what, ofKeys), timeoutMs };
    // Before sums take their place.
    const refused = pushes.filter(({ parameter, sources }) => sources.some((source) => this.table.refusedAt(parameter.dtype, source) >= 0));
    const start = (bucket: Bucket): KVWork => {
      const compressed = bucket.dtype === 'float32' ? this.codec : undefined;
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
    this.#unfinished.add(keys);
    const whole = (): void => {
      this.#unfinished.delete(keys);
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
        if (this.table.refusedAt(parameter.dtype, sum) >= 0) culprit ??= failure === undefined ? push : undefined;
        const value = this.table.update(parameter.key, sum);
        for (const target of targets) {
          if (target !== sum || !this.table.assigns) copyElements(this.#options.kernels, target, value);
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
    const flags = new Uint8Array(this.place.numWorkers);
    yield [this.#steps.allGather(flags, Uint8Array.of(refused.includes(culprit) ? 1 : 0), call)];
    throw refusal(culprit.parameter.key, Array.from(flags, Boolean));
  }

  /** Everyone's rows, in the order of ranks. */
  *#gatherRows({ dtype, shape }: NamedParameter, own: PushedRows, call: CallOptions): Generator<readonly Work[], PushedRows[]> {
    const width = countOf(shape.slice(1));
    const counts = new Uint32Array(this.place.numWorkers);
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

  #pull({ keys, outs = [] }: TransferLists): KVWork {
    const targets = keys.map((key, k) => outs[k].map((out) => fittingElements(this.table.get(key), out)));
    return this.#locally(`pull of ${listedKeys(keys)}`, outs, () => {
      for (const [k, key] of keys.entries()) for (const target of targets[k]) target.set(this.table.get(key).data as never);
    });
  }

  #pullRows({ key, rows, value }: RowTransfer): KVWork {
    const parameter = this.table.get(key);
    const ids = rowIdsOf(parameter, rows, { ascending: false });
    const target = bytesOf(fittingRows(parameter, value, ids.length));
    return this.#locally(`rowSparsePull of '${key}'`, [[value]], () => {
      target.set(gatherRows(bytesOf(this.table.get(key).data), ids, rowBytesOf(parameter)));
    });
  }

  #pushRows({ key, rows, value, timeoutMs = this.place.timeoutMs }: RowTransfer): KVWork {
    const parameter = this.table.get(key);
    const { dtype } = parameter;
    const ids = rowIdsOf(parameter, rows, { ascending: true });
    const own = { rows: ids, values: copyOf(dtype, fittingRows(parameter, value, ids.length)) };
    const keys = [key];
    const what = `rowSparsePush of ${listedKeys(keys)}`;
    this.#unfinished.add(keys);
    const effect = function* (this: CollectiveBackend): Effect {
      try {
        const parts = yield* this.#gatherRows(parameter, own, { name: what, timeoutMs });
        const whole = parts.map((part) => ({ rows: part.rows, values: bytesOf(part.values) }));
        const sum = sumRows(this.#options.kernels, dtype, rowBytesOf(parameter), whole);
        const sums = elements(dtype, sum.values);
        if (this.table.refusedAt(dtype, sums) >= 0) {
          const whose = parts.map(({ values }) => this.table.refusedAt(dtype, values) >= 0);
          throw refusal(key, whose);
        }
        this.table.updateRows(key, sum.rows, sums);
      } finally {
        this.#unfinished.delete(keys);
      }
    };
    return this.#operations.start({ what, works: [], effect: effect.bind(this) });
  }

  protected override async barrier(): Promise<undefined> {
    this.#operations.checkRoom();
    await this.#operations.start({ what: 'barrier', works: [], effect: () => this.#control.run() });
  }

  protected override ahead(key: string): number {
    return [...this.#unfinished].filter((keys) => keys.includes(key)).length;
  }

  protected override idle(): Promise<void> {
    return this.#operations.idle();
  }

  /** Takes effect, on all workers, at the next `barrier`. */
  protected override announce(announcement: Announcement): void {
    const { snapshot } = announcement;
    if (this.place.numWorkers === 1) {
      super.announce(announcement);
      if (snapshot !== undefined) this.#forgetPlans();
      return;
    }
    // It is refused here, not on all workers at the barrier.
    if (snapshot !== undefined) this.table.check(snapshot);
    this.#control.announce(announcement);
  }

  protected override async send(worker: number, blob: BlobData): Promise<undefined> {
    await this.#blobs.send(worker, blob);
  }

  protected override receive(worker: number, name: string, timeoutMs: number): Promise<TypedArray> {
    return this.#blobs.receive(worker, name, timeoutMs);
  }

  #forgetPlans(): void {
    this.#plans = new WeakMap();
  }

  /** An operation without communication, in its turn. */
  #locally(what: string, outs: ValueLists, effect: () => void): KVWork {
    const held = new HeldValues(outs);
    held.hold();
    return this.#operations.start({ what, works: [], effect: () => once(effect), ended: () => held.letGo() });
  }

  /** The name that ranks compare: the call, all its keys, and whatever decides how they are treated. */
  #named(what: string, ofKeys: string): string {
    const codec = this.codec === undefined ? '' : `, compressed ${JSON.stringify(this.codec.spec)}`;
    const unannounced = this.#control.pending ? ', before the barrier that announces what worker 0 has set' : '';
    return `${what}, ${ofKeys}${codec}${unannounced}`;
  }
}

/** The rows that one worker pushed. */
interface PushedRows {
  /** Distinct and ascending. */
  readonly rows: Uint32Array;
  /** rows × width elements. */
  readonly values: TypedArray;
}

/** The steps of a push of given values, and of a pull into given outputs. */
interface PushPlan {
  readonly pushes: readonly PlannedPush[];
  readonly buckets: readonly Bucket[];
  readonly held: HeldValues;
  /** The keys' digest, for contracts. */
  readonly digest: string;
}

interface ReducedBucket extends Omit<BucketSum, 'work'> {
  /** Pushes of this worker that the optimiser refuses. */
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

/** One digest of all parts, for names of calls that are compared between ranks. */
function digest(parts: readonly string[]): string {
  return createHash('sha256').update(JSON.stringify(parts)).digest('hex').slice(0, 16);
}
