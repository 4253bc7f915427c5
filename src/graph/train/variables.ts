/** Variables that bring their first value, and where it comes from: TensorFlow's `get_variable` and its initialisers. */
import { anyText, callback, checkArgument, checkOptions, flag, list, literal, count, number, optionTable } from '../../base/schema.ts';
import { constant } from '../ops/array.ts';
import { noOp } from '../ops/control-flow.ts';
import { randomNormal, randomUniform, truncatedNormal, type RandomOptions } from '../ops/random.ts';
import { fillDefinition } from '../ops/shaping.ts';
import { assign, variable } from '../ops/state.ts';
import { placeShapes, type GraphBuilder, type NodeOptions } from '../structure/builder.ts';
import { checkedBuilder } from '../structure/check-arguments.ts';
import type { GraphDType } from '../structure/graph-dtype.ts';
import { requestedDevice, type Node, type Output } from '../structure/graph-node.ts';

/** Adds nodes that give the first value of a variable. */
export type Initializer = (g: GraphBuilder, shape: readonly number[], dtype: GraphDType) => Output;

/** Options of `getVariable`. */
export interface VariableOptions<D extends GraphDType = GraphDType> extends Omit<NodeOptions, 'name'> {
  /** Default float32. */
  readonly dtype?: D;
  /** Default `glorotUniformInitializer()`. */
  readonly initializer?: Initializer;
  /** False: optimisers leave it alone. Default true for floating-point variables. */
  readonly trainable?: boolean;
}

export const variableOptionKeys = optionTable<VariableOptions>({ dtype: anyText, initializer: callback, trainable: flag, ...placeShapes });

/** A variable that `globalVariablesInitializer` gives its first value, where the variable is. Optimisers find it in the graph. */
export function getVariable<D extends GraphDType = 'float32'>(
  g: GraphBuilder,
  name: string,
  shape: readonly number[],
  options: VariableOptions<D> = {},
): Output<D> {
  checkedBuilder('getVariable', g);
  checkOptions('getVariable', options, variableOptionKeys);
  checkArgument('getVariable: name', name, anyText);
  checkArgument('getVariable: shape', shape, list(count));
  const { dtype = 'float32', initializer = glorotUniformInitializer(), trainable = true, ...nodeOptions } = options;
  const made = variable(g, dtype, shape, { ...nodeOptions, name });
  const first = g.withScope(`${name}/initializer`, () =>
    g.withDevice(requestedDevice(made.node), () => assign(g, made, initializer(g, shape, dtype))),
  );
  g.variables.push({ variable: made, initializer: first.node, isTrainable: trainable && dtype.startsWith('float') });
  return made as Output<D>;
}

/** A node that gives all variables of `getVariable` their first values, those of optimisers included: make it last. */
export function globalVariablesInitializer(g: GraphBuilder): Node {
  const controlInputs = checkedBuilder('globalVariablesInitializer', g).variables.map(({ initializer }) => initializer);
  return noOp(g, { name: 'init', controlInputs });
}

/** A counter of steps, int64, from 0: `minimize` raises it, learning rates may depend on it. */
export function createGlobalStep(g: GraphBuilder): Output<'int64'> {
  return getVariable(g, 'global_step', [], { dtype: 'int64', initializer: constantInitializer(0), trainable: false });
}

/** The same number everywhere. */
export function constantInitializer(value: number): Initializer {
  checkArgument('constantInitializer: value', value, number());
  return (g, shape, dtype) => {
    const data = dtype === 'int64' ? [BigInt(value)] : [value];
    const dims = constant(g, { dtype: 'int32', shape: [shape.length], data: shape });
    return g.node(fillDefinition, [dims, constant(g, { dtype, shape: [], data })]).outputs[0];
  };
}

/** Zeros. */
export const zerosInitializer = (): Initializer => constantInitializer(0);
/** Ones. */
export const onesInitializer = (): Initializer => constantInitializer(1);

/** A distribution of first values. */
export interface RandomInitializerOptions {
  /** Default: a new one for every graph that is built. */
  readonly seed?: number;
}

const seeds = number({ min: 0 });
const uniformKeys = optionTable<RandomInitializerOptions & { minval?: number; maxval?: number }>({
  minval: number(),
  maxval: number(),
  seed: seeds,
});
const normalKeys = optionTable<RandomInitializerOptions & { mean?: number; stddev?: number }>({
  mean: number(),
  stddev: number({ min: 0 }),
  seed: seeds,
});

/** Uniform in [minval, maxval), by default [−0.05, 0.05). */
export function randomUniformInitializer(
  options: RandomInitializerOptions & { readonly minval?: number; readonly maxval?: number } = {},
): Initializer {
  checkOptions('randomUniformInitializer', options, uniformKeys);
  const { minval = -0.05, maxval = 0.05, seed } = options;
  return drawing(randomUniform, { seed, offset: minval, scale: maxval - minval });
}

type NormalOptions = RandomInitializerOptions & { readonly mean?: number; readonly stddev?: number };

/** Normal, by default of mean 0 and standard deviation 0.05. */
export function randomNormalInitializer(options: NormalOptions = {}): Initializer {
  checkOptions('randomNormalInitializer', options, normalKeys);
  return drawing(randomNormal, { seed: options.seed, offset: options.mean ?? 0, scale: options.stddev ?? 0.05 });
}

/** The same without numbers beyond two standard deviations. */
export function truncatedNormalInitializer(options: NormalOptions = {}): Initializer {
  checkOptions('truncatedNormalInitializer', options, normalKeys);
  return drawing(truncatedNormal, { seed: options.seed, offset: options.mean ?? 0, scale: options.stddev ?? 0.05 });
}

/** Options of `varianceScalingInitializer`. */
export interface VarianceScalingOptions extends RandomInitializerOptions {
  /** Default 1. */
  readonly scale?: number;
  /** The divisor of the variance: numbers of inputs, of outputs, or their mean. Default `fanIn`. */
  readonly mode?: 'fanIn' | 'fanOut' | 'fanAvg';
  /** Default `truncatedNormal`. */
  readonly distribution?: 'truncatedNormal' | 'uniform';
}

const scalingKeys = optionTable<VarianceScalingOptions>({
  scale: number({ above: 0 }),
  mode: literal('fanIn', 'fanOut', 'fanAvg'),
  distribution: literal('truncatedNormal', 'uniform'),
  seed: seeds,
});

/** Numbers of variance scale / fan, which keeps the variance of activations or of gradients from layer to layer. */
export function varianceScalingInitializer(options: VarianceScalingOptions = {}): Initializer {
  checkOptions('varianceScalingInitializer', options, scalingKeys);
  const { scale = 1, mode = 'fanIn', distribution = 'truncatedNormal', seed } = options;
  return (g, shape, dtype) => {
    const field = shape.slice(0, -2).reduce((product, each) => product * each, 1);
    const [fanIn, fanOut] = [(shape.at(-2) ?? shape.at(-1) ?? 1) * field, (shape.at(-1) ?? 1) * field];
    const fan = { fanIn, fanOut, fanAvg: (fanIn + fanOut) / 2 }[mode];
    const variance = scale / Math.max(1, fan);
    // The standard deviation of a normal distribution that is cut off at two of its own.
    if (distribution === 'truncatedNormal')
      return truncatedNormalInitializer({ stddev: Math.sqrt(variance) / truncatedDeviation, seed })(g, shape, dtype);
    const limit = Math.sqrt(3 * variance);
    return randomUniformInitializer({ minval: -limit, maxval: limit, seed })(g, shape, dtype);
  };
}

const truncatedDeviation = 0.87962566103423978;

/** Uniform, of variance 2 / (inputs + outputs): Glorot & Bengio, 2010. */
export function glorotUniformInitializer(options: RandomInitializerOptions = {}): Initializer {
  checkOptions('glorotUniformInitializer', options, optionTable<RandomInitializerOptions>({ seed: seeds }));
  return varianceScalingInitializer({ ...options, mode: 'fanAvg', distribution: 'uniform' });
}

function drawing(draw: typeof randomUniform, options: RandomOptions): Initializer {
  return (g, shape, dtype) => draw(g, shape, { ...options, dtype: dtype as 'float32' });
}
