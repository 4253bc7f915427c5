/** The process group as user code sees it: checks arguments and describes calls. Which way a call takes, and what it
 *  does there, is not known here. */
import { must } from '../../base/assert.ts';
import { ShoalError } from '../../base/errors.ts';
import { exhaustion, isExhaustion } from '../../base/exhaustion.ts';
import { checkOptions, describeValue, noOptions } from '../../base/settings/options.ts';
import type { DType } from '../../memory/dtype.ts';
import { countOf, Tensor } from '../../memory/tensor.ts';
import { dtypeInfo } from '../../memory/dtype.ts';
import type { CostModel } from '../../plan/cost.ts';
import type { Collective } from '../../plan/ir.ts';
import type { Topology } from '../../plan/topology.ts';
import { operand, type BufferUse, type Operand } from '../dispatch/call-buffers.ts';
import { CallDispatch, type RepeatableOptions } from '../dispatch/call-dispatch.ts';
import type { GroupPaths } from '../dispatch/fast-path.ts';
import type { CommClient } from '../thread/comm-client.ts';
import type { WorldInfo } from '../engine/comm-protocol.ts';
import type { CollectiveCall } from '../call/contract.ts';
import { restrictHosts, worldGroupId, type GroupSpec, type Scheduling } from '../call/group-spec.ts';
import type { TensorBlock } from '../dispatch/tensor-block.ts';
import type { TensorMemory } from '../dispatch/tensor-memory.ts';
import type {
  AllToAllOptions,
  CallOptions,
  CountsOptions,
  PeerOptions,
  ProcessGroup,
  ReduceOptions,
  RootOptions,
  ScheduledGroup,
  SchedulingOptions,
  TensorLike,
  Work,
} from '../call/types.ts';
import {
  checkCounts,
  checkRootOnly,
  checkSameCount,
  checkSameDtype,
  checkTag,
  checkTimeout,
  even,
  keptCounts,
  localPlace,
  reductionOf,
  rootOf,
  splitsOf,
} from '../dispatch/call-arguments.ts';
import {
  allToAllOptions,
  callOptions,
  countsOfRootOptions,
  countsOptions,
  destroyOptions,
  newGroupOptions,
  peerOptions,
  reduceOptions,
  reduceScatterOptions,
  reduceToRootOptions,
  rootOptions,
  scheduledOptions,
  splitOptions,
} from '../call/call-options.ts';
import { allGatherObject, broadcastObject, gatherObject, scatterObject } from './objects.ts';
import { checkedScheduling, ScheduledCommGroup } from './scheduled-group.ts';
import { groupOfRanks, splitGroup } from './subgroups.ts';

/** What all groups of a world share on the main thread. */
export interface WorldHandle {
  readonly client: CommClient;
  readonly memory: TensorMemory;
  readonly info: WorldInfo;
  readonly timeoutMs: number;
  /** Where a scheduled group says nothing. */
  readonly scheduling: Scheduling;
  /** What the calls of a group can take. */
  openPaths(spec: GroupSpec): GroupPaths;
  /** The algorithm that a group takes for an operation of so many bytes. */
  algorithmOf(spec: GroupSpec, collective: Collective, bytes: number): string;
  /** Ends the world; called when its first group is destroyed. */
  close(timeoutMs: number): Promise<void>;
}

const destroyTimeoutMs = 10_000;

export class CommGroup implements ProcessGroup {
  readonly name: string;
  readonly rank: number;
  readonly size: number;
  readonly localRank: number;
  readonly localSize: number;
  readonly hosts: readonly (readonly number[])[];
  readonly globalRanks: readonly number[];
  readonly #world: WorldHandle;
  readonly #spec: GroupSpec;
  readonly #blocks = new Map<Tensor, TensorBlock>();
  readonly #dispatch: CallDispatch;
  #destroyed: Promise<void> | undefined;

  constructor(world: WorldHandle, spec: GroupSpec) {
    this.#world = world;
    this.#spec = spec;
    this.name = spec.name;
    this.rank = spec.rank;
    this.size = spec.globalRanks.length;
    this.globalRanks = spec.globalRanks;
    const { client, memory } = world;
    this.#dispatch = new CallDispatch({ spec, client, memory, ...world.openPaths(spec) });
    this.hosts = restrictHosts(world.info.hosts, spec.globalRanks);
    ({ localRank: this.localRank, localSize: this.localSize } = localPlace(this.hosts, this.rank));
  }

  // ── tensors ─────────────────────────────────────────────────────────────────────────────────────────────────────

  tensor<D extends DType>(dtype: D, shape: readonly number[]): Tensor<D> {
    this.#checkUsable();
    const { block, offset } = this.#allocate(countOf(shape) * dtypeInfo(dtype).bytes);
    const tensor = new Tensor(dtype, shape, block, offset);
    new Uint8Array(block.buffer, offset, tensor.bytes).fill(0);
    this.#blocks.set(tensor, block);
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
    const block = this.#blocks.get(tensor);
    if (!block) {
      if (this.#destroyed) throw new ShoalError('usage', `group '${this.name}' was destroyed, and with it the tensor is given back`);
      throw new ShoalError(
        'usage',
        tensor.released ? 'this tensor has been released before' : `this tensor was not made by group '${this.name}'`,
      );
    }
    this.#blocks.delete(tensor);
    block.release();
  }

  // ── collectives ─────────────────────────────────────────────────────────────────────────────────────────────────

  allReduce(data: TensorLike, options: ReduceOptions = noOptions): Work {
    const repeated = this.#repeat('all-reduce', options, data);
    if (repeated) return repeated;
    checkOptions('allReduce', options, reduceOptions);
    const target = operand(data, 'the data of allReduce');
    return this.#collective('all-reduce', target, target.count, options, reductionOf(target, options), [
      { name: 'data', operand: target, reads: true, writes: true },
    ]);
  }

  broadcast(data: TensorLike, options: RootOptions = noOptions): Work {
    const repeated = this.#repeat('broadcast', options, data);
    if (repeated) return repeated;
    checkOptions('broadcast', options, rootOptions);
    const target = operand(data, 'the data of broadcast');
    const root = rootOf(options, this.size);
    return this.#collective('broadcast', target, target.count, options, { root }, [
      { name: 'data', operand: target, reads: root === this.rank, writes: root !== this.rank },
    ]);
  }

  reduce(data: TensorLike, options: ReduceOptions & RootOptions = noOptions): Work {
    const repeated = this.#repeat('reduce', options, data);
    if (repeated) return repeated;
    checkOptions('reduce', options, reduceToRootOptions);
    const target = operand(data, 'the data of reduce');
    const root = rootOf(options, this.size);
    return this.#collective('reduce', target, target.count, options, { root, ...reductionOf(target, options) }, [
      { name: 'data', operand: target, reads: true, writes: root === this.rank },
    ]);
  }

  allGather(output: TensorLike, input: TensorLike, options: CountsOptions = noOptions): Work {
    const repeated = this.#repeat('all-gather', options, input, output);
    if (repeated) return repeated;
    checkOptions('allGather', options, countsOptions);
    const { source, target, counts } = this.#gathering('allGather', output, input, options);
    return this.#collective('all-gather', target, target.count, options, { counts }, [
      { name: 'input', operand: source, reads: true, writes: false },
      { name: 'output', operand: target, reads: false, writes: true },
    ]);
  }

  gather(output: TensorLike | null, input: TensorLike, options: CountsOptions & RootOptions = noOptions): Work {
    const repeated = this.#repeat('gather', options, input, output);
    if (repeated) return repeated;
    checkOptions('gather', options, countsOfRootOptions);
    const root = rootOf(options, this.size);
    checkRootOnly('the output of gather', output, root, this.rank);
    const source = operand(input, 'the input of gather');
    const counts = options.counts ?? even(source.count, this.size);
    const total = checkCounts(this, 'gather', counts, source, output === null ? undefined : operand(output, 'the output of gather'));
    const buffers: BufferUse[] = [{ name: 'input', operand: source, reads: true, writes: false }];
    if (output !== null) buffers.push({ name: 'output', operand: operand(output, 'the output of gather'), reads: false, writes: true });
    return this.#collective('gather', source, total, options, { root, counts: keptCounts(options) }, buffers);
  }

  scatter(output: TensorLike, input: TensorLike | null, options: CountsOptions & RootOptions = noOptions): Work {
    const repeated = this.#repeat('scatter', options, output, input);
    if (repeated) return repeated;
    checkOptions('scatter', options, countsOfRootOptions);
    const root = rootOf(options, this.size);
    checkRootOnly('the input of scatter', input, root, this.rank);
    const target = operand(output, 'the output of scatter');
    const counts = options.counts ?? even(target.count, this.size);
    const total = checkCounts(this, 'scatter', counts, target, input === null ? undefined : operand(input, 'the input of scatter'));
    const buffers: BufferUse[] = [{ name: 'output', operand: target, reads: false, writes: true }];
    if (input !== null) buffers.push({ name: 'input', operand: operand(input, 'the input of scatter'), reads: true, writes: false });
    return this.#collective('scatter', target, total, options, { root, counts: keptCounts(options) }, buffers);
  }

  reduceScatter(output: TensorLike, input: TensorLike, options: ReduceOptions & CountsOptions = noOptions): Work {
    const repeated = this.#repeat('reduce-scatter', options, input, output);
    if (repeated) return repeated;
    checkOptions('reduceScatter', options, reduceScatterOptions);
    const { source, target, counts } = this.#gathering('reduceScatter', input, output, options);
    return this.#collective('reduce-scatter', source, target.count, options, { counts, ...reductionOf(source, options) }, [
      { name: 'input', operand: target, reads: true, writes: false },
      { name: 'output', operand: source, reads: false, writes: true },
    ]);
  }

  allToAll(output: TensorLike, input: TensorLike, options: AllToAllOptions = noOptions): Work {
    const repeated = this.#repeat('all-to-all', options, input, output);
    if (repeated) return repeated;
    checkOptions('allToAll', options, allToAllOptions);
    const source = operand(input, 'the input of allToAll');
    const target = operand(output, 'the output of allToAll');
    checkSameDtype('allToAll', source, target);
    const inputSplits = splitsOf('inputSplits', options.inputSplits, source, this.size);
    const outputSplits = splitsOf('outputSplits', options.outputSplits, target, this.size);
    const buffers: BufferUse[] = [
      { name: 'input', operand: source, reads: true, writes: false },
      { name: 'output', operand: target, reads: false, writes: true },
    ];
    if (options.inputSplits === undefined && options.outputSplits === undefined) {
      checkSameCount('allToAll', source, target);
      return this.#collective('all-to-all', source, source.count * this.size, options, {}, buffers);
    }
    const parts = { sends: inputSplits, receives: outputSplits };
    return this.#collective('all-to-all', source, source.count, options, { parts }, buffers);
  }

  barrier(options: CallOptions = noOptions): Work {
    const repeated = this.#repeat('barrier', options);
    if (repeated) return repeated;
    checkOptions('barrier', options, callOptions);
    return this.#collective('barrier', { dtype: 'uint8' }, 0, options, {}, []);
  }

  monitoredBarrier(options: CallOptions = noOptions): Work {
    checkOptions('monitoredBarrier', options, callOptions);
    return this.#collective('barrier', { dtype: 'uint8' }, 0, { name: 'monitored', ...options }, {}, []);
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
    return this.#message('send', data, peer, options);
  }

  recv(data: TensorLike, peer: number, options: PeerOptions = noOptions): Work {
    return this.#message('recv', data, peer, options);
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

  scheduled(options: SchedulingOptions & { timeoutMs?: number } = noOptions): Promise<ScheduledGroup> {
    checkOptions('scheduled', options, scheduledOptions);
    return this.openScheduled(options);
  }

  /** @param how `ownsGroup`: this group ends with the scheduled one. */
  async openScheduled(
    { timeoutMs = this.#world.timeoutMs, ...options }: SchedulingOptions & { timeoutMs?: number },
    how: { readonly ownsGroup?: boolean } = {},
  ): Promise<ScheduledGroup> {
    checkTimeout(timeoutMs);
    this.#checkUsable();
    const scheduling = { ...this.#world.scheduling, ...checkedScheduling('scheduled', options) };
    const ranks = this.globalRanks.map((_, rank) => rank);
    const spec = must(await groupOfRanks(this, this.#world, ranks, { timeoutMs, scheduling }), () => 'this rank is one of all');
    await this.#world.client.start({ type: 'open-group', spec, timeoutMs }, `opening group '${spec.name}'`);
    return new ScheduledCommGroup({ world: this.#world, group: this, spec, ...how });
  }

  destroy(options: { timeoutMs?: number } = noOptions): Promise<void> {
    checkOptions('destroy', options, destroyOptions);
    this.#destroyed ??= this.#end(options.timeoutMs ?? destroyTimeoutMs);
    return this.#destroyed;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.destroy();
  }

  /** What this rank reaches each rank of the group over: `shm`, `tcp`, `self`. */
  get links(): readonly string[] {
    const row = this.#world.info.fabricOf[this.globalRanks[this.rank]];
    return this.globalRanks.map((rank) => row[rank]);
  }

  /** Which ranks of the group load from and store to each other's memory, as plans see it. */
  get topology(): Topology {
    return this.#spec.topology;
  }

  /** The algorithm that an operation of so many bytes takes, on this rank as on all others. */
  algorithmOf(collective: Collective, bytes: number): string {
    return this.#world.algorithmOf(this.#spec, collective, bytes);
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
  #repeat(kind: CollectiveCall['kind'], options: RepeatableOptions, first?: TensorLike, second?: TensorLike | null): Work | undefined {
    return this.#destroyed ? undefined : this.#dispatch.repeat(kind, options, first, second);
  }

  #collective(
    kind: CollectiveCall['kind'],
    { dtype }: { dtype: DType },
    count: number,
    options: CallOptions,
    extra: Partial<CollectiveCall>,
    uses: readonly BufferUse[],
  ): Work {
    this.#checkUsable();
    const timeoutMs = checkTimeout(options.timeoutMs ?? this.#world.timeoutMs);
    const call: CollectiveCall = { kind, dtype, count, name: options.name, ...extra };
    return this.#dispatch.start({ call, uses, options, timeoutMs });
  }

  #message(direction: 'send' | 'recv', data: TensorLike, peer: number, options: PeerOptions): Work {
    checkOptions(direction, options, peerOptions);
    this.#checkUsable();
    const value = operand(data, `the data of ${direction}`);
    if (!Number.isInteger(peer) || peer < 0 || peer >= this.size || peer === this.rank) {
      throw new ShoalError('usage', `${direction} needs another rank of 0…${this.size - 1}, not ${peer} (this is rank ${this.rank})`);
    }
    const tag = checkTag(options.tag ?? 0);
    const timeoutMs = checkTimeout(options.timeoutMs ?? this.#world.timeoutMs);
    const use = { name: 'data', operand: value, reads: direction === 'send', writes: direction === 'recv' } as const;
    return this.#dispatch.startMessage({ direction, peer, tag, timeoutMs, use });
  }

  async #open(spec: GroupSpec | null, timeoutMs = this.#world.timeoutMs): Promise<ProcessGroup | null> {
    if (spec === null) return null;
    const { client } = this.#world;
    await client.start({ type: 'open-group', spec, timeoutMs }, `opening group '${spec.name}'`);
    try {
      return new CommGroup(this.#world, spec);
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
    for (const block of this.#blocks.values()) block.leave();
    this.#blocks.clear();
    this.#dispatch.close();
    if (this.#spec.id === worldGroupId) {
      await this.#world.close(timeoutMs);
      this.#dispatch.end();
      return;
    }
    await this.#world.client.start({ type: 'close-group', group: this.#spec.id, timeoutMs }, `destroying group '${this.name}'`);
    this.#dispatch.end();
  }

  // ── checks ──────────────────────────────────────────────────────────────────────────────────────────────────────

  #checkUsable(): void {
    if (this.#destroyed) throw new ShoalError('closed', `group '${this.name}' was destroyed`, { rank: this.rank });
  }

  /** The arguments of an operation between one part per rank and the whole. */
  #gathering(
    operation: string,
    whole: TensorLike,
    part: TensorLike,
    options: CountsOptions,
  ): { source: Operand; target: Operand; counts?: readonly number[] } {
    const source = operand(part, `the ${operation === 'allGather' ? 'input' : 'output'} of ${operation}`);
    const target = operand(whole, `the ${operation === 'allGather' ? 'output' : 'input'} of ${operation}`);
    checkCounts(this, operation, options.counts ?? even(source.count, this.size), source, target);
    return { source, target, counts: keptCounts(options) };
  }
}
