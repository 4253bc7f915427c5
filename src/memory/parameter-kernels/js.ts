/** The loops of parameter kernels in JavaScript: the twin of the addon's, bit for bit. One per thread; it owns its scratch memory. */
import { blockCount, Scratch } from '../kernels/js-scratch.ts';
import { loadFloat16, storeFloat16 } from '../kernels/js-codecs.ts';
import type { NativeParameterLoops } from '../native.ts';
import { updateRules } from '../parameter-kernels.ts';
import { decodeTwoBitJs, encodeTwoBitJs } from './js-two-bit.ts';
import { updateJs } from './js-updates.ts';

/** The largest half. */
const halfMost = 65504;

export function jsParameterLoops(): NativeParameterLoops {
  const scratch = new Scratch();
  return {
    update(code, value, gradient, states, parameters) {
      updateJs(updateRules[code].name, value, gradient, states, parameters);
    },
    firstNonFinite(values) {
      for (let i = 0; i < values.length; i++) if (!Number.isFinite(values[i])) return i;
      return -1;
    },
    encodeTwoBit(target, gradient, residual, threshold) {
      encodeTwoBitJs(target, gradient, residual, Math.fround(threshold));
    },
    decodeTwoBit(target, source, threshold) {
      decodeTwoBitJs(target, source, Math.fround(threshold));
    },
    encodeHalf(target, gradient, residual) {
      const halves = new Uint16Array(target.buffer, target.byteOffset, gradient.length);
      const arrays = scratch.arrays(1);
      const { float32: held } = arrays;
      for (let from = 0; from < gradient.length; from += blockCount) {
        const count = Math.min(blockCount, gradient.length - from);
        for (let i = 0; i < count; i++) {
          const sum = Math.fround(residual[from + i] + gradient[from + i]);
          residual[from + i] = sum;
          held[i] = !Number.isFinite(sum) ? sum : sum > halfMost ? halfMost : sum < -halfMost ? -halfMost : sum;
        }
        storeFloat16(halves, from, arrays, 0, count);
        loadFloat16(arrays, 0, halves, from, count);
        for (let i = 0; i < count; i++) residual[from + i] = Number.isFinite(residual[from + i]) ? residual[from + i] - held[i] : 0;
      }
    },
    decodeHalf(target, source) {
      const halves = new Uint16Array(source.buffer, source.byteOffset, target.length);
      const arrays = scratch.arrays(1);
      for (let from = 0; from < target.length; from += blockCount) {
        const count = Math.min(blockCount, target.length - from);
        loadFloat16(arrays, 0, halves, from, count);
        target.set(arrays.float32.subarray(0, count), from);
      }
    },
  };
}
