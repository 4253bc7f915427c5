/** Gradients that are cut to a length, as TensorFlow's `clip_by_…`. Of rows of a table, the rows that are named count as they are. */
import { anyList, checkArgument, number } from '../../base/schema.ts';
import { ShoalError } from '../../base/errors.ts';
import { IndexedSlices, type Gradient } from '../gradients/gradients.ts';
import type { Floats } from '../gradients/rules.ts';
import { constant } from '../ops/array.ts';
import { addN, div, maximum, mul, sqrt } from '../ops/math.ts';
import { l2Loss } from '../ops/nn.ts';
import type { GraphBuilder } from '../structure/builder.ts';
import { checkedBuilder, checkOutputs } from '../structure/check-arguments.ts';

const lengths = number({ above: 0 });

/** √Σ x² over all elements of all of them; those that are undefined count nothing. @throws ShoalError `usage` when there is none. */
export function globalNorm(g: GraphBuilder, gradients: readonly Gradient[]): Floats {
  checkedBuilder('globalNorm', g);
  const parts = tensorsOf('globalNorm', gradients);
  const halves = parts.map((part) => l2Loss(g, part));
  return sqrt(g, mul(g, addN(g, halves), scalar(g, parts[0], 2)));
}

/** Gradients of a global norm of at most `clipNorm`, all multiplied by the same, and what the norm was. */
export function clipByGlobalNorm<G extends Gradient>(g: GraphBuilder, gradients: readonly G[], clipNorm: number): [G[], Floats] {
  checkArgument('clipByGlobalNorm: clipNorm', clipNorm, lengths);
  const norm = globalNorm(g, gradients);
  return [gradients.map((each) => scaled(g, each, norm, clipNorm)), norm];
}

/** One gradient of a norm of at most `clipNorm`. */
export function clipByNorm<G extends Gradient>(g: GraphBuilder, gradient: G, clipNorm: number): G {
  checkArgument('clipByNorm: clipNorm', clipNorm, lengths);
  return scaled(g, gradient, globalNorm(g, [gradient]), clipNorm);
}

function scaled<G extends Gradient>(g: GraphBuilder, gradient: G, norm: Floats, clipNorm: number): G {
  if (gradient === undefined) return gradient;
  const limit = scalar(g, norm, clipNorm);
  const times = (x: Floats): Floats => mul(g, x, div(g, limit, maximum(g, norm, limit)));
  const made: Gradient =
    gradient instanceof IndexedSlices ? new IndexedSlices(times(gradient.values), gradient.indices, gradient.of) : times(gradient);
  return made as G;
}

function tensorsOf(call: string, gradients: readonly Gradient[]): Floats[] {
  checkArgument(`${call}: gradients`, gradients, anyList);
  const parts = gradients.filter((each) => each !== undefined).map((each) => (each instanceof IndexedSlices ? each.values : each));
  checkOutputs(`${call}: gradients`, parts);
  if (parts.length === 0) throw new ShoalError('usage', `${call}: there is no gradient`);
  return parts;
}

function scalar(g: GraphBuilder, like: Floats, value: number): Floats {
  return constant(g, { dtype: like.dtype, shape: [], data: [value] });
}
