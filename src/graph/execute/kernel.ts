/** Kernels compute operations: a table of functions by the operation's name. Dense kernels come from outside, such as TensorFlow.js or
 *  jax-js; see `structural-kernels.ts` for those that only move values. */
import type { GpuDevice } from '../../memory/device/gpu.ts';
import type { Node } from '../structure/graph-node.ts';
import type { Value } from '../structure/value.ts';
import type { Resident } from './resident.ts';

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
