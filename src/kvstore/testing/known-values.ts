/** Values that workers push in tests, and what becomes of them: every worker knows what all the others push, so that each can
 *  check what it gets. */
import assert from 'node:assert/strict';
import { dtypeInfo, viewOf, type DType, type TypedArray } from '../../memory/dtype.ts';
import { createKernels } from '../../memory/kernels/create-kernels.ts';
import { createParameterKernels } from '../../memory/parameter-kernels/create-parameter-kernels.ts';
import type { OptimizerSpec } from '../../ps/optimizers/optimizer.ts';
import { createOptimizer } from '../../ps/optimizers/registry.ts';
import type { KVStore, Value } from '../calls/types.ts';

/** After so many elements `valueAt` repeats itself. Checks look at every element, so each has to cost little. */
export const period = 5;

/** Element i of what worker `worker` pushes: small integers, so that sums are exact in every dtype. */
export function valueAt(worker: number, i: number): number {
  return ((i * 7 + worker * 3) % period) + 1;
}

export function filled(dtype: DType, count: number, at: (i: number) => number): TypedArray {
  const array = viewOf(dtype, new ArrayBuffer(count * dtypeInfo(dtype).bytes), 0, count);
  for (let i = 0; i < count; i++) array[i] = toElement(dtype, at(i)) as never;
  return array;
}

/** The element that a view of the dtype holds for `value`; exact for small integers. */
export function toElement(dtype: DType, value: number): number | bigint {
  if (dtype === 'int64') return BigInt(value);
  if (dtype === 'bool') return value === 0 ? 0 : 1;
  if (dtype === 'bfloat16') return new Uint32Array(Float32Array.of(value).buffer)[0] >>> 16;
  if (dtype !== 'float16' || value === 0) return value;
  const exponent = Math.floor(Math.log2(value));
  return ((exponent + 15) << 10) | ((value / 2 ** exponent - 1) * 1024);
}

export function sumAt(kv: KVStore, i: number): number {
  let sum = 0;
  for (let worker = 0; worker < kv.numWorkers; worker++) sum += valueAt(worker, i);
  return sum;
}

/** @param repeats After so many elements `at` repeats itself. */
export function expectAll(actual: Value, dtype: DType, at: (i: number) => number, what: string, repeats = Infinity): void {
  const data = ArrayBuffer.isView(actual) ? actual : actual.data;
  const known = Array.from({ length: repeats === Infinity ? 0 : repeats }, (_, i) => toElement(dtype, at(i)));
  for (let i = 0; i < data.length; i++) {
    const expected = repeats === Infinity ? toElement(dtype, at(i)) : known[i % repeats];
    // Comparing first: an assertion per element would take most of the time.
    if (data[i] !== expected) assert.equal(data[i], expected, `${what}, element ${i}`);
  }
}

const js = createParameterKernels();

/** The value that a parameter must have after updates by sums of `valueAt(worker, i + step)`. */
export class Reference {
  readonly value: Float32Array;
  readonly #states: Float32Array[];
  readonly #optimizer;
  #step = 0;

  constructor(spec: OptimizerSpec, first: Float32Array) {
    this.#optimizer = createOptimizer(spec, js);
    this.value = first.slice();
    this.#states = this.#optimizer.states.map(() => new Float32Array(first.length));
  }

  update(gradient: Float32Array): void {
    this.#optimizer.update(this.value, gradient, this.#states, ++this.#step);
  }

  /** The bits of the value in a smaller type. */
  rounded(dtype: 'float16' | 'bfloat16'): Uint16Array {
    const rounded = new Uint16Array(this.value.length);
    createKernels().convert(dtype, new Uint8Array(rounded.buffer), 'float32', new Uint8Array(this.value.buffer));
    return rounded;
  }
}

export function sums(kv: KVStore, count: number, step: number): Float32Array {
  return repeated(count, (i) => sumAt(kv, i + step));
}

export function own(kv: KVStore, count: number, step: number): Float32Array {
  return repeated(count, (i) => valueAt(kv.rank, i + step));
}

/** The first elements, again and again. */
function repeated(count: number, at: (i: number) => number): Float32Array {
  const array = new Float32Array(count);
  for (let i = 0; i < Math.min(period, count); i++) array[i] = at(i);
  for (let done = period; done < count; done *= 2) array.copyWithin(done, 0, done);
  return array;
}
