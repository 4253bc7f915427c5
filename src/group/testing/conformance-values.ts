/** Inputs of the conformance suite of process groups: small numbers that are exact in every dtype. */
import assert from 'node:assert/strict';
import { dtypeInfo, type DType } from '../../memory/dtype.ts';
import type { Tensor } from '../../memory/tensor.ts';
import type { ProcessGroup } from '../caller/types.ts';

/** One check of the suite: a program that every rank runs. */
export interface GroupCheck {
  readonly name: string;
  run(group: ProcessGroup): Promise<void>;
}

/** After so many elements inputs repeat themselves, and so do results. Checks look at every element, so each has to cost little. */
export const period = 15;

/** Element i of rank r's input: small integers, so that sums and products of a few ranks are exact in every dtype. */
export function valueAt(rank: number, i: number, dtype: DType): number {
  const small = ((i * 7 + rank * 3) % 5) + (dtypeInfo(dtype).kind === 'float' && i % 3 === 0 ? 0.5 : 0);
  return dtype === 'bool' ? small % 2 : small;
}

/** The places where a rank's part begins and ends in the whole. */
export function bounds(counts: readonly number[], rank: number): [from: number, to: number] {
  const from = counts.slice(0, rank).reduce((sum, count) => sum + count, 0);
  return [from, from + counts[rank]];
}

/** Reads an element as a number, whatever the dtype's view is. */
export function numberAt(tensor: { data: ArrayLike<number | bigint>; dtype: DType }, i: number): number {
  const raw = tensor.data[i];
  if (tensor.dtype === 'float16') return fromHalf(Number(raw));
  if (tensor.dtype === 'bfloat16') return new Float32Array(Uint32Array.of(Number(raw) * 65536).buffer)[0];
  return Number(raw);
}

function fromHalf(bits: number): number {
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  const magnitude =
    exponent === 0 ? fraction * 2 ** -24 : exponent === 31 ? (fraction ? NaN : Infinity) : (1 + fraction / 1024) * 2 ** (exponent - 15);
  return bits & 0x8000 ? -magnitude : magnitude;
}

/** Exact for the small halves of `valueAt`. */
function toHalf(value: number): number {
  if (value === 0) return 0;
  const exponent = Math.floor(Math.log2(value));
  return ((exponent + 15) << 10) | Math.round((value / 2 ** exponent - 1) * 1024);
}

export function setNumber(tensor: { data: { [i: number]: number | bigint }; dtype: DType }, i: number, value: number): void {
  if (tensor.dtype === 'int64') tensor.data[i] = BigInt(value);
  else if (tensor.dtype === 'float16') tensor.data[i] = toHalf(value);
  else if (tensor.dtype === 'bfloat16') tensor.data[i] = new Uint32Array(Float32Array.of(value).buffer)[0] >>> 16;
  else tensor.data[i] = value;
}

type AnyTensor = Tensor & { data: { [i: number]: number | bigint; length: number } };

export function filled(group: ProcessGroup, dtype: DType, count: number, rank = group.rank): AnyTensor {
  const tensor = group.tensor(dtype, [count]) as AnyTensor;
  for (let i = 0; i < Math.min(period, count); i++) setNumber(tensor, i, valueAt(rank, i, dtype));
  repeat(tensor.data as Float32Array, period);
  return tensor;
}

/** Fills an array with copies of its first elements. */
export function repeat(data: Float32Array, first: number): void {
  for (let done = first; done < data.length; done *= 2) data.copyWithin(done, 0, done);
}

/** An integer as the dtype holds it. */
export function wrapTo(dtype: DType, value: number): number {
  switch (dtype) {
    case 'int8':
      return Int8Array.of(value)[0];
    case 'uint8':
      return Uint8Array.of(value)[0];
    case 'int16':
      return Int16Array.of(value)[0];
    case 'uint16':
      return Uint16Array.of(value)[0];
    default:
      return value;
  }
}

export interface Elements {
  readonly data: ArrayLike<number | bigint>;
  readonly dtype: DType;
}

/** That the elements are `expected`, which repeats itself, from element `first` of it on. */
export function checkElements(tensor: Elements, expected: readonly number[], what: string, { first = 0, tolerance = 0 } = {}): void {
  for (let i = 0; i < tensor.data.length; i++) {
    const actual = numberAt(tensor, i);
    const wanted = expected[(first + i) % period];
    if (!(Math.abs(actual - wanted) <= tolerance * Math.max(1, Math.abs(wanted))))
      assert.fail(`${what}: element ${i} of ${tensor.data.length} is ${actual}, expected ${wanted}`);
  }
}

/** That the elements are those of rank r's input. */
export function checkInput(tensor: Elements, rank: number, what: string): void {
  const input = Array.from({ length: period }, (_, i) => valueAt(rank, i, tensor.dtype));
  checkElements(tensor, input, what);
}

/** Per-rank counts that differ, with a zero among them. */
export function unevenCounts(size: number): number[] {
  return Array.from({ length: size }, (_, rank) => (rank === 1 ? 0 : 5 + 11 * rank));
}
