/** The form of a kernel by TensorFlow.js, and what several share. */
import type * as tfjs from '@tensorflow/tfjs';
import type { Node } from '../structure/graph-node.ts';

export type Tensor = tfjs.Tensor;
export type TensorFlow = typeof tfjs;
type Attributed = Pick<Node, 'attributes'>;
/** The part of TensorFlow.js that is used; `Tensor`s of a call live until it returns. */
export interface Compute {
  (tf: TensorFlow, inputs: readonly Tensor[], node: Attributed): Tensor | readonly Tensor[];
  /** True: it is one operation of TensorFlow.js, which leaves nothing to be disposed of. */
  readonly isOne?: boolean;
}

/** The same, as one operation. */
export function one(compute: Compute): Compute {
  return Object.assign(compute, { isOne: true });
}

export const scalar = (node: Attributed, name: string): number => node.attributes[name] as number;
export const integers = (node: Attributed, name: string): number[] => [...(node.attributes[name] as readonly number[])];
export const flag = (node: Attributed, name: string): boolean => node.attributes[name] as boolean;

/** Axes of a reduction; undefined: all. */
export function axesOf(node: Attributed): number[] | undefined {
  const axis = integers(node, 'axis');
  return axis.length === 0 ? undefined : axis;
}

/** Operations of the same name there: `FloorDiv` is `floorDiv`. */
export function named(operations: string, compute: (name: string) => Compute): [string, Compute][] {
  return operations.split(' ').map((name) => [name, compute(`${name[0].toLowerCase()}${name.slice(1)}`)]);
}

export const elementwise = (name: string): Compute => one((tf, [x]) => tf[name as 'neg'](x));
export const pairwise = (name: string): Compute => one((tf, [x, y]) => tf[name as 'add'](x, y));
export const reducing = (name: string): Compute => one((tf, [x], node) => tf[name as 'sum'](x, axesOf(node), flag(node, 'keep_dims')));
