/** The process group as user code sees it: checks arguments and describes calls. It must not know the path of a call, nor
 *  how the call runs. */
import { must } from '../../base/assert.ts';
import { ShoalError } from '../../base/errors.ts';
import { exhaustion, isExhaustion } from '../../base/exhaustion.ts';
import { checkOptions, describeValue, noOptions } from '../../base/schema.ts';
import { dtypeInfo, type DType } from '../../memory/dtype.ts';
import { createKernels } from '../../memory/kernels/create-kernels.ts';
import { loadNative } from '../../memory/native.ts';
import { countOf, Tensor } from '../../memory/tensor.ts';
import type { CostModel } from '../../plan/cost.ts';
import type { Collective } from '../../plan/ir.ts';
import type { Topology } from '../../plan/topology.ts';
import type { CallDispatch, CheckedCall, RepeatableOptions } from '../caller/call-dispatch.ts';
import type { CallChecks } from '../caller/call-checks.ts';
import type { WorldHandle } from '../caller/world-handle.ts';
import type { CollectiveCall } from '../../call/contract.ts';
import { restrictHosts, type GroupSpec } from '../../call/group-spec.ts';
import type { TensorMemory } from '../caller/tensor-memory.ts';
import type {
  AllToAllOptions,
  AnyReduceOp,
  CallOptions,
  CollectiveData,
  CountsOptions,
  PeerOptions,
  GrowOptions,
  ProcessGroup,
  ReconfigureOptions,
  ReduceOptions,
  RootOptions,
  ScheduledGroup,
  SchedulingOptions,
  ShrinkOptions,
  SubgroupsOptions,
  TensorLike,
  Work,
} from '../caller/types.ts';
import type { anySource, BatchCall, ReceiveWork } from '../caller/types.ts';
import type { SettlingWork } from '../../comm/caller/work.ts';
import type { JobStore } from '../../store/store.ts';
import { checkTimeout, localPlace } from '../caller/call-arguments.ts';
import { callOptions, destroyOptions, newGroupOptions, scheduledOptions, splitOptions, subgroupsOptions } from '../caller/call-options.ts';
import { checkBatch, startBatch, type BatchGroup } from './batch.ts';
import { isPlanned, startLocating, startReducing, type ComposingGroup, type ReducingCall, type ReducingOptions } from './composed-calls.ts';
import { allGatherObject, broadcastObject, gatherObject, scatterObject } from './objects.ts';
import { checkedScheduling, checkSettings } from './scheduling.ts';
import { createParts, type GroupParts } from './group-parts.ts';
import { PersistentCalls } from './persistent-calls.ts';
import { followed, grownSpec, handOver, reconfiguredSpec, shrunkSpec } from './change.ts';
import { markStep, span } from './span.ts';
import { groupOfAll, groupOfRanks, splitGroup, subgroupOf } from './subgroups.ts';

const destroyTimeoutMs = 10_000;

export class CommGroup extends PersistentCalls implements ProcessGroup {
  readonly name: string;
  readonly rank: number;
  readonly size: number;
  readonly localRank: number;
  readonly localSize: number;
  readonly hosts: readonly (readonly number[])[];
  readonly globalRanks: readonly number[];
  /** Its number in the world. */
  readonly id: number;
  readonly spec: GroupSpec;
  readonly #world: WorldHandle;
  readonly #dispatch: CallDispatch;
  readonly #checks: CallChecks;
  readonly #parts: GroupParts;

  /** @param of a group of the same ranks, which stays responsible for tensors and calls of this one. Default: none. */
  constructor(world: WorldHandle, spec: GroupSpec, of?: CommGroup) {
    super();
    this.#world = world;
    this.spec = spec;
    ({ id: this.id, name: this.name, rank: this.rank, globalRanks: this.globalRanks } = spec);
    this.size = spec.globalRanks.length;
    this.hosts = restrictHosts(world.info.hosts, spec.globalRanks);
    ({ localRank: this.localRank, localSize: this.localSize } = localPlace(this.hosts, this.rank));
    this.#parts = of ? of.#parts : createParts(world, spec, () => this.#openPieceGroup());
    ({ dispatch: this.#dispatch, checks: this.#checks } = this.#parts);
  }

  // ── tensors ─────────────────────────────────────────────────────────────────────────────────────────────────────

  tensor<D extends DType>(dtype: D, shape: readonly number[]): Tensor<D> {
    this.#checkUsable();
    const { block, offset } = this.#allocate(countOf(shape) * dtypeInfo(dtype).bytes);
    const tensor = new Tensor(dtype, shape, block, offset);
    new Uint8Array(block.buffer, offset, tensor.bytes).fill(0);
    this.#parts.blocks.set(tensor, block);
    return tensor;
  }

  /** Where the process has run out of something, that may end it: other ranks know the reason then. */
  #allocate(bytes: number): ReturnType<TensorMemory['allocateTensor']> {
    const { client, memory } = this.#world;
    try {
      const allocated = memory.allocateTensor(bytes);
      client.endTrouble();
      return allocated;
    } catch (thrown) {
      if (isExhaustion(thrown)) client.tellTrouble(thrown);
      throw thrown;
    }
  }

  release(tensor: Tensor): void {
    if (!(tensor instanceof Tensor)) throw new ShoalError('usage', `release takes a tensor of the group, not ${describeValue(tensor)}`);
    const block = this.#parts.blocks.get(tensor);
    if (!block) {
      if (this.#parts.destroyed) throw new ShoalError('usage', `group '${this.name}' was destroyed, and with it the tensor is given back`);
      const what = tensor.released ? 'has been released before' : `was not made by group '${this.name}'`;
      throw new ShoalError('usage', `this tensor ${what}`);
    }
    this.#parts.blocks.delete(tensor);
    block.release();
  }

  // ── collectives ─────────────────────────────────────────────────────────────────────────────────────────────────

  allReduce(data: CollectiveData, options: ReduceOptions<AnyReduceOp> = noOptions): Work {
    if (!isPlanned(options)) return this.#reduceComposed('allReduce', data, data, options);
    return this.#repeat('all-reduce', options, data) ?? this.startChecked(this.#checks.allReduce(data, options));
  }

  broadcast(data: CollectiveData, options: RootOptions = noOptions): Work {
    return this.#repeat('broadcast', options, data) ?? this.startChecked(this.#checks.broadcast(data, options));
  }

  reduce(data: CollectiveData, options: ReduceOptions<AnyReduceOp> & RootOptions = noOptions): Work {
    if (!isPlanned(options)) return this.#reduceComposed('reduce', data, data, options);
    return this.#repeat('reduce', options, data) ?? this.startChecked(this.#checks.reduce(data, options));
  }

  scan(data: TensorLike, options: ReduceOptions<AnyReduceOp> = noOptions): Work {
    return this.#reduceComposed('scan', data, data, options);
  }

  exscan(data: TensorLike, options: ReduceOptions<AnyReduceOp> = noOptions): Work {
    return this.#reduceComposed('exscan', data, data, options);
  }

  maxLoc(values: TensorLike, indices: TensorLike, options: CallOptions = noOptions): Work {
    return this.#compose('maxLoc', options, (group) => startLocating(group, 'maxLoc', values, indices, options));
  }

  minLoc(values: TensorLike, indices: TensorLike, options: CallOptions = noOptions): Work {
    return this.#compose('minLoc', options, (group) => startLocating(group, 'minLoc', values, indices, options));
  }

  allGather(output: CollectiveData, input: CollectiveData, options: CountsOptions = noOptions): Work {
    return this.#repeat('all-gather', options, input, output) ?? this.startChecked(this.#checks.allGather(output, input, options));
  }

  gather(output: CollectiveData | null, input: CollectiveData | null, options: CountsOptions & RootOptions = noOptions): Work {
    return this.#repeat('gather', options, input, output) ?? this.startChecked(this.#checks.gather(output, input, options));
  }

  scatter(output: CollectiveData | null, input: CollectiveData | null, options: CountsOptions & RootOptions = noOptions): Work {
    return this.#repeat('scatter', options, output, input) ?? this.startChecked(this.#checks.scatter(output, input, options));
  }

  reduceScatter(output: CollectiveData, input: CollectiveData, options: ReduceOptions<AnyReduceOp> & CountsOptions = noOptions): Work {
    if (!isPlanned(options)) return this.#reduceComposed('reduceScatter', output, input, options);
    return this.#repeat('reduce-scatter', options, input, output) ?? this.startChecked(this.#checks.reduceScatter(output, input, options));
  }

  allToAll(output: CollectiveData, input: CollectiveData, options: AllToAllOptions = noOptions): Work {
    return this.#repeat('all-to-all', options, input, output) ?? this.startChecked(this.#checks.allToAll(output, input, options));
  }

  barrier(options: CallOptions = noOptions): Work {
    return this.#repeat('barrier', options) ?? this.startChecked(this.#checks.barrier('barrier', options));
  }

  monitoredBarrier(options: CallOptions = noOptions): Work {
    return this.startChecked(this.#checks.barrier('monitoredBarrier', options));
  }

  batch(calls: readonly BatchCall[], options: CallOptions = noOptions): Work {
    checkOptions('batch', options, callOptions);
    const checked = checkBatch(calls, this.#checks, options);
    return this.#begin('batch', options, () => startBatch(this.#batchGroup(), checked));
  }

  // ── objects ─────────────────────────────────────────────────────────────────────────────────────────────────────

  allGatherObject<T>(value: T, options?: CallOptions): Promise<T[]> {
    return allGatherObject(this, value, options);
  }

  gatherObject<T>(value: T, options?: RootOptions): Promise<T[] | null> {
    return gatherObject(this, value, options);
  }

  broadcastObject<T>(value: T | undefined, options?: RootOptions): Promise<T> {
    return broadcastObject(this, value, options);
  }

  scatterObject<T>(values: readonly T[] | null, options?: RootOptions): Promise<T> {
    return scatterObject(this, values, options);
  }

  // ── point to point ──────────────────────────────────────────────────────────────────────────────────────────────

  send(data: TensorLike, peer: number, options: PeerOptions = noOptions): Work {
    const message = this.#checks.message('send', data, peer, options);
    return this.#begin('send', options, () => this.#dispatch.startMessage(message));
  }

  recv(data: TensorLike, peer: number | typeof anySource, options: PeerOptions = noOptions): ReceiveWork {
    const message = this.#checks.message('recv', data, peer, options);
    return this.#begin('recv', options, () => this.#dispatch.startMessage(message));
  }

  // ── groups ──────────────────────────────────────────────────────────────────────────────────────────────────────

  async split(color: number | null, options: { key?: number; timeoutMs?: number } = noOptions): Promise<ProcessGroup | null> {
    checkOptions('split', options, splitOptions);
    return this.#open(await splitGroup(this, this.#world, color, options), options.timeoutMs);
  }

  async newGroup(
    ranks: readonly number[],
    options: { timeoutMs?: number; name?: string; backend?: string } = noOptions,
  ): Promise<ProcessGroup | null> {
    checkOptions('newGroup', options, newGroupOptions);
    return this.#open(await groupOfRanks(this, this.#world, ranks, options), options.timeoutMs);
  }

  async newSubgroups(options: SubgroupsOptions = noOptions): Promise<ProcessGroup | null> {
    checkOptions('newSubgroups', options, subgroupsOptions);
    return this.#open(await subgroupOf(this, this.#world, options), options.timeoutMs);
  }

  scheduled(options: SchedulingOptions & { timeoutMs?: number } = noOptions): Promise<ScheduledGroup> {
    checkOptions('scheduled', options, scheduledOptions);
    return this.openScheduled(options);
  }

  /** @param how `ownsGroup`: this group ends with the scheduled one. */
  async openScheduled(
    { timeoutMs = this.#world.settings.timeoutMs, ...options }: SchedulingOptions & { timeoutMs?: number },
    how: { readonly ownsGroup?: boolean } = {},
  ): Promise<ScheduledGroup> {
    checkTimeout(timeoutMs);
    this.#checkUsable();
    const scheduling = { ...this.#world.scheduling, ...checkedScheduling('scheduled', options, this.#world.partitionBytesMin) };
    checkSettings(scheduling);
    const spec = await groupOfAll(this, this.#world, { timeoutMs, scheduling });
    await this.#world.client.start({ type: 'open-group', spec, timeoutMs }, `opening group '${spec.name}'`);
    return this.#world.scheduledGroup(this, spec, how);
  }

  async shrink(options: ShrinkOptions = noOptions): Promise<ProcessGroup> {
    return this.change(() => shrunkSpec(this.spec, this.#world, options));
  }

  async grow(options: GrowOptions = noOptions): Promise<ProcessGroup> {
    return this.change(() => grownSpec(this.spec, this.#world, options, this.#parts.ownsWorld));
  }

  async reconfigure(options: ReconfigureOptions = noOptions): Promise<ProcessGroup> {
    return this.change(() => reconfiguredSpec(this.spec, this.#world, options, this.#parts.ownsWorld));
  }

  get waiting(): number {
    return this.#world.client.waiting;
  }

  get leaving(): boolean {
    return this.#world.leaveSignal.hasCome;
  }

  protected change(next: () => Promise<GroupSpec>): Promise<ProcessGroup> {
    this.#checkUsable();
    return followed(this, this.#parts, async () => {
      const group = new CommGroup(this.#world, await next());
      return handOver(this.#parts, group.#parts).then(() => group);
    });
  }

  abort(reason?: unknown): void {
    this.#checkUsable();
    const error = this.#parts.signals.abort(reason);
    this.#parts.devices?.fail('abort', error);
  }

  get isAborted(): boolean {
    return this.#world.client.aborted.has(this.id);
  }

  destroy(options: { timeoutMs?: number } = noOptions): Promise<void> {
    checkOptions('destroy', options, destroyOptions);
    const parts = this.#parts;
    if (parts.successor) return parts.successor.catch(() => this).then((group) => group.destroy(options));
    parts.destroyed ??= this.#end(options.timeoutMs ?? destroyTimeoutMs);
    return parts.destroyed;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.destroy();
  }

  // ── beside communication ────────────────────────────────────────────────────────────────────────────────────────

  get store(): JobStore {
    return this.#world.store;
  }

  span<T>(name: string, fn: () => T, details?: Readonly<Record<string, string | number>>): T {
    return span(this.#world.trace, name, fn, details);
  }

  step(): void {
    markStep(this.#world);
  }

  /** The fabric over which this rank reaches each rank of the group: `shm`, `tcp`, `self`. */
  get links(): readonly string[] {
    const row = this.#world.info.fabricOf[this.globalRanks[this.rank]];
    return this.globalRanks.map((rank) => row[rank]);
  }

  /** The hosts of the group as plans see them: ranks that load from and store to each other's memory. */
  get topology(): Topology {
    return this.spec.topology;
  }

  /** The algorithm that an operation of so many bytes takes, on this rank as on all others. */
  algorithmOf(collective: Collective, bytes: number): string {
    return this.#parts.planner.algorithmOf(collective, bytes);
  }

  /** Rates of the world, measured at its start; undefined where nothing is chosen by them. */
  get costModel(): CostModel | undefined {
    return this.#world.info.model;
  }

  /** fabricOf[a][b] for all ranks of the world. */
  get linkMatrix(): readonly (readonly string[])[] {
    return this.#world.info.fabricOf;
  }

  // ── how calls are made ──────────────────────────────────────────────────────────────────────────────────────────

  /** The call as it was made before, if it was. @param first the argument that its `uses` begin with. */
  #repeat(
    kind: CollectiveCall['kind'],
    options: RepeatableOptions,
    first?: CollectiveData | null,
    second?: CollectiveData | null,
  ): Work | undefined {
    const work = this.#parts.destroyed ? undefined : this.#dispatch.repeat(kind, options, first, second);
    work?.countIn(this.#world.unheeded);
    return work;
  }

  startChecked(checked: CheckedCall): Work {
    return this.#begin(checked.call.kind, checked.options, () => this.#dispatch.start(checked));
  }

  #reduceComposed(method: ReducingCall, target: CollectiveData, source: CollectiveData, options: ReducingOptions): Work {
    return this.#compose(method, options, (group) => startReducing(group, method, target, source, options));
  }

  #compose(method: string, options: CallOptions, start: (group: ComposingGroup) => SettlingWork): Work {
    return this.#begin(method, options ?? noOptions, () => {
      this.#parts.kernels ??= createKernels({ native: loadNative({ enabled: this.#world.settings.native }) });
      return start({ ...this.#batchGroup(), rank: this.rank, checks: this.#checks, kernels: this.#parts.kernels });
    });
  }

  /** Starts what has been checked, unless the group or the call's signal has ended. */
  #begin<W extends SettlingWork>(what: string, { signal }: CallOptions, start: () => W): W {
    this.#checkUsable();
    const { signals } = this.#parts;
    signals.check(signal, what);
    const work = signals.watch(start(), signal, what);
    work.countIn(this.#world.unheeded);
    return work;
  }

  /** The same ranks: its number is agreed on by a call of this group, in its order. */
  async #openPieceGroup(): Promise<CommGroup> {
    const spec = await groupOfAll(this, this.#world, { name: `${this.name}/devices` });
    // This thread moves memory of devices: collectives run beside it, never on it.
    return must(await this.#open(spec, undefined, { ...this.#world, openFastPath: () => undefined }), () => 'this rank is one of all');
  }

  #batchGroup(): BatchGroup {
    return {
      size: this.size,
      tensor: (dtype, shape) => this.tensor(dtype, shape),
      // After `destroy` it has been given back.
      release: (tensor) => this.#parts.blocks.has(tensor) && this.release(tensor),
      startCollective: (call) => this.#dispatch.start(call),
      startMessage: (message) => this.#dispatch.startMessage(message),
      now: this.#world.client.now,
    };
  }

  async #open(spec: GroupSpec | null, timeoutMs = this.#world.settings.timeoutMs, world = this.#world): Promise<CommGroup | null> {
    if (spec === null) return null;
    const { client } = this.#world;
    await client.start({ type: 'open-group', spec, timeoutMs }, `opening group '${spec.name}'`);
    try {
      return new CommGroup(world, spec);
    } catch (thrown) {
      // This rank cannot take part: the others hear of it.
      const rank = this.globalRanks[this.rank];
      const error = exhaustion(`rank ${rank}`, thrown, `opening group '${spec.name}'`, { rank }) ?? ShoalError.from(thrown);
      await client.failGroup(spec.id, error);
      await client.start({ type: 'close-group', group: spec.id, timeoutMs: 0 }, `destroying group '${spec.name}'`);
      throw error;
    }
  }

  async #end(timeoutMs: number): Promise<void> {
    await this.#parts.devices?.end(timeoutMs);
    for (const block of this.#parts.blocks.values()) block.leave();
    this.#parts.blocks.clear();
    const { client } = this.#world;
    try {
      if (this.#parts.ownsWorld) await this.#world.close(timeoutMs);
      else await client.start({ type: 'close-group', group: this.spec.id, timeoutMs }, `destroying group '${this.name}'`);
    } finally {
      this.#dispatch.close();
    }
  }

  // ── checks ──────────────────────────────────────────────────────────────────────────────────────────────────────

  protected usableChecks(): CallChecks {
    this.#checkUsable();
    return this.#checks;
  }

  #checkUsable(): void {
    const { destroyed, successor } = this.#parts;
    if (!destroyed) return;
    const end = successor ? 'shrunk, grown or reconfigured: call the group that this has given' : 'destroyed';
    throw new ShoalError('closed', `group '${this.name}' was ${end}`, { rank: this.rank });
  }
}
