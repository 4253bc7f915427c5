/** Picks the parameter kernels: the addon's when it is there, else their twin. */
import type { Native } from '../native.ts';
import type { ParameterKernels } from '../parameter-kernels.ts';
import { JsParameterKernels } from './js.ts';
import { NativeParameterKernels } from './native.ts';

export function createParameterKernels(options: { readonly native?: Native | undefined } = {}): ParameterKernels {
  return options.native === undefined ? new JsParameterKernels() : new NativeParameterKernels(options.native.parameters);
}
