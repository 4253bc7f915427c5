/** The parts of a sharded optimiser that one rank has in one world: its own parameters' state, with redundancy also a copy of the state of
 *  the rank before it, and the buffers by which all get all parameters.
 *
 *      rank 0   p0 p3 ─ optimiser ─▶ p0 p3 ┐                                      copy of rank 2's: p2
 *      rank 1   p1    ─ optimiser ─▶ p1    ├─ one all-gather per dtype ─▶ all     copy of rank 0's: p0 p3
 *      rank 2   p2    ─ optimiser ─▶ p2    ┘                                      copy of rank 1's: p1
 *
 *  A copy costs no communication: every rank has all gradients, and the same update of the same values has the same bits. The optimiser
 *  works on arrays of its own, so that parameters are those of one step, whole, whenever a call fails. It must not know other worlds. */
import { bytesOf } from '../../base/bytes.ts';
import { ShoalError } from '../../base/errors.ts';
import { sum } from '../../base/numbers.ts';
import type { ProcessGroup, Work } from '../../group/caller/types.ts';
import type { Tensor } from '../../memory/tensor.ts';
import { dealtOut } from '../buckets.ts';
import type { Floats, Optimizer, OptimizerParameter } from '../optimizers.ts';

/** The part of a process group that the shards use. */
export type ShardsGroup = Pick<ProcessGroup, 'rank' | 'size' | 'tensor' | 'release' | 'allGather'>;

/** The parameters of one dtype, with the buffers that carry them. */
interface Exchange {
  readonly name: string;
  /** Indices of the parameters that each rank owns, by rank. */
  readonly owned: readonly (readonly number[])[];
  readonly counts: readonly number[];
  readonly own: Tensor;
  readonly all: Tensor;
}

export class Shards {
  readonly group: ShardsGroup;
  /** Indices of the parameters whose state each rank has, by rank. */
  readonly partition: readonly (readonly number[])[];
  /** The optimiser of the parameters of this rank, and of those of which it keeps copies. */
  readonly local: Optimizer;
  /** State of this rank's own parameters. */
  readonly state: Optimizer['state'];
  readonly #parameters: readonly OptimizerParameter[];
  readonly #exchanges: Exchange[] = [];
  /** The arrays that the optimiser updates, by parameter, in its order. */
  readonly #updated = new Map<number, Floats>();
  /** The parameters of whose state this rank has a copy. */
  readonly #copies: readonly number[];
  /** The state before the last update; undefined without redundancy. */
  readonly #before: readonly Floats[] | undefined;

  /** @param make makes the optimiser of these parameters. @throws ShoalError `out-of-memory`; errors of the optimiser. */
  constructor(
    group: ShardsGroup,
    parameters: readonly OptimizerParameter[],
    make: (own: readonly OptimizerParameter[]) => Optimizer,
    redundancy: 0 | 1,
  ) {
    const { rank, size } = group;
    this.group = group;
    this.#parameters = parameters;
    this.partition = partitioned(parameters, size);
    this.#copies = redundancy === 1 && size > 1 ? this.partition[(rank + size - 1) % size] : [];
    // An array that no exchange carries is empty.
    for (const index of [...this.partition[rank], ...this.#copies]) this.#updated.set(index, parameters[index].data.slice());
    try {
      for (const dtype of ['float32', 'float64'] as const) this.#prepare(dtype);
      const named = [...this.#updated].map(([index, data]) => ({ name: parameters[index].name, data }));
      this.local = make(named);
      this.state = this.local.state;
      if (redundancy === 1) this.#before = Object.values(this.local.state).map((array) => array.slice());
      if (this.#copies.length === 0) return;
      // Names do not say whose they are, as one may begin with the name of another parameter.
      const { state } = make(named.slice(0, this.partition[rank].length));
      this.state = Object.fromEntries(Object.keys(state).map((name) => [name, this.local.state[name]]));
    } catch (thrown) {
      this.release(group);
      throw thrown;
    }
  }

  /** Updates the parameters of this rank, and its copies; the arrays of the program keep their values until `take`. */
  update(gradients: readonly Floats[]): void {
    for (const [index, array] of this.#updated) array.set(this.#parameters[index].data);
    if (this.#before) for (const [k, array] of Object.values(this.local.state).entries()) this.#before[k].set(array);
    this.local.step([...this.#updated.keys()].map((index) => gradients[index]));
  }

  /** Takes back the last `update` of the state. @returns false: there is no copy of what it was. */
  undo(): boolean {
    const state = Object.values(this.local.state);
    for (const [k, array] of state.entries()) if (this.#before) array.set(this.#before[k]);
    return this.#before !== undefined || state.length === 0;
  }

  /** Sends this rank's parameters to all. */
  share(): Work[] {
    return this.#exchanges.map(({ name, counts, own, all }) => this.group.allGather(all, own, { counts, name }));
  }

  /** Gives the program what all ranks have shared. @throws ShoalError `mismatch` where a copy has become another; then nothing has
   *  changed. */
  take(): void {
    const shared = new Map<number, Floats>();
    for (const { owned, all } of this.#exchanges) {
      let at = 0;
      for (const index of owned.flat()) shared.set(index, (all.data as Floats).subarray(at, (at += this.#parameters[index].data.length)));
    }
    for (const index of this.#copies) {
      const [own, copy] = [shared.get(index), this.#updated.get(index)];
      if (!own || !copy || Buffer.compare(bytesOf(own), bytesOf(copy)) === 0) continue;
      const { rank } = this.group;
      const message = `ZeroRedundancyOptimizer: rank ${rank}'s copy of parameter '${this.#parameters[index].name}' is not what its owner has; give all ranks the same gradients and rates, and load checkpoints into 'held'`;
      throw new ShoalError('mismatch', message, { rank });
    }
    for (const [index, data] of shared) this.#parameters[index].data.set(data);
  }

  /** @param group the same, or one that has its tensors. */
  release(group: ShardsGroup): void {
    for (const { own, all } of this.#exchanges.splice(0)) for (const tensor of [own, all]) group.release(tensor);
  }

  #prepare(dtype: 'float32' | 'float64'): void {
    const owned = this.partition.map((indices) => indices.filter((index) => dtypeOf(this.#parameters[index].data) === dtype));
    const counts = owned.map((indices) => sum(indices.map((index) => this.#parameters[index].data.length)));
    if (sum(counts) === 0) return;
    const { rank } = this.group;
    const own = this.group.tensor(dtype, [counts[rank]]);
    try {
      this.#exchanges.push({ name: `ddp/zero-${dtype}`, owned, counts, own, all: this.group.tensor(dtype, [sum(counts)]) });
    } catch (thrown) {
      this.group.release(own);
      throw thrown;
    }
    let at = 0;
    for (const index of owned[rank]) {
      const { length } = this.#parameters[index].data;
      this.#updated.set(index, own.data.subarray(at, (at += length)));
    }
  }
}

/** Deals parameters out, the largest first. @returns indices by rank, ascending. */
function partitioned(parameters: readonly OptimizerParameter[], size: number): number[][] {
  const order = [...parameters.keys()].sort((a, b) => parameters[b].data.byteLength - parameters[a].data.byteLength || a - b);
  const bytes = order.map((index) => parameters[index].data.byteLength);
  const ranks = dealtOut(bytes, size);
  return Array.from({ length: size }, (_, rank) => order.filter((_index, at) => ranks[at] === rank).sort((a, b) => a - b));
}

export function dtypeOf(data: Floats): 'float32' | 'float64' {
  return data instanceof Float32Array ? 'float32' : 'float64';
}
