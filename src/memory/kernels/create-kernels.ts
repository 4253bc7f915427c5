/** Picks the kernels: the addon's when it is there, else their twin. */
import type { Kernels } from '../kernels.ts';
import type { Native } from '../native.ts';
import { JsKernels } from './js.ts';
import { NativeKernels } from './native.ts';

export function createKernels(options: { readonly native?: Native | undefined } = {}): Kernels {
  return options.native === undefined ? new JsKernels() : new NativeKernels(options.native);
}
