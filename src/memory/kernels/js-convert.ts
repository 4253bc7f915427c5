/** Conversion between all dtypes in JavaScript: through doubles, which hold every element exactly but int64, whose wide
 *  values take their own paths. Operands have passed check.ts.
 *
 *  Rounding twice (int64 → double → float32, double → float32 → 16 bits) is made right by "round to odd": the first
 *  rounding leaves the trace of lost bits in the last bit. Boldo & Melquiond, 2008. */
import { dtypeInfo, viewOf, type DType } from '../dtype.ts';
import { loadBfloat16, loadFloat16, storeBfloat16, storeFloat16 } from './js-codecs.ts';
import { blockCount, type Scratch, type ScratchArrays } from './js-scratch.ts';

type NumberArray = Float64Array | Float32Array | Int32Array | Int16Array | Int8Array | Uint32Array | Uint16Array | Uint8Array;

export function convertJs(scratch: Scratch, targetType: DType, target: Uint8Array, sourceType: DType, source: Uint8Array): void {
  const count = target.byteLength / dtypeInfo(targetType).bytes;
  const to = viewOf(targetType, target.buffer, target.byteOffset, count);
  const from = viewOf(sourceType, source.buffer, source.byteOffset, count);
  if (targetType === sourceType && targetType !== 'bool') {
    target.set(source);
    return;
  }
  // Slot 0 holds the doubles, slot 1 the float32 on their way to or from 16 bits.
  const arrays = scratch.arrays(2);
  for (let start = 0; start < count; start += blockCount) {
    const size = Math.min(blockCount, count - start);
    if (sourceType === 'int64') loadInt64(arrays, from as BigInt64Array, start, size, targetType);
    else loadNumbers(arrays, from as NumberArray, start, size, sourceType);
    if (targetType === 'int64') storeInt64(to as BigInt64Array, start, arrays, size);
    else storeNumbers(to as NumberArray, start, arrays, size, targetType, dtypeInfo(sourceType).kind === 'float');
  }
}

function loadNumbers(arrays: ScratchArrays, from: NumberArray, start: number, count: number, sourceType: DType): void {
  const { float64, float32 } = arrays;
  if (sourceType === 'float16' || sourceType === 'bfloat16') {
    const load = sourceType === 'float16' ? loadFloat16 : loadBfloat16;
    load(arrays, slotOfFloats, from as Uint16Array, start, count);
    for (let i = 0; i < count; i++) float64[i] = float32[slotOfFloats + i];
  } else if (sourceType === 'bool') {
    for (let i = 0; i < count; i++) float64[i] = from[start + i] === 0 ? 0 : 1;
  } else {
    for (let i = 0; i < count; i++) float64[i] = from[start + i];
  }
}

// Offset of the floats behind the doubles of slot 0: a slot is 512 doubles or 1024 floats.
const slotOfFloats = 2 * blockCount;

/** Loads int64 as the double that leads to the right result in `targetType`. */
function loadInt64({ float64 }: ScratchArrays, from: BigInt64Array, start: number, count: number, targetType: DType): void {
  const { kind } = dtypeInfo(targetType);
  if (kind === 'bool') {
    for (let i = 0; i < count; i++) float64[i] = from[start + i] === 0n ? 0 : 1;
  } else if (kind !== 'float') {
    // Narrower integers keep the low bits.
    for (let i = 0; i < count; i++) float64[i] = Number(BigInt.asIntN(32, from[start + i]));
  } else if (targetType === 'float64') {
    for (let i = 0; i < count; i++) float64[i] = Number(from[start + i]);
  } else {
    for (let i = 0; i < count; i++) float64[i] = int64ToDoubleOdd(from[start + i]);
  }
}

function int64ToDoubleOdd(value: bigint): number {
  const magnitude = value < 0n ? -value : value;
  if (magnitude < 2n ** 53n) return Number(value);
  const kept = Number((magnitude >> 12n) << 12n) + ((magnitude & 0xfffn) === 0n ? 0 : 0x800);
  return value < 0n ? -kept : kept;
}

/** Truncates and saturates; values from integers are in range already. */
function storeInt64(to: BigInt64Array, start: number, { float64 }: ScratchArrays, count: number): void {
  for (let i = 0; i < count; i++) {
    const value = float64[i];
    if (value >= 2 ** 63) to[start + i] = 2n ** 63n - 1n;
    else if (value < -(2 ** 63)) to[start + i] = -(2n ** 63n);
    else to[start + i] = Number.isNaN(value) ? 0n : BigInt(Math.trunc(value));
  }
}

function storeNumbers(to: NumberArray, start: number, arrays: ScratchArrays, count: number, targetType: DType, fromFloat: boolean): void {
  const { float64 } = arrays;
  if (targetType === 'float16' || targetType === 'bfloat16') {
    doublesToFloatsOdd(arrays, count);
    const store = targetType === 'float16' ? storeFloat16 : storeBfloat16;
    store(to as Uint16Array, start, arrays, slotOfFloats, count);
  } else if (targetType === 'bool') {
    for (let i = 0; i < count; i++) to[start + i] = float64[i] === 0 ? 0 : 1;
  } else if (dtypeInfo(targetType).kind === 'float' || !fromFloat) {
    // The store rounds to float32 or wraps to the integer.
    for (let i = 0; i < count; i++) to[start + i] = float64[i];
  } else {
    const { kind, bytes } = dtypeInfo(targetType);
    const least = kind === 'int' ? -(2 ** (bytes * 8 - 1)) : 0;
    const most = kind === 'int' ? 2 ** (bytes * 8 - 1) - 1 : 2 ** (bytes * 8) - 1;
    // NaN passes both bounds and is stored as 0; the store truncates.
    for (let i = 0; i < count; i++) to[start + i] = Math.min(Math.max(float64[i], least), most);
  }
}

function doublesToFloatsOdd({ float64, float32, uint32 }: ScratchArrays, count: number): void {
  for (let i = 0; i < count; i++) {
    const value = float64[i];
    const at = slotOfFloats + i;
    float32[at] = value;
    const nearest = float32[at];
    if (nearest === value || Number.isNaN(value)) continue;
    if (Math.abs(nearest) > Math.abs(value)) uint32[at] -= 1;
    uint32[at] |= 1;
  }
}
