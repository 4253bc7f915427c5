/** A settled round's effect on values: gradients are summed in canonical order, the optimiser is applied to the sum, and
 *  the new values go to all waiting clients. Without optimiser all of it is one pass of one kernel: each source is read
 *  once, the server's copy and every worker's output are written once. */
import { ShoalError } from '../../../base/errors.ts';
import type { DType } from '../../../memory/dtype.ts';
import { balancedTree, type Kernels } from '../../../memory/kernels.ts';
import type { ParameterKernels, Reals } from '../../../memory/parameter-kernels.ts';
import type { Optimizer } from '../../optimizers/optimizer.ts';
import { rowBytesOf } from '../../protocol/placement.ts';
import { describeWorkers, type Contribution } from './rounds.ts';
import type { ServerRequest } from './client-session.ts';
import type { ServerSlots } from './slots.ts';
import { gatherRows, scatterRows, sumRows } from '../../values/sparse-rows.ts';
import { elements } from '../../protocol/value-space.ts';

/** Sum, update and copies of so many bytes stay in a core's cache. */
const chunkBytes = 128 * 1024;

export class Applier {
  readonly #slots: ServerSlots;
  readonly #kernels: Kernels;
  readonly #parameterKernels: ParameterKernels;
  readonly #trees: number[][] = [];
  #scratch: Uint8Array = new Uint8Array(chunkBytes);
  optimizer: Optimizer | undefined;

  constructor(slots: ServerSlots, { kernels, parameterKernels }: { kernels: Kernels; parameterKernels: ParameterKernels }) {
    this.#slots = slots;
    this.#kernels = kernels;
    this.#parameterKernels = parameterKernels;
  }

  /** Applies one round of slots `from` to `to − 1`, to which all contributions gave. Either all of it is done, or nothing.
   *  @throws ShoalError when the round cannot be applied. */
  apply(from: number, to: number, contributions: readonly Contribution<ServerRequest>[]): void {
    const dtype = this.#slots.dtype(from);
    if (this.optimizer !== undefined && dtype !== 'float32' && dtype !== 'float64') {
      throw new ShoalError('unsupported', `optimisers change float32 and float64 parameters; ${this.#slots.describe(from)} is ${dtype}`);
    }
    const sparse = contributions.filter(({ rows }) => rows !== undefined);
    if (sparse.length > 0 && sparse.length < contributions.length) throw this.#mixed(from, contributions);
    // Said of the whole value: all servers refuse all of its slices, also those that are finite.
    const culprit = contributions.find(({ nonFinite }) => nonFinite);
    if (culprit !== undefined && this.#refuses) throw this.#refusal(from, culprit);
    if (sparse.length > 0) return this.#applyRows(from, dtype, contributions);
    const start = this.#slots.start[from];
    const bytes = this.#slots.end[to - 1] - start;
    const sources: Uint8Array[] = [];
    const fresh = this.optimizer === undefined ? this.#slots.fresh(from, to) : undefined;
    const targets = [fresh?.bytes ?? this.#slots.writable(from, to)];
    for (const { source, target, base, request } of contributions) {
      sources.push(source.subarray(start - base, start - base + bytes));
      // Nobody waits for a request that was answered, perhaps with an error: its memory may be in use again.
      if (target !== undefined && !request.answered) targets.push(target.subarray(start - base, start - base + bytes));
    }
    if (this.optimizer === undefined) this.#kernels.reduce(dtype, 'sum', targets, sources, this.#tree(sources.length));
    else this.#optimize(this.optimizer, { dtype, from, sources, targets, contributions });
    if (fresh !== undefined) this.#slots.replace(from, fresh);
    for (let slot = from; slot < to; slot++) {
      this.#slots.version[slot]++;
      this.#slots.steps[slot]++;
    }
  }

  /** In pieces that stay in the cache: sum, update, copies. */
  #optimize(
    optimizer: Optimizer,
    stretch: {
      dtype: DType;
      from: number;
      sources: readonly Uint8Array[];
      targets: readonly Uint8Array[];
      contributions: readonly Contribution<ServerRequest>[];
    },
  ): void {
    const { dtype, from, sources, targets } = stretch;
    const [values, ...outs] = targets;
    if (this.#refuses) this.#checkFinite(stretch);
    const step = this.#slots.steps[from] + 1;
    const { states } = this.#slots.slabs[this.#slots.slab[from]];
    const first = this.#slots.start[from];
    for (let at = 0; at < values.byteLength; at += chunkBytes) {
      const end = Math.min(at + chunkBytes, values.byteLength);
      let gradient = sources[0].subarray(at, end);
      if (sources.length > 1) {
        const parts = sources.map((source) => source.subarray(at, end));
        gradient = this.#scratch.subarray(0, end - at);
        this.#kernels.reduce(dtype, 'sum', [gradient], parts, this.#tree(parts.length));
      }
      const value = values.subarray(at, end);
      const state = states.map((array) => elements(dtype, array.subarray(first + at, first + end)));
      optimizer.update(elements(dtype, value), elements(dtype, gradient), state, step);
      for (const out of outs) this.#kernels.copy(out.subarray(at, end), value);
    }
  }

  get #refuses(): boolean {
    return this.optimizer?.spec.nonFinite === 'refuse';
  }

  /** What workers have not found: a value that is one slice, and sums that are not finite although their parts are.
   *  @throws ShoalError `usage` naming the parameter and whose gradient it is. */
  #checkFinite(stretch: {
    dtype: DType;
    from: number;
    sources: readonly Uint8Array[];
    contributions: readonly Contribution<ServerRequest>[];
  }): void {
    const { dtype, from, sources, contributions } = stretch;
    const { byteLength } = sources[0];
    for (let at = 0; at < byteLength; at += chunkBytes) {
      const parts = sources.map((source) => source.subarray(at, Math.min(at + chunkBytes, byteLength)));
      let [sum] = parts;
      if (parts.length > 1) {
        sum = this.#scratch.subarray(0, sum.byteLength);
        this.#kernels.reduce(dtype, 'sum', [sum], parts, this.#tree(parts.length));
      }
      if (this.#isFinite(dtype, sum)) continue;
      throw this.#refusal(
        from,
        contributions.find((_, k) => !this.#isFinite(dtype, parts[k])),
      );
    }
  }

  #isFinite(dtype: DType, values: Uint8Array): boolean {
    return this.#parameterKernels.firstNonFinite(elements(dtype, values) as Reals) < 0;
  }

  /** Without a culprit it is the sum that is not finite. */
  #refusal(slot: number, culprit: Contribution<ServerRequest> | undefined): ShoalError {
    const whose = culprit === undefined ? 'the sum of the gradients' : `the gradient of ${describeWorkers(culprit.request.session.member)}`;
    const what = culprit?.nonFinite === true ? `'${this.#slots.parameterOf(slot).key}'` : this.#slots.describe(slot);
    return new ShoalError('usage', `${whose} for ${what} holds NaN or infinity; the push was refused`);
  }

  /** Rows of one slot. Only they, and the optimiser's state of them, change. */
  #applyRows(slot: number, dtype: DType, contributions: readonly Contribution<ServerRequest>[]): void {
    const rowBytes = rowBytesOf(this.#slots.parameterOf(slot));
    const { rows, values: sum } = sumRows(
      this.#kernels,
      dtype,
      rowBytes,
      contributions.map(({ rows: own, source }) => ({ rows: own!, values: source })),
    );
    const values = this.#slots.writable(slot, slot + 1);
    if (this.optimizer === undefined) {
      scatterRows(values, sum, rows, rowBytes);
    } else if (rows.length > 0) {
      const { optimizer } = this;
      const first = this.#slots.start[slot];
      if (this.#refuses && !this.#isFinite(dtype, sum)) {
        throw this.#refusal(
          slot,
          contributions.find(({ source }) => !this.#isFinite(dtype, source)),
        );
      }
      // Touched rows are brought together, so that the optimiser is called once.
      const states = this.#slots.slabs[this.#slots.slab[slot]].states.map((array) => array.subarray(first, first + values.byteLength));
      const value = gatherRows(values, rows, rowBytes);
      const state = states.map((array) => gatherRows(array, rows, rowBytes));
      const views = state.map((array) => elements(dtype, array));
      optimizer.update(elements(dtype, value), elements(dtype, sum), views, this.#slots.steps[slot] + 1);
      scatterRows(values, value, rows, rowBytes);
      for (const [k, array] of states.entries()) scatterRows(array, state[k], rows, rowBytes);
    }
    this.#slots.version[slot]++;
    this.#slots.steps[slot]++;
  }

  #mixed(slot: number, contributions: readonly Contribution<ServerRequest>[]): ShoalError {
    const who = contributions.map(
      ({ rows, request }) => `${describeWorkers(request.session.member)} pushed ${rows === undefined ? 'all values' : 'rows'}`,
    );
    return new ShoalError('mismatch', `the same round of ${this.#slots.describe(slot)} has both: ${who.join(', ')}; push alike everywhere`);
  }

  #tree(count: number): number[] {
    return (this.#trees[count] ??= balancedTree(count));
  }
}
