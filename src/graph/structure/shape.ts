/** Shapes of which not all is known when the graph is built: a dimension may be null, the rank may be unknown. */

import { dimensionsMax } from '../../memory/tensor.ts';

/** Elements along an axis; null: known when a step runs. */
export type Dimension = number | null;
/** Dimensions, the outermost first; `unknown`: not even how many. */
export type Shape = readonly Dimension[] | 'unknown';

export const scalar: Shape = [];

/** `[?, 16]`; `unknown`. */
export function formatShape(shape: Shape): string {
  return shape === 'unknown' ? 'unknown' : `[${shape.map((dimension) => dimension ?? '?').join(', ')}]`;
}

export function isShape(value: unknown): value is Shape {
  if (value === 'unknown') return true;
  if (!Array.isArray(value) || value.length > dimensionsMax) return false;
  return value.every((each) => each === null || (Number.isSafeInteger(each) && (each as number) >= 0));
}

/** The shape that two shapes are together; undefined: they contradict each other. */
export function mergeShapes(a: Shape, b: Shape): Shape | undefined {
  if (a === 'unknown') return b;
  if (b === 'unknown') return a;
  if (a.length !== b.length) return undefined;
  const merged: Dimension[] = [];
  for (let axis = 0; axis < a.length; axis++) {
    const [left, right] = [a[axis], b[axis]];
    if (left !== null && right !== null && left !== right) return undefined;
    merged.push(left ?? right);
  }
  return merged;
}

/** The shape that either of two shapes has: dimensions that differ are unknown. */
export function commonShape(a: Shape, b: Shape): Shape {
  if (a === 'unknown' || b === 'unknown' || a.length !== b.length) return 'unknown';
  return a.map((dimension, axis) => (dimension === b[axis] ? dimension : null));
}

/** NumPy's broadcasting; undefined: the shapes do not fit. */
export function broadcastShapes(a: Shape, b: Shape): Shape | undefined {
  if (a === 'unknown' || b === 'unknown') return 'unknown';
  const rank = Math.max(a.length, b.length);
  const result: Dimension[] = [];
  for (let axis = 0; axis < rank; axis++) {
    const left = alignedDimension(a, rank, axis);
    const right = alignedDimension(b, rank, axis);
    if (left === 1) result.push(right);
    else if (right === 1 || left === right) result.push(left);
    else if (left === null) result.push(right);
    else if (right === null) result.push(left);
    else return undefined;
  }
  return result;
}

/** Elements at least: unknown dimensions count 1. */
export function knownCount(shape: Shape): number {
  return shape === 'unknown' ? 1 : shape.reduce<number>((product, dimension) => product * (dimension ?? 1), 1);
}

/** Elements; undefined while a dimension is unknown. */
export function exactCount(shape: Shape): number | undefined {
  return shape === 'unknown' || shape.includes(null) ? undefined : knownCount(shape);
}

/** 0 ≤ axis < rank for −rank ≤ axis < rank; undefined: outside. */
export function resolveAxis(axis: number, rank: number): number | undefined {
  if (!Number.isSafeInteger(axis) || axis < -rank || axis >= rank) return undefined;
  return axis < 0 ? axis + rank : axis;
}

function alignedDimension(shape: readonly Dimension[], rank: number, axis: number): Dimension {
  const own = axis - (rank - shape.length);
  return own < 0 ? 1 : shape[own];
}
