/** Loads elements that are not computed on as stored into values, and stores them back: 16-bit floats as float32, narrow integers
 *  and bool as int32. The same bits as native/float16.h. */
import type { DType } from '../dtype.ts';
import type { ScratchArrays } from './js-scratch.ts';

/** values[at + i] := elements[from + i] */
export type Load = (values: ScratchArrays, at: number, elements: never, from: number, count: number) => void;
/** elements[to + i] := values[at + i]; the values are garbage afterwards. */
export type Store = (elements: never, to: number, values: ScratchArrays, at: number, count: number) => void;

export function loadFloat16({ float32, uint32 }: ScratchArrays, at: number, elements: Uint16Array, from: number, count: number): void {
  for (let i = 0; i < count; i++) {
    const half = elements[from + i];
    const magnitude = half & 0x7fff;
    if (magnitude >= 0x7c00) {
      uint32[at + i] = 0x7f800000 | (magnitude << 13) | ((half & 0x8000) << 16);
    } else {
      // The multiplication by 2^112, the difference of the exponent biases, also makes denormals normal.
      uint32[at + i] = magnitude << 13;
      float32[at + i] *= 2 ** 112;
      uint32[at + i] |= (half & 0x8000) << 16;
    }
  }
}

export function storeFloat16(elements: Uint16Array, to: number, { float32, uint32 }: ScratchArrays, at: number, count: number): void {
  for (let i = 0; i < count; i++) {
    const bits = uint32[at + i];
    const magnitude = bits & 0x7fffffff;
    let half: number;
    if (magnitude < 0x38800000) {
      // Below 2^-14, adding 0.5, whose last place is 2^-24, lets the adder round.
      uint32[at + i] = magnitude;
      float32[at + i] += 0.5;
      half = uint32[at + i] - 0x3f000000;
    } else if (magnitude < 0x47800000) {
      half = (magnitude - 0x38000000 + 0xfff + ((magnitude >>> 13) & 1)) >>> 13;
    } else {
      half = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
    }
    elements[to + i] = half | ((bits >>> 16) & 0x8000);
  }
}

export function loadBfloat16({ uint32 }: ScratchArrays, at: number, elements: Uint16Array, from: number, count: number): void {
  for (let i = 0; i < count; i++) uint32[at + i] = elements[from + i] << 16;
}

export function storeBfloat16(elements: Uint16Array, to: number, { uint32 }: ScratchArrays, at: number, count: number): void {
  for (let i = 0; i < count; i++) {
    const bits = uint32[at + i];
    const rounded = (bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16;
    elements[to + i] = (bits & 0x7fffffff) > 0x7f800000 ? (bits >>> 16) | 0x40 : rounded;
  }
}

function loadInt16({ int32 }: ScratchArrays, at: number, elements: Int16Array, from: number, count: number): void {
  for (let i = 0; i < count; i++) int32[at + i] = elements[from + i];
}
function loadInt8({ int32 }: ScratchArrays, at: number, elements: Int8Array, from: number, count: number): void {
  for (let i = 0; i < count; i++) int32[at + i] = elements[from + i];
}
function loadUint16({ int32 }: ScratchArrays, at: number, elements: Uint16Array, from: number, count: number): void {
  for (let i = 0; i < count; i++) int32[at + i] = elements[from + i];
}
function loadUint8({ int32 }: ScratchArrays, at: number, elements: Uint8Array, from: number, count: number): void {
  for (let i = 0; i < count; i++) int32[at + i] = elements[from + i];
}
function loadBool({ int32 }: ScratchArrays, at: number, elements: Uint8Array, from: number, count: number): void {
  for (let i = 0; i < count; i++) int32[at + i] = elements[from + i] === 0 ? 0 : 1;
}
function storeInt16(elements: Int16Array, to: number, { int32 }: ScratchArrays, at: number, count: number): void {
  for (let i = 0; i < count; i++) elements[to + i] = int32[at + i];
}
function storeInt8(elements: Int8Array, to: number, { int32 }: ScratchArrays, at: number, count: number): void {
  for (let i = 0; i < count; i++) elements[to + i] = int32[at + i];
}
function storeUint16(elements: Uint16Array, to: number, { int32 }: ScratchArrays, at: number, count: number): void {
  for (let i = 0; i < count; i++) elements[to + i] = int32[at + i];
}
function storeUint8(elements: Uint8Array, to: number, { int32 }: ScratchArrays, at: number, count: number): void {
  for (let i = 0; i < count; i++) elements[to + i] = int32[at + i];
}

/** Codecs; absent for dtypes that are computed on as stored. */
export const codecs: { readonly [D in DType]?: { readonly load: Load; readonly store: Store } } = {
  float16: { load: loadFloat16, store: storeFloat16 },
  bfloat16: { load: loadBfloat16, store: storeBfloat16 },
  int16: { load: loadInt16, store: storeInt16 },
  int8: { load: loadInt8, store: storeInt8 },
  uint16: { load: loadUint16, store: storeUint16 },
  uint8: { load: loadUint8, store: storeUint8 },
  bool: { load: loadBool, store: storeUint8 },
};
