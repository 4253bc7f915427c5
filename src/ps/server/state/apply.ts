/** A settled round's effect on values: gradients are summed in canonical order, the optimiser is applied to the sum, and
 *  the new values go to all waiting clients. Without optimiser all of it is one pass of one kernel: each source is read
 *  once, the server's copy and every worker's output are written once. */
import { ShoalError } from '../../../base/errors.ts';
import { dtypeInfo, type DType } from '../../../memory/dtype.ts';
import { balancedTree, type Kernels } from '../../../memory/kernels.ts';
import type { ParameterKernels } from '../../../memory/parameter-kernels.ts';
import type { Optimizer } from '../../optimizers/optimizer.ts';
import { rowBytesOf } from '../../protocol/placement.ts';
import { describeWorkers, type Contribution } from './rounds.ts';
import type { ServerRequest } from './client-session.ts';
import type { ServerSlots } from './slots.ts';
import { changeRows, scatterRows, sumRows } from '../../values/sparse-rows.ts';
import { checkUpdated, firstNonFinite, stateType, updateValue } from '../../values/mixed-precision.ts';

/** Sum, update and copies of so many bytes stay in a core's cache. */
const chunkBytes = 128 * 1024;

/** One round of neighbouring slots of one dtype. */
interface Stretch {
  readonly dtype: DType;
  readonly from: number;
  readonly to: number;
  readonly sources: readonly Uint8Array[];
  /** The server's values, and the workers' outputs. */
  readonly targets: readonly Uint8Array[];
  readonly contributions: readonly Contribution<ServerRequest>[];
}

export class Applier {
  readonly #slots: ServerSlots;
  readonly #kernels: Kernels;
  readonly #parameterKernels: ParameterKernels;
  readonly #trees: number[][] = [];
  readonly #scratches: Uint8Array[] = [];
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
    if (this.optimizer !== undefined) checkUpdated(dtype, this.#slots.describe(from));
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
    else this.#optimize(this.optimizer, { dtype, from, to, sources, targets, contributions });
    if (fresh !== undefined) this.#slots.replace(from, fresh);
    this.#count(from, to, contributions);
  }

  /** Sums, updates and copies in pieces that stay in the cache. */
  #optimize(optimizer: Optimizer, stretch: Stretch): void {
    const { dtype, from, sources, targets } = stretch;
    const [values, ...outs] = targets;
    if (this.#refuses) this.#checkFinite(stretch);
    const step = this.#slots.steps[from] + 1;
    const states = this.#slots.states(from, stretch.to);
    const type = stateType(dtype);
    const times = dtypeInfo(type).bytes / dtypeInfo(dtype).bytes;
    for (let at = 0; at < values.byteLength; at += chunkBytes) {
      const end = Math.min(at + chunkBytes, values.byteLength);
      const parts = sources.map((source, k) => this.#widened(type, dtype, source.subarray(at, end), k + 1));
      const value = values.subarray(at, end);
      const state = states.map((array) => array.subarray(at * times, end * times));
      updateValue(this.#kernels, optimizer, { dtype, value, gradient: this.#sum(type, parts), states: state, step });
      for (const out of outs) this.#kernels.copy(out.subarray(at, end), value);
    }
  }

  /** The values as they are, or converted to memory of that number. */
  #widened(type: DType, dtype: DType, values: Uint8Array, number: number): Uint8Array {
    if (type === dtype) return values;
    const wide = this.#scratch(number, (values.byteLength / dtypeInfo(dtype).bytes) * dtypeInfo(type).bytes);
    this.#kernels.convert(type, wide, dtype, values);
    return wide;
  }

  #scratch(number: number, bytes: number): Uint8Array {
    const memory = this.#scratches[number];
    if (memory !== undefined && memory.byteLength >= bytes) return memory.subarray(0, bytes);
    return (this.#scratches[number] = new Uint8Array(new ArrayBuffer(bytes)));
  }

  get #refuses(): boolean {
    return this.optimizer?.spec.nonFinite === 'refuse';
  }

  /** Checks what workers cannot find: a value that is one slice, and sums that are not finite although their parts are.
   *  @throws ShoalError `usage` naming the parameter and whose gradient it is. */
  #checkFinite({ dtype, from, sources, contributions }: Stretch): void {
    const { byteLength } = sources[0];
    const type = stateType(dtype);
    for (let at = 0; at < byteLength; at += chunkBytes) {
      const parts = sources.map((source, k) => this.#widened(type, dtype, source.subarray(at, at + chunkBytes), k + 1));
      if (this.#isFinite(type, this.#sum(type, parts))) continue;
      const culprit = contributions.find((_, k) => !this.#isFinite(type, parts[k]));
      throw this.#refusal(from, culprit);
    }
  }

  /** The bytes of a chunk: the only part, or memory that the next sum takes. */
  #sum(type: DType, parts: readonly Uint8Array[]): Uint8Array {
    if (parts.length === 1) return parts[0];
    const sum = this.#scratch(0, parts[0].byteLength);
    this.#kernels.reduce(type, 'sum', [sum], parts, this.#tree(parts.length));
    return sum;
  }

  #isFinite(dtype: DType, values: Uint8Array): boolean {
    return firstNonFinite(this.#parameterKernels, dtype, values) < 0;
  }

  /** The error for a gradient that is not finite. Without a culprit, only the sum is not finite. */
  #refusal(slot: number, culprit: Contribution<ServerRequest> | undefined): ShoalError {
    const whose = culprit === undefined ? 'the sum of the gradients' : `the gradient of ${describeWorkers(culprit.request.session.member)}`;
    const what = culprit?.nonFinite === true ? `'${this.#slots.parameterOf(slot).key}'` : this.#slots.describe(slot);
    return new ShoalError('usage', `${whose} for ${what} holds NaN or infinity; the push was refused`);
  }

  /** Rows of one slot. Only they, and the optimiser's state of them, change. */
  #applyRows(slot: number, dtype: DType, contributions: readonly Contribution<ServerRequest>[]): void {
    const rowBytes = rowBytesOf(this.#slots.parameterOf(slot));
    const type = this.optimizer === undefined ? dtype : stateType(dtype);
    const wideBytes = (rowBytes / dtypeInfo(dtype).bytes) * dtypeInfo(type).bytes;
    const parts = contributions.map(({ rows: own, source }, k) => ({ rows: own!, values: this.#widened(type, dtype, source, k + 1) }));
    const { rows, values: sum } = sumRows(this.#kernels, type, wideBytes, parts);
    const values = this.#slots.writable(slot, slot + 1);
    if (this.optimizer === undefined) {
      scatterRows(values, sum, rows, rowBytes);
    } else if (rows.length > 0) {
      const { optimizer } = this;
      if (this.#refuses && !this.#isFinite(type, sum)) {
        const culprit = contributions.find(({ source }) => !this.#isFinite(dtype, source));
        throw this.#refusal(slot, culprit);
      }
      const arrays = this.#slots.states(slot, slot + 1).map((bytes) => ({ bytes, rowBytes: wideBytes }));
      const step = this.#slots.steps[slot] + 1;
      changeRows([{ bytes: values, rowBytes }, ...arrays], rows, ([value, ...states]) =>
        updateValue(this.#kernels, optimizer, { dtype, value, gradient: sum, states, step }),
      );
    }
    this.#count(slot, slot + 1, contributions);
  }

  #count(from: number, to: number, contributions: readonly Contribution<ServerRequest>[]): void {
    const workers = contributions.reduce((sum, { request }) => sum + request.session.member.workers, 0);
    for (let slot = from; slot < to; slot++) {
      this.#slots.version[slot]++;
      this.#slots.steps[slot]++;
      this.#slots.workers[slot] = workers;
    }
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
