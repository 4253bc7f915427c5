/** Values of 16 bits whose updates are computed in float32, on *masters*: a value is its master, rounded. Used of `float16` and `bfloat16`
 *  only. All operands are byte views aligned to the element size. */
import type { DType } from '../dtype.ts';
import type { Kernels } from '../kernels.ts';

/** Adds to the masters what has changed their values since they were rounded to them. */
export function followValues(kernels: Kernels, dtype: DType, value: Uint8Array, master: Uint8Array): void {
  const rounded = new Uint8Array(new ArrayBuffer(value.byteLength));
  kernels.convert(dtype, rounded, 'float32', master);
  if (Buffer.compare(rounded, value) === 0) return;
  const [now, before] = [value, rounded].map((bytes) => {
    const wide = new Float32Array(bytes.byteLength / 2);
    kernels.convert('float32', new Uint8Array(wide.buffer), dtype, bytes);
    return wide;
  });
  const masters = new Float32Array(master.buffer, master.byteOffset, now.length);
  for (let k = 0; k < masters.length; k++) {
    const sum = masters[k] + (now[k] - before[k]);
    if (now[k] !== before[k]) masters[k] = Number.isFinite(sum) ? sum : now[k];
  }
}

/** Index of the first NaN or infinity; −1 when there is none. */
export function firstNonFiniteHalf(dtype: DType, values: Uint8Array): number {
  const exponent = dtype === 'float16' ? 0x7c00 : 0x7f80;
  const halves = new Uint16Array(values.buffer, values.byteOffset, values.byteLength / 2);
  return halves.findIndex((bits) => (bits & exponent) === exponent);
}
