/** The kernels that Shoal has itself: tables and optimisers. Everything dense comes from TensorFlow.js (tensorflow.ts) or a `Call`. */
import type { ParameterKernels } from '../../memory/parameter-kernels.ts';
import type { KernelTable } from '../execute/kernel.ts';
import { selectionKernels } from './selection.ts';
import { sparseKernels } from './sparse.ts';
import { updateKernels } from './updates.ts';

export function tableKernels(parameterKernels: ParameterKernels): KernelTable {
  return { ...sparseKernels, ...selectionKernels, ...updateKernels(parameterKernels) };
}
