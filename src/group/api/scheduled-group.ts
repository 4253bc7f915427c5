/** A process group with scheduled all-reduces: they run by priority and in parts, in a separate group, in an order that
 *  all ranks agree on. All other calls are those of the group that it is made of. It must not know how the order is made. */
import { must } from '../../base/assert.ts';
import { ShoalError } from '../../base/errors.ts';
import { checkOptions, describeValue, noOptions } from '../../base/schema.ts';
import { checkTimeout, reductionOf } from '../caller/call-arguments.ts';
import { CallBuffers, onHost, operand, type Operand } from '../caller/call-buffers.ts';
import { destroyOptions, scheduledReduceOptions } from '../caller/call-options.ts';
import type { ScheduledGroup, ScheduledReduceOptions, SchedulingOptions, SchedulingStatus, TensorLike, Work } from '../caller/types.ts';
import type { WorldHandle } from '../caller/world-handle.ts';
import type { SettlingWork } from '../../comm/caller/work.ts';
import type { CollectiveCall } from '../../call/contract.ts';
import { scheduledNameMax, type GroupSpec } from '../../call/group-spec.ts';
import type { Command, SharedBuffer } from '../shared/comm-protocol.ts';
import { CallSignals } from './call-signals.ts';
import { CommGroup } from './process-group.ts';
import { checkedScheduling } from './scheduling.ts';

const destroyTimeoutMs = 10_000;

type ScheduledCommand = Extract<Command, { readonly type: 'scheduled' }>;

export interface ScheduledCommGroupOptions {
  readonly world: WorldHandle;
  /** The group of the same ranks that makes all other calls. */
  readonly group: CommGroup;
  /** The group that all-reduces go through. */
  readonly spec: GroupSpec;
  /** `group` ends with this one. Default: it goes on. */
  readonly ownsGroup?: boolean;
}

export class ScheduledCommGroup extends CommGroup implements ScheduledGroup {
  override readonly allReduceInit = (): never => {
    throw new ShoalError('unsupported', 'allReduceInit: all-reduces of a scheduled group have priorities; call allReduce for each', {
      rank: this.rank,
    });
  };
  readonly #options: ScheduledCommGroupOptions;
  readonly #stops: CallSignals;
  /** The status before the first point of a tuner. */
  #set: SchedulingStatus;
  /** The number of all-reduces without a name. */
  #unnamed = 0;
  #ended: Promise<void> | undefined;

  constructor(options: ScheduledCommGroupOptions) {
    const { world, group, spec } = options;
    super(world, group.spec, group);
    this.#options = options;
    this.#stops = new CallSignals(world.client, spec);
    const { creditBytes, partitionBytes, tuning } = must(spec.scheduling, () => 'the group is scheduled');
    this.#set = { creditBytes, partitionBytes, tuning: tuning === undefined ? 'fixed' : 'tuning', sinceStep: 0 };
  }

  override allReduce(data: TensorLike, options: ScheduledReduceOptions = noOptions): Work {
    checkOptions('allReduce', options, scheduledReduceOptions);
    this.#checkOpen();
    const target = operand(onHost(data), 'the data of allReduce');
    const { priority = 0, signal } = options;
    if (!Number.isFinite(priority))
      throw new ShoalError('usage', `allReduce: priority must be a finite number, not ${describeValue(priority)}`);
    const name = this.#nameOf(options.name);
    const { world } = this.#options;
    const call: CollectiveCall = { kind: 'all-reduce', dtype: target.dtype, count: target.count, name, ...reductionOf(target, options) };
    const timeoutMs = checkTimeout(options.timeoutMs ?? world.settings.timeoutMs);
    this.#stops.check(signal, 'all-reduce');
    const work = this.#post(target, { name, isNamed: options.name !== undefined, priority, call, timeoutMs });
    work.countIn(world.unheeded);
    return this.#stops.watch(work, signal, 'all-reduce');
  }

  #post(target: Operand, task: Pick<ScheduledCommand, 'name' | 'isNamed' | 'priority' | 'call' | 'timeoutMs'>): SettlingWork {
    const { world, spec } = this.#options;
    const { client, memory } = world;
    try {
      const reach = new CallBuffers(memory, [{ name: 'data', operand: target, reads: true, writes: true }]);
      const command = { type: 'scheduled', group: spec.id, ...task, buffer: reach.share().data as SharedBuffer } as const;
      return client.start(command, `all-reduce of '${task.name}' of group '${spec.name}'`, reach.pend());
    } catch (thrown) {
      throw client.tellExhaustion(spec.id, thrown);
    }
  }

  setScheduling(options: Omit<SchedulingOptions, 'tuning'>): void {
    this.#checkOpen();
    const { tuning, ...scheduling } = checkedScheduling('setScheduling', options, this.#options.world.partitionBytesMin);
    const { world, spec } = this.#options;
    if (tuning !== undefined) throw new ShoalError('usage', 'setScheduling: whether a group is tuned is said when it is made');
    if (spec.scheduling?.tuning !== undefined) {
      const message = `setScheduling: credit and partition of group '${spec.name}' are tuned; make it without tuning to set them`;
      throw new ShoalError('usage', message);
    }
    this.#set = { ...this.#set, ...scheduling };
    world.client.post({ type: 'schedule', group: spec.id, scheduling });
  }

  get scheduling(): SchedulingStatus {
    const { world, spec } = this.#options;
    return world.client.schedulings.get(spec.id) ?? this.#set;
  }

  protected override change(): never {
    const { group } = this.#options;
    const message = `the ranks of a scheduled group do not change: change those of group '${group.name}', and schedule what that gives`;
    throw new ShoalError('unsupported', message, { rank: this.rank });
  }

  override abort(reason?: unknown): void {
    this.#checkOpen();
    this.#stops.abort(reason);
    super.abort(reason);
  }

  override get isAborted(): boolean {
    return this.#options.world.client.aborted.has(this.#options.spec.id) || super.isAborted;
  }

  override destroy(options: { timeoutMs?: number } = noOptions): Promise<void> {
    checkOptions('destroy', options, destroyOptions);
    this.#ended ??= this.#end(options.timeoutMs ?? destroyTimeoutMs);
    return this.#ended;
  }

  async #end(timeoutMs: number): Promise<void> {
    const { world, group, spec, ownsGroup } = this.#options;
    await world.client.start({ type: 'close-group', group: spec.id, timeoutMs }, `destroying group '${spec.name}'`);
    if (ownsGroup) await group.destroy({ timeoutMs });
  }

  #nameOf(name: string | undefined): string {
    if (name === undefined) return `all-reduce ${this.#unnamed++}`;
    if (name.length <= scheduledNameMax) return name;
    const message = `allReduce: the name has ${name.length} characters, more than ${scheduledNameMax}: '${name.slice(0, 32)}…'`;
    throw new ShoalError('usage', message);
  }

  #checkOpen(): void {
    if (this.#ended) throw new ShoalError('closed', `group '${this.#options.spec.name}' was destroyed`, { rank: this.rank });
  }
}
