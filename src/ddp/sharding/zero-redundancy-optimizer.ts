/** ZeRO-1: an optimiser whose state is spread over the ranks. Each rank updates some of the parameters, whole ones, and has the
 *  state of those only; then all ranks get all of them. Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion
 *  Parameter Models", SC 2020. When the ranks change, the state is dealt anew:
 *
 *      step ─ … ─ step ✕ a rank is lost        step ─▶
 *                      └▶ settle ─▶ regroup ──┘
 *                         │          each rank gets the state of its new parameters from ranks that have it: owners, or copies of the lost
 *                         the state before or after the step that failed, as the parameters that all go on with
 *
 *  Every element is updated by the same arithmetic as without sharding, so bits are equal. It must not know what the optimiser does. */
import { ShoalError } from '../../base/errors.ts';
import { anyNumber, checkArgument, checkOptions, describeValue, integer, literal, noOptions, optionTable } from '../../base/schema.ts';
import type { ProcessGroup } from '../../group/caller/types.ts';
import type { JoinHook, Joinable } from '../join.ts';
import {
  checkGradients,
  checkParameters,
  type Floats,
  type Optimizer,
  type OptimizerClass,
  type OptimizerParameter,
} from '../optimizers.ts';
import { checkGroup } from '../../group/caller/call-arguments.ts';
import { registrationText, verifyRegistration } from '../registration.ts';
import { redeal, type RedealGroup } from './redeal.ts';
import { dtypeOf, Shards, type ShardsGroup } from './shards.ts';

/** The part of a process group that the optimiser uses. */
export type ZeroGroup = ShardsGroup & RedealGroup & Pick<ProcessGroup, 'gatherObject' | 'barrier'>;

/** An object that holds the last gradients: a `Reducer`, after its step. */
export interface GradientSource {
  /** The average of a parameter's gradient. @param index of the parameter, in registration order. */
  gradient(index: number): unknown;
}

/** The way in which state is spread over the ranks; the same on all of them. */
export interface ShardingOptions {
  /** Copies of each rank's state that other ranks keep. 1: the next rank keeps one, and applies each update to it as well. Default 0. */
  readonly redundancy?: 0 | 1;
}

const consolidateOptions = optionTable<{ to?: number }>({ to: anyNumber });
const shardingOptions = optionTable<ShardingOptions>({ redundancy: literal(0, 1) });

/** An optimiser whose state is spread over the ranks, like torch's of this name (ZeRO-1). Each rank has the state of its own
 *  parameters, updates those, and gets the others from their owners: bits are those of the whole optimiser on every rank.
 *
 *      const optimizer = new ZeroRedundancyOptimizer(group, parameters, Adam, { lr: 1e-3 });
 *      await optimizer.step(averagedGradients); */
export class ZeroRedundancyOptimizer<Options = unknown> {
  readonly #parameters: readonly OptimizerParameter[];
  readonly #makeShards: (group: ZeroGroup) => Shards;
  /** Text that must be equal on all ranks: parameters, class and options. */
  readonly #registration: string;
  #group: ZeroGroup;
  #shards: Shards;
  /** State by name from before the last regroupings, as long as some rank may not have ended them. */
  #earlier: Optimizer['state'][] = [];
  /** Steps that the state has made; −1: it is not known to be that of any step. */
  #steps = -1;
  /** The state has made a step of which this rank does not know whether all have. */
  #isAhead = false;
  #verified = false;
  #failure: ShoalError | undefined;
  #closed = false;

  /** Does not communicate.
   *  @param parameters the same on every rank, values too; their arrays are updated in place, and share no memory.
   *  @param optimizerClass the class of each rank's own optimiser: `SGD`, `Adam`, or any other that treats each parameter alone.
   *  @throws ShoalError `usage`; `out-of-memory`; errors of the class. */
  constructor(
    group: ZeroGroup,
    parameters: readonly OptimizerParameter[],
    optimizerClass: OptimizerClass<Options>,
    options?: Options,
    sharding: ShardingOptions = noOptions,
  ) {
    checkGroup('ZeroRedundancyOptimizer', group, 'allGather');
    checkParameters('ZeroRedundancyOptimizer', parameters);
    checkApart(parameters);
    if (typeof optimizerClass !== 'function' || optimizerClass.prototype === undefined) {
      const message = `ZeroRedundancyOptimizer: the optimiser is a class, such as Adam, not ${describeValue(optimizerClass)}`;
      throw new ShoalError('usage', message);
    }
    checkOptions('ZeroRedundancyOptimizer', sharding, shardingOptions);
    const { redundancy = 0 } = sharding;
    this.#group = group;
    this.#parameters = [...parameters];
    const specs = parameters.map(({ name, data }) => ({ name, shape: [data.length], dtype: dtypeOf(data) }));
    this.#registration = registrationText(specs, {
      optimizer: optimizerClass.name,
      options: options ?? {},
      ...(redundancy > 0 && { redundancy }),
    });
    const make = (own: readonly OptimizerParameter[]): Optimizer => new optimizerClass(own, options);
    this.#makeShards = (of) => new Shards(of, this.#parameters, make, redundancy);
    this.#shards = this.#makeShards(group);
    if (typeof this.local.step === 'function') return;
    this.close();
    throw new ShoalError('usage', 'ZeroRedundancyOptimizer: the optimiser has no step(gradients)');
  }

  /** Indices of the parameters whose state each rank has, by rank. */
  get partition(): readonly (readonly number[])[] {
    return this.#shards.partition;
  }

  /** The optimiser of this rank's own parameters, and of the copies that it keeps: its `lr` may be changed. `regroup` makes another one,
   *  with the same numbers. */
  get local(): Optimizer {
    return this.#shards.local;
  }

  /** State of this rank's own parameters: for `owned` of a checkpoint. */
  get state(): Optimizer['state'] {
    return this.#shards.state;
  }

  /** `state`, and with redundancy the copy of another rank's: for `load` of a checkpoint, by any number of ranks. */
  get held(): Optimizer['state'] {
    return this.local.state;
  }

  /** Steps that the state has made since it was made; −1 before the first step and the first `regroup`. */
  get steps(): number {
    return this.#steps;
  }

  /** Collective. Updates all parameters on all ranks. @param gradients averaged over ranks, in the order of the parameters.
   *  @throws ShoalError `mismatch` when ranks have different parameters, optimisers or options; the group's error, and the same
   *          one at every later step. */
  async step(gradients: readonly Floats[]): Promise<void> {
    this.#checkUsable();
    checkGradients('ZeroRedundancyOptimizer', gradients, this.#parameters);
    try {
      if (!this.#verified) await verifyRegistration(this.#group, this.#registration, {});
      this.#verified = true;
      this.#steps = Math.max(0, this.#steps);
      this.#isAhead = true;
      this.#shards.update(gradients);
      await Promise.all(this.#shards.share());
      this.#shards.take();
      this.#isAhead = false;
      this.#steps++;
    } catch (thrown) {
      throw this.#fail(thrown);
    }
  }

  /** Makes the state that of the step with which all ranks go on: a step that has failed here may have ended well on another rank, and then
   *  all have made its update. `elastic.run` calls it. @param steps those of a rank whose parameters all have. */
  settle(steps: number): void {
    checkArgument('settle: steps', steps, integer({ min: -1 }));
    if (this.#steps < 0 || steps < 0) return;
    const mayUndo = this.#isAhead && this.#steps === steps;
    const isOther = this.#steps !== steps && !(this.#isAhead && this.#steps + 1 === steps);
    this.#isAhead = false;
    this.#steps = isOther || (mayUndo && !this.#shards.undo()) ? -1 : steps;
  }

  /** Collective over a group that has taken the place of the optimiser's: deals the state out to its ranks. Each gets what it has not from
   *  a rank that has it. `elastic.run` calls it. @throws ShoalError `aborted`, on all ranks, when no rank has some of the state any more;
   *  `mismatch` as `step`; the group's error, after which it may be called with the next group. */
  async regroup(group: ZeroGroup): Promise<void> {
    checkGroup('regroup', group, 'allToAll');
    if (this.#closed) throw this.#closedError();
    const last = this.#shards;
    const next = last.group === group ? last : this.#makeShards(group);
    try {
      await verifyRegistration(group, this.#registration, {});
      const settings = Object.fromEntries(Object.entries(this.local).filter(([, value]) => typeof value === 'number'));
      const own = { steps: this.#steps, settings };
      const reports = await group.allGatherObject(own, { name: 'ddp/zero-steps' });
      const first = reports.reduce((most, each) => (each.steps > most.steps ? each : most));
      this.settle(first.steps);
      // Where nobody has made a step, all have the state that their optimisers were made with.
      const held = this.#steps < 0 ? [] : [...this.#earlier, last.local.state];
      if (first.steps >= 0) await redeal(group, Object.assign({}, ...held) as Optimizer['state'], next.local.state);
      Object.assign(next.local, first.settings);
      this.#steps = Math.max(0, first.steps);
    } catch (thrown) {
      if (next !== last) next.release(group);
      throw thrown;
    }
    if (next !== last) {
      this.#earlier.push(last.local.state);
      last.release(group);
    }
    [this.#group, this.#shards, this.#failure, this.#verified] = [group, next, undefined, true];
    // Until all have what they need, others may ask for what this rank had.
    await group.barrier({ name: 'ddp/zero-regroup' });
    this.#earlier = [];
  }

  /** Collective. The state of all parameters at rank `to`, by default 0; null elsewhere. At most 2 GiB: save larger states as
   *  checkpoints. */
  async consolidateStateDict(options: { readonly to?: number } = noOptions): Promise<Record<string, Floats> | null> {
    checkOptions('consolidateStateDict', options, consolidateOptions);
    this.#checkUsable();
    const states = await this.#group.gatherObject({ ...this.state }, { root: options.to ?? 0, name: 'ddp/zero-state' });
    return states && (Object.assign({}, ...states) as Record<string, Floats>);
  }

  /** This optimiser's part in `join`, to be listed after the reducer whose averages it takes: a rank that has run out updates its
   *  own parameters for the others. */
  joinable(gradients: GradientSource): Joinable {
    if (typeof gradients?.gradient !== 'function')
      throw new ShoalError('usage', `joinable: gradients come from a Reducer, not from ${describeValue(gradients)}`);
    const mainHook = (): Promise<void> => this.step(this.#parameters.map((_, index) => gradients.gradient(index) as Floats));
    return { joinHook: (): JoinHook => ({ mainHook }) };
  }

  /** Releases the buffers. Idempotent. */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#shards.release(this.#group);
  }

  #checkUsable(): void {
    if (this.#failure) throw this.#failure;
    if (this.#closed) throw this.#closedError();
  }

  #closedError(): ShoalError {
    return new ShoalError('closed', 'the optimiser is closed', { rank: this.#group.rank });
  }

  /** Remembers the failure, until `regroup`: parameters may be updated on some ranks only. */
  #fail(thrown: unknown): ShoalError {
    this.#failure ??= ShoalError.from(thrown, 'system', { rank: this.#group.rank, operation: 'ddp/zero' });
    return this.#failure;
  }
}

/** Refuses arrays that share memory: two ranks would update it, and each end with the other's values. @throws ShoalError `usage`. */
function checkApart(parameters: readonly OptimizerParameter[]): void {
  const ends = new Map<ArrayBufferLike, { name: string; end: number }>();
  for (const { name, data } of parameters.toSorted((a, b) => a.data.byteOffset - b.data.byteOffset)) {
    if (data.length === 0) continue;
    const before = ends.get(data.buffer);
    if (before && data.byteOffset < before.end) {
      const message = `ZeroRedundancyOptimizer: parameters '${before.name}' and '${name}' share memory; give it one name, and the sum of its gradients`;
      throw new ShoalError('usage', message);
    }
    ends.set(data.buffer, { name, end: data.byteOffset + data.byteLength });
  }
}
