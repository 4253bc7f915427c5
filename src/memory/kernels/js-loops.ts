/** The inner loops of reductions: one function per operator and kind of value. A process that reduces arrays of one type only has code
 *  for that type: the engine specialises it per function. Stores into typed arrays round (float32) and wrap (integers) by themselves. */
import type { CombineOp } from '../reduce-op.ts';

/** Arrays that are computed on: 16-bit floats as float32, narrow integers and bool as int32. */
export interface ValueArrays {
  float64: Float64Array;
  float32: Float32Array;
  int32: Int32Array;
  uint32: Uint32Array;
  int64: BigInt64Array;
}

export type ValueType = keyof ValueArrays;

/** to[t + i] := a[p + i] ⊕ b[q + i] for i < count. */
export type CombineLoop<A> = (to: A, t: number, a: A, p: number, b: A, q: number, count: number) => void;

type LoopsOf<A> = { readonly [Op in CombineOp]?: CombineLoop<A> };

/** Loops for floats of one type. */
function floatLoops<A extends Float64Array | Float32Array>(): LoopsOf<A> {
  return {
    sum(to, t, a, p, b, q, count) {
      for (let i = 0; i < count; i++) to[t + i] = a[p + i] + b[q + i];
    },
    product(to, t, a, p, b, q, count) {
      for (let i = 0; i < count; i++) to[t + i] = a[p + i] * b[q + i];
    },
    min(to, t, a, p, b, q, count) {
      for (let i = 0; i < count; i++) to[t + i] = Math.min(a[p + i], b[q + i]);
    },
    max(to, t, a, p, b, q, count) {
      for (let i = 0; i < count; i++) to[t + i] = Math.max(a[p + i], b[q + i]);
    },
  };
}

/** Loops for integers, whose results need no cut. */
function exactLoops<A extends BigInt64Array | Int32Array | Uint32Array>(): Omit<LoopsOf<A>, 'sum' | 'product'> {
  return {
    min(to, t, a, p, b, q, count) {
      for (let i = 0; i < count; i++) to[t + i] = a[p + i] < b[q + i] ? a[p + i] : b[q + i];
    },
    max(to, t, a, p, b, q, count) {
      for (let i = 0; i < count; i++) to[t + i] = a[p + i] > b[q + i] ? a[p + i] : b[q + i];
    },
    'bit-and'(to, t, a, p, b, q, count) {
      for (let i = 0; i < count; i++) to[t + i] = (a[p + i] as number) & (b[q + i] as number);
    },
    'bit-or'(to, t, a, p, b, q, count) {
      for (let i = 0; i < count; i++) to[t + i] = (a[p + i] as number) | (b[q + i] as number);
    },
    'bit-xor'(to, t, a, p, b, q, count) {
      for (let i = 0; i < count; i++) to[t + i] = (a[p + i] as number) ^ (b[q + i] as number);
    },
  };
}

/** Loops for integers of 32 bits. */
function integerLoops<A extends Int32Array | Uint32Array>(): LoopsOf<A> {
  return {
    sum(to, t, a, p, b, q, count) {
      for (let i = 0; i < count; i++) to[t + i] = (a[p + i] + b[q + i]) | 0;
    },
    product(to, t, a, p, b, q, count) {
      for (let i = 0; i < count; i++) to[t + i] = Math.imul(a[p + i], b[q + i]);
    },
    ...exactLoops(),
  };
}

/** Loops by value type and operator; absent where the operator is not defined. */
export const combineLoops: { readonly [V in ValueType]: LoopsOf<ValueArrays[V]> } = {
  float64: floatLoops(),
  float32: floatLoops(),
  int32: integerLoops(),
  uint32: integerLoops(),
  int64: {
    sum(to, t, a, p, b, q, count) {
      for (let i = 0; i < count; i++) to[t + i] = a[p + i] + b[q + i];
    },
    product(to, t, a, p, b, q, count) {
      for (let i = 0; i < count; i++) to[t + i] = a[p + i] * b[q + i];
    },
    ...exactLoops(),
  },
};

const { 'bit-and': and, 'bit-or': or, 'bit-xor': xor } = combineLoops.int32;

/** Loops for bool: on 0 and 1 a sum is `or`, a product and a minimum are `and`, a maximum is `or`. */
export const booleanLoops: LoopsOf<Int32Array> = { sum: or, product: and, min: and, max: or, 'bit-and': and, 'bit-or': or, 'bit-xor': xor };

/** values[from + i] /= divisor. */
export function divideFloat64(values: Float64Array, from: number, count: number, divisor: number): void {
  for (let i = from; i < from + count; i++) values[i] /= divisor;
}

/** Like `divideFloat64`, but the divisor must be a float32. A double has more than twice the bits, so rounding twice gives the
 *  result of rounding once. */
export function divideFloat32(values: Float32Array, from: number, count: number, divisor: number): void {
  for (let i = from; i < from + count; i++) values[i] /= divisor;
}

/** values[from + i] *= factor. */
export function multiplyFloat64(values: Float64Array, from: number, count: number, factor: number): void {
  for (let i = from; i < from + count; i++) values[i] *= factor;
}

/** Like `multiplyFloat64`, but the factor must be a float32. The double product of two float32 is exact, so the store rounds once. */
export function multiplyFloat32(values: Float32Array, from: number, count: number, factor: number): void {
  for (let i = from; i < from + count; i++) values[i] *= factor;
}
