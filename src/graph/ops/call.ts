/** Any asynchronous TypeScript function as a node: how a jitted step of jax-js or TensorFlow.js runs in a graph. */
import { anyList, anyText, anything, checkArgument, checkFields, checkOptions, optionTable } from '../../base/schema.ts';
import { checkedBuilder, checkOutputs } from '../structure/check-arguments.ts';
import { placeShapes, type GraphBuilder, type NodeOptions } from '../structure/builder.ts';
import type { CallFunction, OpDefinition } from '../structure/definition.ts';
import type { GraphDType } from '../structure/graph-dtype.ts';
import type { Output } from '../structure/graph-node.ts';
import type { Shape } from '../structure/shape.ts';

/** The name of a call that was given none. */
export const noGradient: CallFunction = () => [];

/** Options of a call: a node's, and its gradient. */
export interface CallOptions extends NodeOptions {
  /** The other way, for `gradients`: gets the inputs and then the gradient of every output, gives a gradient for every floating-point
   *  input: a vjp. */
  readonly gradient?: CallFunction | string;
}

const outputKeys = optionTable<{ readonly dtype: GraphDType; readonly shape: Shape }>({ dtype: anyText, shape: anything });
const callOptionKeys = optionTable<CallOptions>({ gradient: anything, name: anyText, ...placeShapes });

export const callDefinition: OpDefinition = {
  name: 'Call',
  inputs: [{ name: 'inputs', dtype: 'any', isList: true }],
  attributes: {
    function: { kind: 'function' },
    gradient: { kind: 'function', default: noGradient },
    output_types: { kind: 'list(type)' },
    output_shapes: { kind: 'list(shape)' },
  },
  infer: ({ attributes, fail }) => {
    const [dtypes, shapes] = [attributes.output_types as readonly GraphDType[], attributes.output_shapes as readonly Shape[]];
    if (dtypes.length !== shapes.length) fail(`${dtypes.length} output_types, but ${shapes.length} output_shapes`);
    return dtypes.map((dtype, slot) => ({ dtype, shape: shapes[slot] }));
  },
  isStateful: true,
};

/** Adds a node that computes by any function, synchronous or not: a jitted step of jax-js, a model of TensorFlow.js.
 *  @param compute a function, or the name of one that the process of the node's device has: only names go to other processes.
 *  @param outputs what `compute` gives; every result is checked against it. */
export function call(
  g: GraphBuilder,
  compute: CallFunction | string,
  inputs: readonly Output[],
  outputs: readonly { readonly dtype: GraphDType; readonly shape: Shape }[],
  given: CallOptions = {},
): readonly Output[] {
  checkedBuilder('call', g);
  checkOutputs('call: inputs', inputs);
  checkArgument('call: outputs', outputs, anyList);
  for (const each of outputs) checkFields('call: an output', each, outputKeys);
  checkOptions('call', given, callOptionKeys);
  const { gradient, ...options } = given;
  const attributes = {
    function: compute,
    gradient,
    output_types: outputs.map(({ dtype }) => dtype),
    output_shapes: outputs.map(({ shape }) => shape),
  };
  return g.node(callDefinition, inputs, attributes, options).outputs;
}
