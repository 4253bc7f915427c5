/** How operations are computed: a table of functions by the operation's name. Dense kernels come from outside, such as TensorFlow.js or
 *  jax-js; see `structural-kernels.ts` for those that only move values. */
import type { Node } from '../structure/node.ts';
import type { Value } from '../structure/value.ts';

export interface KernelCall {
  readonly node: Node;
  /** By input. A variable that the operation changes comes as a `Reference`, any other as its value now. */
  readonly inputs: readonly Value[];
  readonly stepId: number;
  /** Aborted when the step has failed or its time is over: what the kernel gives then is not looked at. */
  readonly signal: AbortSignal;
}

/** Gives the outputs by slot. Inputs are not changed; outputs are not changed afterwards. */
export type Kernel = (call: KernelCall) => readonly Value[] | Promise<readonly Value[]>;

export type KernelTable = Readonly<Record<string, Kernel>>;
