/** Parameters of a store without servers: their values, the state of the optimiser, and how a complete gradient changes
 *  them. Every worker of a `collective` store has one, and all are equal; a `local` store has the only one. It must not
 *  know workers or messages. */
import { areCounts, bytesOf } from '../../base/bytes.ts';
import { isShoalError, ShoalError } from '../../base/errors.ts';
import { dtypeInfo, viewOf, type DType, type TypedArray } from '../../memory/dtype.ts';
import type { Kernels } from '../../memory/kernels.ts';
import type { ParameterKernels } from '../../memory/parameter-kernels.ts';
import { countOf } from '../../memory/tensor.ts';
import type { Snapshot, SnapshotTensor } from '../../checkpoint/snapshot.ts';
import { copyElements, emptyLike } from '../../ps/values/device-values.ts';
import type { Optimizer, OptimizerSpec } from '../../ps/optimizers/optimizer.ts';
import { createOptimizer } from '../../ps/optimizers/registry.ts';
import { rowBytesOf } from '../../ps/protocol/placement.ts';
import { elements } from '../../ps/protocol/value-space.ts';
import { checkUpdated, firstNonFinite, stateNames, stateType, updateValue } from '../../ps/values/mixed-precision.ts';
import { checkSame } from '../../ps/values/same-parameters.ts';
import { changeRows } from '../../ps/values/sparse-rows.ts';
import type { Updater } from '../calls/types.ts';
import type { NamedParameter } from '../calls/values-argument.ts';

export interface Parameter extends NamedParameter {
  /** Written in place. */
  readonly data: TypedArray;
  readonly version: number;
}

interface Entry extends Parameter {
  states: TypedArray[];
  version: number;
  /** Updates by this optimiser. */
  steps: number;
}

export interface ParameterTableOptions {
  readonly kernels: Kernels;
  readonly parameterKernels: ParameterKernels;
}

/** The layout of the names below, in snapshots. */
const layout = 'shoal-parameters-1';
const valuePrefix = 'parameter/';
const statePrefix = 'state/';

export class ParameterTable {
  readonly #options: ParameterTableOptions;
  readonly #entries = new Map<string, Entry>();
  #optimizer: Optimizer | undefined;
  #updater: Updater | undefined;

  constructor(options: ParameterTableOptions) {
    this.#options = options;
  }

  /** @throws ShoalError `usage` when it exists. */
  checkNew(key: string): void {
    if (this.#entries.has(key)) throw new ShoalError('usage', `parameter '${key}' exists already; init names a parameter once`);
  }

  /** Zeros, until they are set. */
  add(parameter: NamedParameter): Parameter {
    this.checkNew(parameter.key);
    const entry: Entry = { ...parameter, data: emptyLike(parameter.dtype, parameter.count), states: [], version: 0, steps: 0 };
    this.#entries.set(parameter.key, entry);
    return entry;
  }

  /** @throws ShoalError `usage` for a key that was not initialised. */
  get(key: string): Parameter {
    return this.#entry(key);
  }

  /** Starts with fresh state. It takes the place of an updater. @throws ShoalError `usage`. */
  setOptimizer(spec: OptimizerSpec): void {
    this.#optimizer = createOptimizer(spec, this.#options.parameterKernels);
    this.#updater = undefined;
    for (const entry of this.#entries.values()) {
      entry.states = [];
      entry.steps = 0;
    }
  }

  /** It takes the place of an optimiser. */
  setUpdater(updater: Updater): void {
    this.#updater = updater;
    this.#optimizer = undefined;
  }

  /** Whether an update only replaces the value. */
  get assigns(): boolean {
    return this.#optimizer === undefined && this.#updater === undefined;
  }

  /** One update: by the updater, by the optimiser, or, without either, the value becomes what was pushed.
   *  @throws ShoalError `usage` for a gradient that is refused or an updater that throws, `unsupported` for a dtype that
   *          optimisers do not change. The version stays then.
   *  @returns the value, which is that of the table: not to be changed */
  update(key: string, pushed: TypedArray): TypedArray {
    const entry = this.#entry(key);
    if (this.assigns) copyElements(this.#options.kernels, entry.data, pushed);
    else this.#apply(entry, { value: entry.data, pushed, states: this.#statesOf(entry).map(bytesOf) });
    entry.version++;
    return entry.data;
  }

  /** Updates some rows. @param rows distinct */
  updateRows(key: string, rows: Uint32Array, pushed: TypedArray): void {
    const entry = this.#entry(key);
    const { dtype, shape } = entry;
    const arrays = [entry.data, ...this.#statesOf(entry)].map((array, k) => ({
      bytes: bytesOf(array),
      rowBytes: rowBytesOf({ dtype: k === 0 ? dtype : stateType(dtype), shape }),
    }));
    changeRows(arrays, rows, ([value, ...states]) => this.#apply(entry, { value: elements(dtype, value), pushed, states }));
    entry.version++;
  }

  /** A copy: the values may change while it is written. */
  snapshot(): Snapshot {
    const tensors = new Map<string, SnapshotTensor>();
    const progress = new Map<string, readonly [version: number, steps: number]>();
    for (const entry of this.#entries.values()) {
      const { key, dtype, shape, data, states, version, steps } = entry;
      progress.set(key, [version, steps]);
      tensors.set(valuePrefix + key, { dtype, shape, data: bytesOf(data).slice() });
      const names = stateNames(this.#optimizer, dtype);
      for (const [k, state] of states.entries()) {
        tensors.set(`${statePrefix}${names[k]}/${key}`, { dtype: stateType(dtype), shape, data: bytesOf(state).slice() });
      }
    }
    const optimizer: Record<string, string> = this.#optimizer === undefined ? {} : { optimizer: JSON.stringify(this.#optimizer.spec) };
    return { tensors, metadata: { layout, progress: JSON.stringify(Object.fromEntries(progress)), ...optimizer } };
  }

  /** Values, versions and the optimiser become those of the snapshot; without parameters, those of the snapshot are taken. Nothing
   *  changes when it is refused.
   *  @throws ShoalError `mismatch` for a snapshot of other parameters, `protocol` for one of something else. */
  restore(snapshot: Snapshot): void {
    const { optimizer, entries } = this.#read(snapshot);
    this.#optimizer = optimizer;
    if (optimizer !== undefined) this.#updater = undefined;
    this.#entries.clear();
    for (const entry of entries) this.#entries.set(entry.key, entry);
  }

  /** Whether the snapshot can be restored. @throws ShoalError as `restore`. */
  check(snapshot: Snapshot): void {
    this.#read(snapshot);
  }

  #read({ tensors, metadata }: Snapshot): { readonly optimizer: Optimizer | undefined; readonly entries: readonly Entry[] } {
    if (metadata.layout !== layout) throw foreign(`its layout is '${metadata.layout ?? 'none'}', not '${layout}'`);
    const spec = parsed(metadata.optimizer ?? 'null', 'optimizer') as OptimizerSpec | null;
    const optimizer = spec === null ? undefined : createOptimizer(spec, this.#options.parameterKernels);
    const progress = new Map(Object.entries(parsed(metadata.progress ?? 'null', 'progress') ?? {}));
    const entries: Entry[] = [];
    for (const [name, { dtype, shape, data }] of tensors) {
      if (!name.startsWith(valuePrefix)) continue;
      const key = name.slice(valuePrefix.length);
      const [version, steps] = countsOf(key, progress.get(key));
      const type = stateType(dtype);
      const states = stateNames(optimizer, dtype).flatMap((state) => {
        const found = tensors.get(`${statePrefix}${state}/${key}`);
        if (found?.dtype === type && found.data.length === countOf(shape) * dtypeInfo(type).bytes) return copyOf(found);
        if (found === undefined && steps === 0) return [];
        throw foreign(`the state '${state}' of parameter '${key}' is missing or of another size`);
      });
      entries.push({ key, dtype, shape, count: countOf(shape), data: copyOf({ dtype, shape, data }), states, version, steps });
    }
    if (this.#entries.size > 0) checkSame(this.#entries, new Map(entries.map((entry) => [entry.key, entry])));
    return { optimizer, entries };
  }

  /** The index at which a gradient has what the optimiser refuses; −1: nowhere. */
  refusedAt(dtype: DType, gradient: TypedArray): number {
    if (this.#optimizer?.spec.nonFinite !== 'refuse') return -1;
    return firstNonFinite(this.#options.parameterKernels, dtype, bytesOf(gradient));
  }

  #entry(key: string): Entry {
    const entry = this.#entries.get(key);
    if (entry !== undefined) return entry;
    throw new ShoalError('usage', `there is no parameter '${key}'; every worker calls init (or broadcast) for it first`);
  }

  #apply(entry: Entry, { value, pushed, states }: { value: TypedArray; pushed: TypedArray; states: readonly Uint8Array[] }): void {
    if (this.#updater !== undefined) {
      callUpdater(this.#updater, entry.key, pushed, value);
      return;
    }
    if (this.#optimizer === undefined) {
      copyElements(this.#options.kernels, value, pushed);
      return;
    }
    const { kernels } = this.#options;
    const { dtype, key } = entry;
    checkUpdated(dtype, `'${key}'`);
    const type = stateType(dtype);
    const at = this.refusedAt(dtype, pushed);
    if (at >= 0) {
      const what = type === dtype ? String(pushed[at]) : 'NaN or infinity';
      throw new ShoalError('usage', `the gradient for '${key}' holds ${what} at element ${at}; the push was refused`);
    }
    let gradient = bytesOf(pushed);
    if (type !== dtype) {
      gradient = new Uint8Array(new ArrayBuffer(pushed.length * dtypeInfo(type).bytes));
      kernels.convert(type, gradient, dtype, bytesOf(pushed));
    }
    updateValue(kernels, this.#optimizer, { dtype, value: bytesOf(value), gradient, states, step: entry.steps + 1 });
    entry.steps++;
  }

  #statesOf(entry: Entry): TypedArray[] {
    const { dtype, count } = entry;
    const states = stateNames(this.#optimizer, dtype).length;
    while (entry.states.length < states) entry.states.push(emptyLike(stateType(dtype), count));
    return entry.states;
  }
}

/** The elements in memory of their own. */
function copyOf({ dtype, data }: SnapshotTensor): TypedArray {
  const own = new Uint8Array(data);
  return viewOf(dtype, own.buffer, 0, own.byteLength / dtypeInfo(dtype).bytes);
}

function callUpdater(updater: Updater, key: string, pushed: TypedArray, stored: TypedArray): void {
  try {
    updater(key, pushed, stored);
  } catch (thrown) {
    if (isShoalError(thrown)) throw thrown;
    throw new ShoalError('usage', `the updater threw at parameter '${key}': ${String(thrown)}`, { cause: thrown });
  }
}

function parsed(text: string, what: string): unknown {
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw foreign(`its ${what} cannot be read`, cause);
  }
}

function countsOf(key: string, progress: unknown): readonly [number, number] {
  if (areCounts(progress) && progress.length === 2) return progress as [number, number];
  throw foreign(`it does not say how far parameter '${key}' was`);
}

function foreign(what: string, cause?: unknown): ShoalError {
  return new ShoalError('protocol', `this snapshot was not saved by a local or collective store: ${what}`, { cause });
}
