/** A process group with scheduled all-reduces: they run by priority and in parts, in a separate group, in an order that
 *  all ranks agree on. All other calls go to the parent group. It must not know how the order is made. */
import { totalmem } from 'node:os';
import { must } from '../../base/assert.ts';
import { ShoalError } from '../../base/errors.ts';
import { checkFields, checkOptions, describeValue, noOptions } from '../../base/schema.ts';
import { settingDefinitions } from '../../base/settings/settings.ts';
import type { DType } from '../../memory/dtype.ts';
import type { Tensor } from '../../memory/tensor.ts';
import { checkTimeout, reductionOf } from '../caller/call-arguments.ts';
import { CallBuffers, onHost, operand } from '../caller/call-buffers.ts';
import { destroyOptions, scheduledReduceOptions, schedulingOptions } from '../caller/call-options.ts';
import type { CollectiveCall } from '../shared/call/contract.ts';
import { type GroupSpec, type Scheduling, scheduledNameMax } from '../shared/call/group-spec.ts';
import type {
  AllToAllOptions,
  BatchCall,
  CallOptions,
  CollectiveData,
  CountsOptions,
  PeerOptions,
  ReceiveWork,
  ProcessGroup,
  ReduceOptions,
  RootOptions,
  ScheduledGroup,
  ScheduledReduceOptions,
  SchedulingOptions,
  SchedulingStatus,
  SubgroupsOptions,
  TensorLike,
  Work,
} from '../caller/types.ts';
import type { JobStore } from '../../store/store.ts';
import { CallSignals } from './call-signals.ts';
import type { SharedBuffer } from '../shared/comm-protocol.ts';
import { checkBytes } from '../../scheduler/core.ts';
import { tuningOf } from '../../scheduler/tuner/tuner.ts';
import type { WorldHandle } from '../caller/world-handle.ts';

const destroyTimeoutMs = 10_000;

export interface ScheduledCommGroupOptions {
  readonly world: WorldHandle;
  /** Does everything but all-reduces. */
  readonly group: ProcessGroup;
  /** Of the group that all-reduces go through. */
  readonly spec: GroupSpec;
  /** `group` ends with this one. Default: it goes on. */
  readonly ownsGroup?: boolean;
}

export class ScheduledCommGroup implements ScheduledGroup {
  readonly name: string;
  readonly rank: number;
  readonly size: number;
  readonly localRank: number;
  readonly localSize: number;
  readonly hosts: readonly (readonly number[])[];
  readonly globalRanks: readonly number[];
  readonly #options: ScheduledCommGroupOptions;
  readonly #signals: CallSignals;
  /** Before the first point of a tuner. */
  #set: SchedulingStatus;
  /** All-reduces without a name. */
  #unnamed = 0;
  #destroyed: Promise<void> | undefined;

  constructor(options: ScheduledCommGroupOptions) {
    this.#options = options;
    const { world, group, spec } = options;
    this.#signals = new CallSignals(world.client, spec);
    const { creditBytes, partitionBytes, tuning } = must(spec.scheduling, () => 'the group is scheduled');
    this.#set = { creditBytes, partitionBytes, tuning: tuning === undefined ? 'fixed' : 'tuning', sinceStep: 0 };
    this.name = group.name;
    this.rank = group.rank;
    this.size = group.size;
    this.localRank = group.localRank;
    this.localSize = group.localSize;
    this.hosts = group.hosts;
    this.globalRanks = group.globalRanks;
  }

  allReduce(data: TensorLike, options: ScheduledReduceOptions = noOptions): Work {
    checkOptions('allReduce', options, scheduledReduceOptions);
    this.#checkUsable();
    const target = operand(onHost(data), 'the data of allReduce');
    const { priority = 0 } = options;
    if (!Number.isFinite(priority))
      throw new ShoalError('usage', `allReduce: priority must be a finite number, not ${describeValue(priority)}`);
    const name = this.#nameOf(options.name);
    const isNamed = options.name !== undefined;
    const { world, spec } = this.#options;
    const timeoutMs = checkTimeout(options.timeoutMs ?? world.settings.timeoutMs);
    const call: CollectiveCall = { kind: 'all-reduce', dtype: target.dtype, count: target.count, name, ...reductionOf(target, options) };
    const reach = new CallBuffers(world.memory, [{ name: 'data', operand: target, reads: true, writes: true }]);
    const { signal } = options;
    this.#signals.check(signal, 'all-reduce');
    const buffer = reach.share().data as SharedBuffer;
    const work = world.client.start(
      { type: 'scheduled', group: spec.id, name, isNamed, priority, call, buffer, timeoutMs },
      `all-reduce of '${name}' of group '${spec.name}'`,
      reach.pend(),
    );
    work.countIn(world.unheeded);
    return this.#signals.watch(work, signal, 'all-reduce');
  }

  setScheduling(options: Omit<SchedulingOptions, 'tuning'>): void {
    this.#checkUsable();
    const { tuning, ...scheduling } = checkedScheduling('setScheduling', options, this.#options.world.partitionBytesMin);
    const { world, spec } = this.#options;
    if (tuning !== undefined) throw new ShoalError('usage', 'setScheduling: whether a group is tuned is said when it is made');
    if (spec.scheduling?.tuning !== undefined)
      throw new ShoalError(
        'usage',
        `setScheduling: credit and partition of group '${spec.name}' are tuned; make it without tuning to set them`,
      );
    this.#set = { ...this.#set, ...scheduling };
    world.client.post({ type: 'schedule', group: spec.id, scheduling });
  }

  get scheduling(): SchedulingStatus {
    const { world, spec } = this.#options;
    return world.client.schedulings.get(spec.id) ?? this.#set;
  }

  destroy(options: { timeoutMs?: number } = noOptions): Promise<void> {
    checkOptions('destroy', options, destroyOptions);
    this.#destroyed ??= this.#end(options.timeoutMs ?? destroyTimeoutMs);
    return this.#destroyed;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.destroy();
  }

  async #end(timeoutMs: number): Promise<void> {
    const { world, group, spec, ownsGroup } = this.#options;
    await world.client.start({ type: 'close-group', group: spec.id, timeoutMs }, `destroying group '${spec.name}'`);
    if (ownsGroup) await group.destroy({ timeoutMs });
  }

  // ── as the group does it ────────────────────────────────────────────────────────────────────────────────────────

  tensor<D extends DType>(dtype: D, shape: readonly number[]): Tensor<D> {
    return this.#options.group.tensor(dtype, shape);
  }

  release(tensor: Tensor): void {
    this.#options.group.release(tensor);
  }

  broadcast(data: CollectiveData, options?: RootOptions): Work {
    return this.#options.group.broadcast(data, options);
  }

  reduce(data: CollectiveData, options?: ReduceOptions & RootOptions): Work {
    return this.#options.group.reduce(data, options);
  }

  allGather(output: CollectiveData, input: CollectiveData, options?: CountsOptions): Work {
    return this.#options.group.allGather(output, input, options);
  }

  gather(output: CollectiveData | null, input: CollectiveData, options?: CountsOptions & RootOptions): Work {
    return this.#options.group.gather(output, input, options);
  }

  scatter(output: CollectiveData, input: CollectiveData | null, options?: CountsOptions & RootOptions): Work {
    return this.#options.group.scatter(output, input, options);
  }

  reduceScatter(output: CollectiveData, input: CollectiveData, options?: ReduceOptions & CountsOptions): Work {
    return this.#options.group.reduceScatter(output, input, options);
  }

  allToAll(output: CollectiveData, input: CollectiveData, options?: AllToAllOptions): Work {
    return this.#options.group.allToAll(output, input, options);
  }

  allGatherObject<T>(value: T, options?: CallOptions): Promise<T[]> {
    return this.#options.group.allGatherObject(value, options);
  }

  gatherObject<T>(value: T, options?: RootOptions): Promise<T[] | null> {
    return this.#options.group.gatherObject(value, options);
  }

  broadcastObject<T>(value: T | undefined, options?: RootOptions): Promise<T> {
    return this.#options.group.broadcastObject(value, options);
  }

  scatterObject<T>(values: readonly T[] | null, options?: RootOptions): Promise<T> {
    return this.#options.group.scatterObject(values, options);
  }

  send(data: TensorLike, peer: number, options?: PeerOptions): Work {
    return this.#options.group.send(data, peer, options);
  }

  recv(data: TensorLike, peer: number | 'any', options?: PeerOptions): ReceiveWork {
    return this.#options.group.recv(data, peer, options);
  }

  batch(calls: readonly BatchCall[], options?: CallOptions): Work {
    return this.#options.group.batch(calls, options);
  }

  barrier(options?: CallOptions): Work {
    return this.#options.group.barrier(options);
  }

  monitoredBarrier(options?: CallOptions): Work {
    return this.#options.group.monitoredBarrier(options);
  }

  split(color: number | null, options?: { key?: number; timeoutMs?: number }): Promise<ProcessGroup | null> {
    return this.#options.group.split(color, options);
  }

  newGroup(ranks: readonly number[], options?: { timeoutMs?: number; name?: string; backend?: string }): Promise<ProcessGroup | null> {
    return this.#options.group.newGroup(ranks, options);
  }

  newSubgroups(options?: SubgroupsOptions): Promise<ProcessGroup | null> {
    return this.#options.group.newSubgroups(options);
  }

  span<T>(name: string, fn: () => T, details?: Readonly<Record<string, string | number>>): T {
    return this.#options.group.span(name, fn, details);
  }

  get store(): JobStore {
    return this.#options.group.store;
  }

  scheduled(options?: SchedulingOptions & { timeoutMs?: number }): Promise<ScheduledGroup> {
    return this.#options.group.scheduled(options);
  }

  // ── checks ─────────────────────────────────────────────────────────────────────────────────────────────────────

  #nameOf(name: string | undefined): string {
    if (name === undefined) return `all-reduce ${this.#unnamed++}`;
    if (name.length <= scheduledNameMax) return name;
    throw new ShoalError(
      'usage',
      `allReduce: the name has ${name.length} characters, more than ${scheduledNameMax}: '${name.slice(0, 32)}…'`,
    );
  }

  #checkUsable(): void {
    if (this.#destroyed) throw new ShoalError('closed', `group '${this.#options.spec.name}' was destroyed`, { rank: this.rank });
  }
}

/** Smallest parts that a program may ask for: each costs all ranks about as much as a small all-reduce. */
export const { least: partitionBytesMin = 1 } = settingDefinitions.schedulePartitionBytes;

/** @throws ShoalError `usage` for credits and partitions that cannot be. */
export function checkedScheduling(call: string, options: SchedulingOptions, least: number): Partial<Scheduling> {
  checkFields(call, options, schedulingOptions);
  const { creditBytes, partitionBytes, tuning } = options;
  for (const [name, bytes] of Object.entries({ creditBytes, partitionBytes }))
    if (bytes !== undefined) checkBytes(`${call}: ${name}`, bytes, totalmem());
  const spec = tuning === undefined ? undefined : tuningOf(call, tuning, { kind: 'all-reduce', memoryBytes: totalmem() });
  const smallest = Math.min(partitionBytes ?? least, spec?.space.partitionBytes?.least ?? least);
  if (smallest < least) {
    const problem = `partitionBytes must be at least ${least}, not ${smallest}`;
    throw new ShoalError('usage', `${call}: ${problem}: every part costs all ranks about as much as a small all-reduce`);
  }
  return {
    ...(creditBytes === undefined ? {} : { creditBytes }),
    ...(partitionBytes === undefined ? {} : { partitionBytes }),
    ...(tuning === undefined ? {} : { tuning: spec }),
  };
}

/** What a program says is checked: what is wrong now comes from the settings. @throws ShoalError `usage`. */
export function checkSettings({ creditBytes, partitionBytes }: Scheduling): void {
  checkBytes('SHOAL_SCHEDULE_CREDIT_BYTES', creditBytes, totalmem());
  checkBytes('SHOAL_SCHEDULE_PARTITION_BYTES', partitionBytes, totalmem());
}
