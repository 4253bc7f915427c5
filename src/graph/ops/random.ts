/** Random numbers. The seed determines the sequence of a node, with the same bits on every device; each run of the node gives the next
 *  numbers of it. */
import { systemRandom } from '../../base/random.ts';
import { ShoalError } from '../../base/errors.ts';
import { anyText, checkArgument, checkOptions, count, list, number, optionTable } from '../../base/schema.ts';
import { checkedBuilder, checkOutputs } from '../structure/check-arguments.ts';
import type { GraphBuilder, NodeOptions } from '../structure/builder.ts';
import type { OpDefinition } from '../structure/definition.ts';
import { floatDTypes, indexDTypes, type FloatDType, type IndexDType } from '../structure/graph-dtype.ts';
import { Output } from '../structure/graph-node.ts';
import { greaterEqual, mul } from './math.ts';
import { checkedOptions, inputsOf, splitOptions } from './op.ts';
import { cast, constant, shapeOf } from './array.ts';
import { shapeOfConstant } from './shaping.ts';

/** Options of random numbers. */
export interface RandomOptions extends NodeOptions {
  /** Default float32. */
  readonly dtype?: 'float32' | 'float64';
  /** Default: a new one for every graph that is built. */
  readonly seed?: number;
  /** The numbers are `offset + scale · drawn`. Default 1. */
  readonly scale?: number;
  /** Default 0. */
  readonly offset?: number;
}

function definition(name: string): OpDefinition {
  return {
    name,
    inputs: inputsOf({ shape: 'T' }),
    attributes: {
      T: { kind: 'type', allowed: indexDTypes },
      dtype: { kind: 'type', default: 'float32', allowed: ['float32', 'float64'] },
      seed: { kind: 'int', least: 0 },
      scale: { kind: 'float', default: 1 },
      offset: { kind: 'float', default: 0 },
    },
    infer: (context) => [{ dtype: context.dtype('dtype'), shape: shapeOfConstant(context, 0) }],
    isStateful: true,
  };
}

type RandomOp = (g: GraphBuilder, shape: readonly number[] | Output<IndexDType>, options?: RandomOptions) => Output<'float32'>;

function random(call: string, own: OpDefinition): RandomOp {
  return (g, shape, options) => {
    checkedBuilder(call, g);
    const { nodeOptions, attributes } = splitOptions(checkedOptions(own, options));
    if (!(shape instanceof Output)) checkArgument(`${call}: shape`, shape, list(count));
    const given = shape instanceof Output ? shape : constant(g, { dtype: 'int32', shape: [shape.length], data: shape });
    const { seed = systemRandom.integer(2 ** 31) } = attributes;
    return g.node(own, [given], { ...attributes, seed }, nodeOptions).outputs[0] as Output<'float32'>;
  };
}

/** The operations of the functions below, in their order. */
export const randomOps: readonly OpDefinition[] = ['RandomUniform', 'RandomStandardNormal', 'TruncatedNormal'].map(definition);

/** Numbers from 0 to 1, without 1. */
export const randomUniform = random('randomUniform', randomOps[0]);
/** Numbers of the standard normal distribution. */
export const randomNormal = random('randomNormal', randomOps[1]);
/** The same, without numbers further than 2 from 0. */
export const truncatedNormal = random('truncatedNormal', randomOps[2]);

const dropoutKeys = optionTable<{ seed?: number; name?: string }>({ seed: count, name: anyText });

/** Zero in the share `rate` of the elements, chosen anew in every step; others are multiplied by 1 / (1 − rate).
 *  @throws ShoalError `usage` for a rate outside [0, 1), and for elements that are no floating-point numbers. */
export function dropout<D extends FloatDType>(
  g: GraphBuilder,
  x: Output<D>,
  rate: number,
  options: Pick<RandomOptions, 'seed' | 'name'> = {},
): Output<D> {
  checkedBuilder('dropout', g);
  checkOutputs('dropout: x', [x]);
  checkArgument('dropout: rate', rate, number({ min: 0, below: 1 }));
  checkOptions('dropout', options, dropoutKeys);
  if (!floatDTypes.includes(x.dtype)) throw new ShoalError('usage', `dropout: '${x.name}' is ${x.dtype}, not of a floating-point dtype`);
  const { name = 'dropout', ...rest } = options;
  return g.withScope(name, () => {
    const scalar = <T extends FloatDType>(value: number, dtype: T): Output<T> => constant(g, { dtype, shape: [], data: [value] });
    const kept = greaterEqual(g, randomUniform(g, shapeOf(g, x), rest), scalar(rate, 'float32'));
    return mul(g, mul(g, x, scalar(1 / (1 - rate), x.dtype)), cast(g, kept, x.dtype));
  });
}
