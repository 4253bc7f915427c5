/** The kernels that Shoal has itself: tables, random numbers and optimisers. Everything dense comes from TensorFlow.js (tensorflow.ts) or a
 *  `Call`. */
import type { ParameterKernels } from '../../memory/parameter-kernels.ts';
import type { KernelTable } from '../execute/kernel.ts';
import { embeddingKernels } from './embedding.ts';
import { historyKernels } from './history.ts';
import { randomKernels } from './random.ts';
import { selectionKernels } from './selection.ts';
import { sparseKernels } from './sparse.ts';
import { updateKernels } from './updates.ts';

export function tableKernels(parameterKernels: ParameterKernels): KernelTable {
  return {
    ...sparseKernels,
    ...selectionKernels,
    ...randomKernels(),
    ...historyKernels,
    ...embeddingKernels,
    ...updateKernels(parameterKernels),
  };
}
