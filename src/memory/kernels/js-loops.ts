/** The inner loops of reductions: one function per operator and value type, each on arrays of one type only, because the
 *  engine specialises code per function. Stores into typed arrays round (float32) and wrap (integers) by themselves. */
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

type F64 = Float64Array;
type F32 = Float32Array;
type I32 = Int32Array;
type U32 = Uint32Array;
type I64 = BigInt64Array;

function sumFloat64(to: F64, t: number, a: F64, p: number, b: F64, q: number, count: number): void {
  for (let i = 0; i < count; i++) to[t + i] = a[p + i] + b[q + i];
}

function productFloat64(to: F64, t: number, a: F64, p: number, b: F64, q: number, count: number): void {
  for (let i = 0; i < count; i++) to[t + i] = a[p + i] * b[q + i];
}

function minFloat64(to: F64, t: number, a: F64, p: number, b: F64, q: number, count: number): void {
  for (let i = 0; i < count; i++) to[t + i] = Math.min(a[p + i], b[q + i]);
}

function maxFloat64(to: F64, t: number, a: F64, p: number, b: F64, q: number, count: number): void {
  for (let i = 0; i < count; i++) to[t + i] = Math.max(a[p + i], b[q + i]);
}

function sumFloat32(to: F32, t: number, a: F32, p: number, b: F32, q: number, count: number): void {
  for (let i = 0; i < count; i++) to[t + i] = a[p + i] + b[q + i];
}

function productFloat32(to: F32, t: number, a: F32, p: number, b: F32, q: number, count: number): void {
  for (let i = 0; i < count; i++) to[t + i] = a[p + i] * b[q + i];
}

function minFloat32(to: F32, t: number, a: F32, p: number, b: F32, q: number, count: number): void {
  for (let i = 0; i < count; i++) to[t + i] = Math.min(a[p + i], b[q + i]);
}

function maxFloat32(to: F32, t: number, a: F32, p: number, b: F32, q: number, count: number): void {
  for (let i = 0; i < count; i++) to[t + i] = Math.max(a[p + i], b[q + i]);
}

function sumInt32(to: I32, t: number, a: I32, p: number, b: I32, q: number, count: number): void {
  for (let i = 0; i < count; i++) to[t + i] = (a[p + i] + b[q + i]) | 0;
}

function productInt32(to: I32, t: number, a: I32, p: number, b: I32, q: number, count: number): void {
  for (let i = 0; i < count; i++) to[t + i] = Math.imul(a[p + i], b[q + i]);
}

function minInt32(to: I32, t: number, a: I32, p: number, b: I32, q: number, count: number): void {
  for (let i = 0; i < count; i++) to[t + i] = a[p + i] < b[q + i] ? a[p + i] : b[q + i];
}

function maxInt32(to: I32, t: number, a: I32, p: number, b: I32, q: number, count: number): void {
  for (let i = 0; i < count; i++) to[t + i] = a[p + i] > b[q + i] ? a[p + i] : b[q + i];
}

function bitAndInt32(to: I32, t: number, a: I32, p: number, b: I32, q: number, count: number): void {
  for (let i = 0; i < count; i++) to[t + i] = a[p + i] & b[q + i];
}

function bitOrInt32(to: I32, t: number, a: I32, p: number, b: I32, q: number, count: number): void {
  for (let i = 0; i < count; i++) to[t + i] = a[p + i] | b[q + i];
}

function bitXorInt32(to: I32, t: number, a: I32, p: number, b: I32, q: number, count: number): void {
  for (let i = 0; i < count; i++) to[t + i] = a[p + i] ^ b[q + i];
}

function sumUint32(to: U32, t: number, a: U32, p: number, b: U32, q: number, count: number): void {
  for (let i = 0; i < count; i++) to[t + i] = (a[p + i] + b[q + i]) | 0;
}

function productUint32(to: U32, t: number, a: U32, p: number, b: U32, q: number, count: number): void {
  for (let i = 0; i < count; i++) to[t + i] = Math.imul(a[p + i], b[q + i]);
}

function minUint32(to: U32, t: number, a: U32, p: number, b: U32, q: number, count: number): void {
  for (let i = 0; i < count; i++) to[t + i] = a[p + i] < b[q + i] ? a[p + i] : b[q + i];
}

function maxUint32(to: U32, t: number, a: U32, p: number, b: U32, q: number, count: number): void {
  for (let i = 0; i < count; i++) to[t + i] = a[p + i] > b[q + i] ? a[p + i] : b[q + i];
}

function bitAndUint32(to: U32, t: number, a: U32, p: number, b: U32, q: number, count: number): void {
  for (let i = 0; i < count; i++) to[t + i] = a[p + i] & b[q + i];
}

function bitOrUint32(to: U32, t: number, a: U32, p: number, b: U32, q: number, count: number): void {
  for (let i = 0; i < count; i++) to[t + i] = a[p + i] | b[q + i];
}

function bitXorUint32(to: U32, t: number, a: U32, p: number, b: U32, q: number, count: number): void {
  for (let i = 0; i < count; i++) to[t + i] = a[p + i] ^ b[q + i];
}

function sumInt64(to: I64, t: number, a: I64, p: number, b: I64, q: number, count: number): void {
  for (let i = 0; i < count; i++) to[t + i] = a[p + i] + b[q + i];
}

function productInt64(to: I64, t: number, a: I64, p: number, b: I64, q: number, count: number): void {
  for (let i = 0; i < count; i++) to[t + i] = a[p + i] * b[q + i];
}

function minInt64(to: I64, t: number, a: I64, p: number, b: I64, q: number, count: number): void {
  for (let i = 0; i < count; i++) to[t + i] = a[p + i] < b[q + i] ? a[p + i] : b[q + i];
}

function maxInt64(to: I64, t: number, a: I64, p: number, b: I64, q: number, count: number): void {
  for (let i = 0; i < count; i++) to[t + i] = a[p + i] > b[q + i] ? a[p + i] : b[q + i];
}

function bitAndInt64(to: I64, t: number, a: I64, p: number, b: I64, q: number, count: number): void {
  for (let i = 0; i < count; i++) to[t + i] = a[p + i] & b[q + i];
}

function bitOrInt64(to: I64, t: number, a: I64, p: number, b: I64, q: number, count: number): void {
  for (let i = 0; i < count; i++) to[t + i] = a[p + i] | b[q + i];
}

function bitXorInt64(to: I64, t: number, a: I64, p: number, b: I64, q: number, count: number): void {
  for (let i = 0; i < count; i++) to[t + i] = a[p + i] ^ b[q + i];
}

type LoopsOf<A> = { readonly [Op in CombineOp]?: CombineLoop<A> };

/** Loops by value type and operator; absent where the operator is not defined. */
export const combineLoops: { readonly [V in ValueType]: LoopsOf<ValueArrays[V]> } = {
  float64: { sum: sumFloat64, product: productFloat64, min: minFloat64, max: maxFloat64 },
  float32: { sum: sumFloat32, product: productFloat32, min: minFloat32, max: maxFloat32 },
  int32: {
    sum: sumInt32,
    product: productInt32,
    min: minInt32,
    max: maxInt32,
    'bit-and': bitAndInt32,
    'bit-or': bitOrInt32,
    'bit-xor': bitXorInt32,
  },
  uint32: {
    sum: sumUint32,
    product: productUint32,
    min: minUint32,
    max: maxUint32,
    'bit-and': bitAndUint32,
    'bit-or': bitOrUint32,
    'bit-xor': bitXorUint32,
  },
  int64: {
    sum: sumInt64,
    product: productInt64,
    min: minInt64,
    max: maxInt64,
    'bit-and': bitAndInt64,
    'bit-or': bitOrInt64,
    'bit-xor': bitXorInt64,
  },
};

/** Loops for bool: on 0 and 1 a sum is `or`, a product and a minimum are `and`, a maximum is `or`. */
export const booleanLoops: LoopsOf<Int32Array> = {
  sum: bitOrInt32,
  product: bitAndInt32,
  min: bitAndInt32,
  max: bitOrInt32,
  'bit-and': bitAndInt32,
  'bit-or': bitOrInt32,
  'bit-xor': bitXorInt32,
};

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
