/** Learning rates that change with the step: scalars that the graph computes from the global step, as TensorFlow's `tf.train.…_decay`. */
import { ShoalError } from '../../base/errors.ts';
import { anyNumber, checkArgument, checkOptions, flag, list, number, optionTable } from '../../base/schema.ts';
import { cast, constant } from '../ops/array.ts';
import { floatFunctions } from '../ops/float-functions.ts';
import { add, div, exp, floatOps, floorDiv, lessEqual, maximum, minimum, mul, neg, pow, select, sub } from '../ops/math.ts';
import type { Rate } from '../ops/training.ts';
import type { GraphBuilder } from '../structure/builder.ts';
import { checkedBuilder, checkOutputs } from '../structure/check-arguments.ts';
import { Output } from '../structure/graph-node.ts';

type Scalar = Output<'float32'>;

/** Options of decays that may go down in steps. */
export interface DecayOptions {
  /** True: the rate changes every `decaySteps` steps. Default false: in every step. */
  readonly staircase?: boolean;
}

/** Options of `polynomialDecay`. */
export interface PolynomialDecayOptions {
  /** Default 0.0001. */
  readonly endLearningRate?: number;
  /** Default 1, a straight line. */
  readonly power?: number;
  /** True: begins again above the end, over twice, three times as many steps. Default false. */
  readonly cycle?: boolean;
}

const decayKeys = optionTable<DecayOptions>({ staircase: flag });
const polynomialKeys = optionTable<PolynomialDecayOptions>({ endLearningRate: number(), power: number({ above: 0 }), cycle: flag });
const cosineKeys = optionTable<{ alpha?: number }>({ alpha: number() });

interface Maths {
  readonly g: GraphBuilder;
  readonly rate: Scalar;
  readonly step: Scalar;
  readonly number: (value: number) => Scalar;
}

/** Checks the arguments that all have, and brings them as scalars. */
function schedule(
  call: string,
  [g, learningRate, globalStep]: readonly [GraphBuilder, Rate, Output],
  decaySteps: number,
  build: (maths: Maths) => Scalar,
): Scalar {
  checkedBuilder(call, g);
  checkOutputs(`${call}: globalStep`, [globalStep]);
  checkArgument(`${call}: decaySteps`, decaySteps, number({ above: 0 }));
  if (!(learningRate instanceof Output)) checkArgument(`${call}: learningRate`, learningRate, number());
  return g.withScope(call, () => {
    const scalar = (value: number): Scalar => constant(g, { dtype: 'float32', shape: [], data: [value] });
    const rate = learningRate instanceof Output ? cast(g, learningRate, 'float32') : scalar(learningRate);
    return build({ g, rate, step: cast(g, globalStep, 'float32'), number: scalar });
  });
}

type Decay = (
  g: GraphBuilder,
  learningRate: Rate,
  globalStep: Output,
  decaySteps: number,
  decayRate: number,
  options?: DecayOptions,
) => Scalar;

/** @param decayed the rate, after a time that is measured in `decaySteps`. */
function decay(call: string, decayed: (maths: Maths, time: Scalar, decayRate: number) => Scalar): Decay {
  return (g, learningRate, globalStep, decaySteps, decayRate, options = {}) => {
    checkArgument(`${call}: decayRate`, decayRate, number());
    checkOptions(call, options, decayKeys);
    return schedule(call, [g, learningRate, globalStep], decaySteps, (maths) => {
      const divide = options.staircase === true ? floorDiv : div;
      return decayed(maths, divide(g, maths.step, maths.number(decaySteps)), decayRate);
    });
  };
}

/** learningRate · decayRate ^ (globalStep / decaySteps). */
export const exponentialDecay = decay('exponentialDecay', ({ g, rate, number }, time, decayRate) =>
  mul(g, rate, pow(g, number(decayRate), time)),
);

/** learningRate · e ^ (−decayRate · globalStep / decaySteps). */
export const naturalExpDecay = decay('naturalExpDecay', ({ g, rate, number }, time, decayRate) =>
  mul(g, rate, exp(g, mul(g, number(-decayRate), time))),
);

/** learningRate / (1 + decayRate · globalStep / decaySteps). */
export const inverseTimeDecay = decay('inverseTimeDecay', ({ g, rate, number }, time, decayRate) =>
  div(g, rate, add(g, number(1), mul(g, number(decayRate), time))),
);

/** (learningRate − endLearningRate) · (1 − globalStep / decaySteps) ^ power + endLearningRate; the end stays from `decaySteps` on. */
export function polynomialDecay(
  g: GraphBuilder,
  learningRate: Rate,
  globalStep: Output,
  decaySteps: number,
  options: PolynomialDecayOptions = {},
): Scalar {
  checkOptions('polynomialDecay', options, polynomialKeys);
  const { endLearningRate = 0.0001, power = 1, cycle = false } = options;
  return schedule('polynomialDecay', [g, learningRate, globalStep], decaySteps, ({ rate, step, number }) => {
    const one = number(1);
    const time = div(g, step, number(decaySteps));
    const roundedUp = neg(g, floorDiv(g, neg(g, time), one));
    const share = cycle ? div(g, time, maximum(g, one, roundedUp)) : minimum(g, time, one);
    const end = number(endLearningRate);
    return add(g, mul(g, sub(g, rate, end), pow(g, sub(g, one, share), number(power))), end);
  });
}

/** learningRate · ((1 − alpha) · (1 + cos(π · globalStep / decaySteps)) / 2 + alpha); the end stays. Default alpha 0.
 *  Loshchilov & Hutter, "SGDR: stochastic gradient descent with warm restarts", 2017. */
export function cosineDecay(
  g: GraphBuilder,
  learningRate: Rate,
  globalStep: Output,
  decaySteps: number,
  options: { readonly alpha?: number } = {},
): Scalar {
  checkOptions('cosineDecay', options, cosineKeys);
  const { alpha = 0 } = options;
  const cosine = floatOps[floatFunctions.indexOf('Cos')];
  return schedule('cosineDecay', [g, learningRate, globalStep], decaySteps, ({ rate, step, number }) => {
    const share = minimum(g, div(g, step, number(decaySteps)), number(1));
    const [turned] = g.node(cosine, [mul(g, share, number(Math.PI))]).outputs as readonly Scalar[];
    return mul(g, rate, add(g, mul(g, turned, number((1 - alpha) / 2)), number((1 + alpha) / 2)));
  });
}

/** `values[0]` up to and with step `boundaries[0]`, then `values[1]`, and so on. @throws ShoalError `usage` unless there is one value more
 *  than boundaries, which rise. */
export function piecewiseConstant(g: GraphBuilder, globalStep: Output, boundaries: readonly number[], values: readonly number[]): Scalar {
  checkArgument('piecewiseConstant: boundaries', boundaries, list(anyNumber));
  checkArgument('piecewiseConstant: values', values, list(anyNumber));
  if (values.length !== boundaries.length + 1 || boundaries.some((each, k) => k > 0 && each <= boundaries[k - 1]))
    throw new ShoalError('usage', `piecewiseConstant: ${values.length} values for the boundaries ${boundaries.join(', ')}`);
  return schedule('piecewiseConstant', [g, values[values.length - 1], globalStep], 1, ({ rate, step, number }) =>
    boundaries.reduceRight((later, boundary, k) => select(g, lessEqual(g, step, number(boundary)), number(values[k]), later), rate),
  );
}
