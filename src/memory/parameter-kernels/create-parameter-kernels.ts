/** Picks the parameter kernels: the addon's when it is there, else their twin in JavaScript, which gives the same bits. The checks are
 *  here, the loops there. */
import type { NativeParameterLoops } from '../native.ts';
import { checkEncoding, checkUpdate, twoBitBytes, updateRules, type ParameterKernels } from '../parameter-kernels.ts';
import { jsParameterLoops } from './js.ts';

export function createParameterKernels({
  native,
}: { readonly native?: { readonly parameters: NativeParameterLoops } | undefined } = {}): ParameterKernels {
  const loops = native?.parameters ?? jsParameterLoops();
  return {
    update(rule, value, gradient, states, parameters) {
      checkUpdate(rule, value, gradient, states, parameters);
      const code = updateRules.findIndex(({ name }) => name === rule);
      loops.update(code, value, gradient, states, parameters);
    },
    firstNonFinite(values) {
      return loops.firstNonFinite(values);
    },
    encodeTwoBit(target, gradient, residual, threshold) {
      checkEncoding(twoBitBytes(gradient.length), target, gradient, residual);
      loops.encodeTwoBit(target, gradient, residual, threshold);
    },
    decodeTwoBit(target, source, threshold) {
      checkEncoding(twoBitBytes(target.length), source, target);
      loops.decodeTwoBit(target, source, threshold);
    },
    encodeHalf(target, gradient, residual) {
      checkEncoding(gradient.length * 2, target, gradient, residual);
      loops.encodeHalf(target, gradient, residual);
    },
    decodeHalf(target, source) {
      checkEncoding(target.length * 2, source, target);
      loops.decodeHalf(target, source);
    },
  };
}
