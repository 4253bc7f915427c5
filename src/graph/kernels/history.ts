/** Kernels of histories of loops: values of every iteration, which the gradient takes back one by one. A history is the number of
 *  iterations as a value; what it carries stays in the process. */
import { ShoalError } from '../../base/errors.ts';
import type { Kernel, KernelTable } from '../execute/kernel.ts';
import { elementsOf } from '../structure/elements.ts';
import type { Value } from '../structure/value.ts';

interface History extends Value {
  readonly below: Value;
  readonly values: readonly Value[];
}

const push: Kernel = ({ inputs: [below, ...values] }) => {
  const data = Int32Array.of(Number(elementsOf(below)[0]) + 1);
  const history: History = { dtype: 'int32', shape: [], data, below, values };
  return [history];
};

const pop: Kernel = ({ inputs: [history] }) => {
  const { below, values } = history as History;
  if (values === undefined) throw new ShoalError('unsupported', 'the gradient of a loop must be on the device of the loop');
  return [below, ...values];
};

export const historyKernels: KernelTable = { HistoryPush: push, HistoryPop: pop };
