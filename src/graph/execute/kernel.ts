/** Kernels compute operations: a table of functions by the operation's name. Dense kernels come from outside, such as TensorFlow.js or
 *  jax-js; see `structural-kernels.ts` for those that only move values. */
import { ShoalError } from '../../base/errors.ts';
import { isOnDevice } from '../../memory/device/device-tensor.ts';
import type { GpuDevice } from '../../memory/device/gpu.ts';
import type { Node } from '../structure/graph-node.ts';
import { formatShape } from '../structure/shape.ts';
import { fits, formatValue, isValue, type Value } from '../structure/value.ts';
import { Resident } from './resident.ts';
import { Reference } from './variable-store.ts';

/** The arguments of a kernel for one node of one step. */
export interface KernelCall {
  /** The node, for its attributes and its declared outputs. */
  readonly node: Node;
  /** Values by input. A variable that the operation changes comes as a `Reference`, any other as its value now. */
  readonly inputs: readonly Value[];
  /** The step that it is a part of; overlapping steps have different ones. */
  readonly stepId: number;
  /** Aborted when the step has failed or its time is over: what the kernel gives then is not looked at. */
  readonly signal: AbortSignal;
  /** Calls back when nobody reads the outputs any more: the step has ended on this task. What the callback throws fails a step that has not
   *  failed by itself. */
  readonly atEnd: (callback: () => void) => void;
}

/** Gives the outputs by slot. Inputs are not changed; outputs are not changed afterwards. */
export interface Kernel {
  (call: KernelCall): readonly Value[] | Promise<readonly Value[]>;
  /** True: it takes values that are in a library's memory as they are. Default: it gets their elements. */
  readonly takesResidents?: boolean;
  /** True: it gives no promise, and no input as an output, so that small nodes are computed at once. Default: nobody relies on that. */
  readonly isSynchronous?: boolean;
  /** True: it hands on its inputs, or what the node has, in whatever memory they are. */
  readonly passes?: boolean;
  /** Brings to the memory of its library what several kernels of a step may take. Default: that is not worth while. */
  readonly bring?: (value: Value) => Resident;
  /** The WebGPU device that the node is computed on: its inputs come as `DeviceTensor`s of it, but for strings, empty tensors and sizes
   *  that are no multiple of 4 bytes, and its outputs may be some. Their buffers are the kernel's own, and stay until `atEnd`. Default: the
   *  kernel gets the elements in host memory. */
  readonly deviceOf?: (node: Node) => GpuDevice | undefined;
}

/** Kernels by the name of the operation, as TensorFlow spells it.
 *
 *      const kernels: KernelTable = { ...tensorflowKernels(tf), Relu: ({ inputs: [x] }) => [myRelu(x)] }; */
export type KernelTable = Readonly<Record<string, Kernel>>;

/** @throws ShoalError `usage` when a kernel, or a sender, gives what the graph does not say. */
export function checkOutputs(node: Node, outputs: unknown, isOnHost: boolean): void {
  const given = Array.isArray(outputs) ? outputs.length : typeof outputs;
  if (given !== node.outputs.length) throw new ShoalError('usage', `its kernel must give ${node.outputs.length} outputs, not ${given}`);
  for (const { slot, dtype, shape } of node.outputs) {
    const value = (outputs as readonly (Value | undefined)[])[slot];
    if ((value === undefined && node.control !== 'kernel') || value instanceof Reference) continue;
    if (!(value instanceof Resident || isValue(value)))
      throw new ShoalError('usage', `its kernel gave no value with dtype and shape as output ${slot}`);
    if (!fits(value, dtype, shape))
      throw new ShoalError('usage', `output ${slot} must be ${dtype}${formatShape(shape)}, but is ${formatValue(value)}`);
    if (isOnHost && isOnDevice(value)) {
      const name = 'a function as its `device`, a kernel by `deviceOf`';
      throw new ShoalError('usage', `output ${slot} is in the memory of a device, which its kernel must name: ${name}`);
    }
  }
}
