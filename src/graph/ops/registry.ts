/** The operations that exist: all that the families' files export, as functions that add nodes or as definitions alone. */
import type { OpDefinition } from '../structure/definition.ts';
import * as array from './array.ts';
import * as call from './call.ts';
import * as controlFlow from './control-flow.ts';
import * as convolution from './convolution.ts';
import * as embedding from './embedding.ts';
import * as gradient from './gradient.ts';
import * as lookup from './lookup.ts';
import * as math from './math.ts';
import * as matrix from './matrix.ts';
import * as nn from './nn.ts';
import * as random from './random.ts';
import * as reduction from './reduction.ts';
import * as shaping from './shaping.ts';
import * as state from './state.ts';
import * as training from './training.ts';
import * as transfer from './transfer.ts';

const families = [
  ...[array, shaping, math, matrix, reduction, random, nn, convolution, lookup],
  ...[state, embedding, training, gradient, controlFlow, call, transfer],
];

/** The operations, family by family. */
export const operations: readonly OpDefinition[] = [...new Set(families.flatMap((family) => Object.values(family).flatMap(definitionsOf)))];

function definitionsOf(exported: unknown): OpDefinition[] {
  if (Array.isArray(exported)) return exported.flatMap(definitionsOf);
  const { definition = exported } = exported as { definition?: unknown };
  return typeof (definition as Partial<OpDefinition>).infer === 'function' ? [definition as OpDefinition] : [];
}
