/** Kernels of tables, optimisers and random numbers, for sessions without a graph server, which has them itself. */
import { readSettings } from '../base/settings/settings.ts';
import { loadNative } from '../memory/native.ts';
import { createParameterKernels } from '../memory/parameter-kernels/create-parameter-kernels.ts';
import type { KernelTable } from './execute/kernel.ts';
import { tableKernels } from './kernels/table-kernels.ts';

/** Kernels of tables and optimisers: Gather, Scatter…, DynamicPartition, DynamicStitch, Apply…, SparseApply…; what graph servers have
 *  beside what they are given, for the `kernels` of a local `Session`. */
export function localKernels(): KernelTable {
  const { native } = readSettings(process.env);
  return tableKernels(createParameterKernels({ native: loadNative({ enabled: native }) }));
}
