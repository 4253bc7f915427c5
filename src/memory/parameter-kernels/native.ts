/** Parameter kernels in the addon: checks here, loops there. */
import type { NativeParameterLoops } from '../native.ts';
import {
  checkEncoding,
  checkUpdate,
  twoBitBytes,
  updateRules,
  type ParameterKernels,
  type Reals,
  type UpdateRule,
} from '../parameter-kernels.ts';

export class NativeParameterKernels implements ParameterKernels {
  readonly #loops: NativeParameterLoops;

  constructor(loops: NativeParameterLoops) {
    this.#loops = loops;
  }

  update(rule: UpdateRule, value: Reals, gradient: Reals, states: readonly Reals[], parameters: Float64Array): void {
    checkUpdate(rule, value, gradient, states, parameters);
    const code = updateRules.findIndex(({ name }) => name === rule);
    this.#loops.update(code, value, gradient, states, parameters);
  }

  firstNonFinite(values: Reals): number {
    return this.#loops.firstNonFinite(values);
  }

  encodeTwoBit(target: Uint8Array, gradient: Float32Array, residual: Float32Array, threshold: number): void {
    checkEncoding(twoBitBytes(gradient.length), target, gradient, residual);
    this.#loops.encodeTwoBit(target, gradient, residual, threshold);
  }

  decodeTwoBit(target: Float32Array, source: Uint8Array, threshold: number): void {
    checkEncoding(twoBitBytes(target.length), source, target);
    this.#loops.decodeTwoBit(target, source, threshold);
  }

  encodeHalf(target: Uint8Array, gradient: Float32Array, residual: Float32Array): void {
    checkEncoding(gradient.length * 2, target, gradient, residual);
    this.#loops.encodeHalf(target, gradient, residual);
  }

  decodeHalf(target: Float32Array, source: Uint8Array): void {
    checkEncoding(target.length * 2, source, target);
    this.#loops.decodeHalf(target, source);
  }
}
