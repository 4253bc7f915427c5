/** ZeRO-1: an optimiser whose state is spread over the ranks. Each rank updates some of the parameters, whole ones, and has the
 *  state of those only; then all ranks get all of them. Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion
 *  Parameter Models", SC 2020.
 *
 *      gradients, averaged, on every rank
 *      rank 0   p0 p3 ─ optimiser ─▶ p0 p3 ┐
 *      rank 1   p1    ─ optimiser ─▶ p1    ├─ one all-gather per dtype ─▶ p0 p1 p2 p3 on every rank
 *      rank 2   p2    ─ optimiser ─▶ p2    ┘
 *
 *  Every element is updated by the same arithmetic as without sharding, so bits are equal. It must not know what the optimiser does. */
import { ShoalError } from '../base/errors.ts';
import { anyNumber, checkOptions, describeValue, noOptions, optionTable } from '../base/schema.ts';
import type { ProcessGroup, Work } from '../group/caller/types.ts';
import type { Tensor } from '../memory/tensor.ts';
import { dealtOut } from './buckets.ts';
import type { JoinHook, Joinable } from './join.ts';
import {
  checkGradients,
  checkParameters,
  type Floats,
  type Optimizer,
  type OptimizerClass,
  type OptimizerParameter,
} from './optimizers.ts';
import { checkGroup } from './reducer-options.ts';
import { registrationText, verifyRegistration } from './registration.ts';

/** The part of a process group that the optimiser uses. */
export type ZeroGroup = Pick<ProcessGroup, 'rank' | 'size' | 'tensor' | 'release' | 'allGather' | 'gatherObject'>;

/** An object that holds the last gradients: a `Reducer`, after its step. */
export interface GradientSource {
  /** The average of a parameter's gradient. @param index of the parameter, in registration order. */
  gradient(index: number): unknown;
}

/** The parameters of one dtype, with the buffers that carry them. */
interface Exchange {
  readonly name: string;
  /** The parameters that each rank owns, by rank, in their order. */
  readonly owned: readonly (readonly OptimizerParameter[])[];
  readonly counts: readonly number[];
  readonly own: Tensor;
  readonly all: Tensor;
}

const consolidateOptions = optionTable<{ to?: number }>({ to: anyNumber });

/** An optimiser whose state is spread over the ranks, like torch's of this name (ZeRO-1). Each rank has the state of its own
 *  parameters, updates those, and gets the others from their owners: bits are those of the whole optimiser on every rank.
 *
 *      const optimizer = new ZeroRedundancyOptimizer(group, parameters, Adam, { lr: 1e-3 });
 *      await optimizer.step(averagedGradients); */
export class ZeroRedundancyOptimizer<Options = unknown> {
  /** Indices of the parameters whose state each rank has, by rank. */
  readonly partition: readonly (readonly number[])[];
  /** The optimiser of this rank's own parameters: its `lr` may be changed. */
  readonly local: Optimizer;
  readonly #group: ZeroGroup;
  readonly #parameters: readonly OptimizerParameter[];
  /** Text that must be equal on all ranks: parameters, class and options. */
  readonly #registration: string;
  readonly #exchanges: Exchange[] = [];
  #verified = false;
  #failure: ShoalError | undefined;
  #closed = false;

  /** Does not communicate.
   *  @param parameters the same on every rank, values too; their arrays are updated in place, and share no memory.
   *  @param optimizerClass the class of each rank's own optimiser: `SGD`, `Adam`, or any other that treats each parameter alone.
   *  @throws ShoalError `usage`; `out-of-memory`; errors of the class. */
  constructor(group: ZeroGroup, parameters: readonly OptimizerParameter[], optimizerClass: OptimizerClass<Options>, options?: Options) {
    checkGroup('ZeroRedundancyOptimizer', group, 'allGather');
    checkParameters('ZeroRedundancyOptimizer', parameters);
    checkApart(parameters);
    if (typeof optimizerClass !== 'function' || optimizerClass.prototype === undefined)
      throw new ShoalError(
        'usage',
        `ZeroRedundancyOptimizer: the optimiser is a class, such as Adam, not ${describeValue(optimizerClass)}`,
      );
    this.#group = group;
    this.#parameters = [...parameters];
    const specs = parameters.map(({ name, data }) => ({ name, shape: [data.length], dtype: dtypeOf(data) }));
    this.#registration = registrationText(specs, { optimizer: optimizerClass.name, options: options ?? {} });
    this.partition = partitioned(parameters, group.size);
    this.local = new optimizerClass(
      this.partition[group.rank].map((index) => parameters[index]),
      options,
    );
    if (typeof this.local.step !== 'function')
      throw new ShoalError('usage', 'ZeroRedundancyOptimizer: the optimiser has no step(gradients)');
    try {
      for (const dtype of ['float32', 'float64'] as const) this.#prepare(dtype);
    } catch (thrown) {
      this.close();
      throw thrown;
    }
  }

  /** State of this rank's own parameters: for `owned` of a checkpoint, and for `load` of one, by any number of ranks. */
  get state(): Optimizer['state'] {
    return this.local.state;
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
      this.local.step(this.partition[this.#group.rank].map((index) => gradients[index]));
      for (const work of this.#share()) await work;
      this.#takeOthers();
    } catch (thrown) {
      throw this.#fail(thrown);
    }
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
    for (const { own, all } of this.#exchanges) for (const tensor of [own, all]) this.#group.release(tensor);
  }

  #prepare(dtype: 'float32' | 'float64'): void {
    const owned = this.partition.map((indices) =>
      indices.map((index) => this.#parameters[index]).filter(({ data }) => dtypeOf(data) === dtype),
    );
    const counts = owned.map((those) => those.reduce((sum, { data }) => sum + data.length, 0));
    const total = counts.reduce((sum, count) => sum + count, 0);
    if (total === 0) return;
    const own = this.#group.tensor(dtype, [counts[this.#group.rank]]);
    try {
      this.#exchanges.push({ name: `ddp/zero-${dtype}`, owned, counts, own, all: this.#group.tensor(dtype, [total]) });
    } catch (thrown) {
      this.#group.release(own);
      throw thrown;
    }
  }

  #share(): Work[] {
    return this.#exchanges.map(({ name, owned, counts, own, all }) => {
      let at = 0;
      for (const { data } of owned[this.#group.rank]) {
        (own.data as Floats).set(data, at);
        at += data.length;
      }
      return this.#group.allGather(all, own, { counts, name });
    });
  }

  #takeOthers(): void {
    for (const { owned, all } of this.#exchanges) {
      let at = 0;
      for (const [rank, those] of owned.entries()) {
        for (const { data } of those) {
          if (rank !== this.#group.rank) data.set((all.data as Floats).subarray(at, at + data.length));
          at += data.length;
        }
      }
    }
  }

  #checkUsable(): void {
    if (this.#failure) throw this.#failure;
    if (this.#closed) throw new ShoalError('closed', 'the optimiser is closed', { rank: this.#group.rank });
  }

  /** Remembers the failure for good: parameters may be updated on some ranks only. */
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
    if (before && data.byteOffset < before.end)
      throw new ShoalError(
        'usage',
        `ZeroRedundancyOptimizer: parameters '${before.name}' and '${name}' share memory; give it one name, and the sum of its gradients`,
      );
    ends.set(data.buffer, { name, end: data.byteOffset + data.byteLength });
  }
}

/** Deals parameters out, the largest first. @returns indices by rank, ascending. */
function partitioned(parameters: readonly OptimizerParameter[], size: number): number[][] {
  const order = [...parameters.keys()].sort((a, b) => parameters[b].data.byteLength - parameters[a].data.byteLength || a - b);
  const bytes = order.map((index) => parameters[index].data.byteLength);
  const ranks = dealtOut(bytes, size);
  return Array.from({ length: size }, (_, rank) => order.filter((_index, at) => ranks[at] === rank).sort((a, b) => a - b));
}

function dtypeOf(data: Floats): 'float32' | 'float64' {
  return data instanceof Float32Array ? 'float32' : 'float64';
}
