/** Trees of jax-js' arrays as arrays of the host, for the adapters of jax-js. It must not know models or ranks. */
import { DType, numpy as np, tree, type JsTree } from '@jax-js/jax';
import { assert } from '../../base/assert.ts';
import { ShoalError } from '../../base/errors.ts';
import { describeValue, isPlainObject } from '../../base/schema.ts';
import type { ParameterSpec } from '../buckets.ts';

/** Any nesting of plain objects and lists with arrays at the leaves. */
export type ArrayTree = JsTree<np.Array>;

export type Elements = Float32Array | Float64Array;

/** The leaf's elements; consumes it. */
export function readOnce(leaf: np.Array): Elements {
  checkHost([leaf]);
  return leaf.dataSync() as Elements;
}

export function isOnWebGpu({ device }: np.Array): boolean {
  return device === 'webgpu';
}

/** Consumes nothing. @throws ShoalError `usage` for leaves on device webgpu. */
export function checkHost(leaves: readonly np.Array[]): void {
  if (leaves.some(isOnWebGpu))
    throw new ShoalError('usage', 'ddp: arrays on device webgpu are read by the event loop: await average, or verifyReplicas, instead');
}

/** A new array that holds a copy of the elements. */
export function arrayOf(values: Elements, { shape, dtype }: ParameterSpec, device: np.Array['device']): np.Array {
  // Dawn ends the process when it is to read shared memory of JavaScript, which tensors are in without the addon.
  const isUnreadable = device === 'webgpu' && values.buffer instanceof SharedArrayBuffer;
  return np.array(isUnreadable ? values.slice() : values, {
    shape: [...shape],
    dtype: dtype === 'float64' ? DType.Float64 : DType.Float32,
    device,
  });
}

/** Name (`blocks.0.qkv`), shape and dtype of every leaf, in the order of `tree.leaves`. */
export function leafSpecs(params: ArrayTree): ParameterSpec[] {
  const specs: ParameterSpec[] = [];
  const visit = (node: ArrayTree, path: string): void => {
    if (node instanceof np.Array) {
      specs.push({ name: path || 'params', shape: [...node.shape], dtype: floatDType(node, path) });
    } else if (Array.isArray(node) || isPlainObject(node)) {
      for (const [key, child] of Object.entries(node)) visit(child, path ? `${path}.${key}` : key);
    } else {
      throw new ShoalError('unsupported', `ddp: parameter '${path}' is ${describeValue(node)}; every leaf must be an array`);
    }
  };
  visit(params, '');
  assert(specs.length === tree.leaves(params).length, () => 'the walk and jax-js agree on what a leaf is');
  return specs;
}

function floatDType({ dtype }: np.Array, path: string): 'float32' | 'float64' {
  if (dtype === DType.Float32) return 'float32';
  if (dtype === DType.Float64) return 'float64';
  const message = `ddp: parameter '${path}' is ${dtype}; only float32 and float64 arrays are averaged: convert it or keep it out of the tree`;
  throw new ShoalError('unsupported', message);
}
