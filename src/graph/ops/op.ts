/** Operations as functions that add a node: `matMul(g, a, b, { name: 'h1', transpose_b: true })`. Inputs come first, a list of inputs as
 *  one array; the last argument has the node's options and the operation's attributes, which keep TensorFlow's spelling. */
import { checkedBuilder } from '../structure/check-arguments.ts';
import { ShoalError } from '../../base/errors.ts';
import { nearestName } from '../../base/settings/nearest-name.ts';
import { describeValue, isPlainObject } from '../../base/schema.ts';
import { nodeOptionKeys, type GraphBuilder, type NodeOptions } from '../structure/builder.ts';
import type { Attribute, InferContext, InputSpec, OpDefinition, OutputSpec } from '../structure/definition.ts';
import { floatDTypes, numericDTypes, type GraphDType } from '../structure/graph-dtype.ts';
import { describeNode, type Node, type Output } from '../structure/graph-node.ts';
import { broadcastShapes, formatShape, mergeShapes, type Shape } from '../structure/shape.ts';

/** A definition that can be called to add a node. */
export type Op<Call> = Call & { readonly definition: OpDefinition };

export type Unary<In extends GraphDType, Options extends object = object> = <D extends In>(
  g: GraphBuilder,
  x: Output<D>,
  options?: NodeOptions & Options,
) => Output<D>;

export type Binary<In extends GraphDType, Options extends object = object> = <D extends In>(
  g: GraphBuilder,
  x: Output<D>,
  y: Output<D>,
  options?: NodeOptions & Options,
) => Output<D>;

/** Gives the only output, the list of several, or the node when there is none. */
export function op<Call>(definition: OpDefinition): Op<Call> {
  const count = definition.inputs.length;
  const call = (g: GraphBuilder, ...args: unknown[]): unknown => {
    const inputs = args.slice(0, count).flat() as Output[];
    const { nodeOptions, attributes } = splitOptions(checkedOptions(definition, args[count]));
    return resultOf(checkedBuilder(definition.name, g).node(definition, inputs, attributes, nodeOptions));
  };
  return Object.assign(call as Call & object, { definition });
}

/** @throws ShoalError `usage` for what is no object, and for keys that neither nodes nor this operation have. */
export function checkedOptions({ name, attributes }: OpDefinition, given: unknown): Readonly<Record<string, unknown>> {
  if (given === undefined) return {};
  const known = [...nodeOptionKeys.keys(), ...Object.keys(attributes)];
  if (!isPlainObject(given)) throw new ShoalError('usage', `${name} takes options (${known.join(', ')}), not ${describeValue(given)}`);
  for (const key of Object.keys(given)) {
    if (known.includes(key)) continue;
    const nearest = nearestName(key, known);
    const label = describeNode({ op: name, name: 'name' in given && typeof given.name === 'string' ? given.name : name });
    throw new ShoalError('usage', `${label}: has no attribute '${key}'${nearest === undefined ? '' : `; did you mean '${nearest}'?`}`);
  }
  return given as Readonly<Record<string, unknown>>;
}

/** The options of a node, and what is left: attributes. */
export function splitOptions(options: Readonly<Record<string, unknown>>): {
  readonly nodeOptions: NodeOptions;
  readonly attributes: Readonly<Record<string, Attribute>>;
} {
  const nodeOptions: Record<string, unknown> = {};
  const attributes: Record<string, Attribute> = {};
  for (const [key, value] of Object.entries(options)) {
    if (nodeOptionKeys.has(key as keyof NodeOptions)) nodeOptions[key] = value;
    else attributes[key] = value as Attribute;
  }
  return { nodeOptions, attributes };
}

function resultOf(node: Node): Node | Output | readonly Output[] {
  if (node.outputs.length === 0) return node;
  return node.outputs.length === 1 ? node.outputs[0] : node.outputs;
}

// ── inputs and types that several families share ────────────────────────────────────────────────────────────────────

export const anyType = { T: { kind: 'type' } } as const;
export const numeric = { T: { kind: 'type', allowed: numericDTypes } } as const;
export const floating = { T: { kind: 'type', allowed: floatDTypes } } as const;

/** Types by name: a dtype, or the type attribute that says it. Of the last one, `+` behind it stands for one such input or more, `*` for
 *  any number of them. */
export function inputsOf(dtypes: Readonly<Record<string, string>>): InputSpec[] {
  return Object.entries(dtypes).map(([name, type]): InputSpec => {
    if (type.endsWith('+')) return { name, dtype: type.slice(0, -1), isList: true, least: 1 };
    return type.endsWith('*') ? { name, dtype: type.slice(0, -1), isList: true } : { name, dtype: type };
  });
}

/** A definition, with inputs as `inputsOf` takes them, or whole. */
export function define(
  name: string,
  inputs: Readonly<Record<string, string>> | readonly InputSpec[],
  attributes: OpDefinition['attributes'],
  infer: OpDefinition['infer'],
): OpDefinition {
  return {
    name,
    inputs: Array.isArray(inputs) ? (inputs as readonly InputSpec[]) : inputsOf(inputs as Record<string, string>),
    attributes,
    infer,
  };
}

/** The same for an operation whose only output has dtype T. */
export function defineOne(
  name: string,
  inputs: Readonly<Record<string, string>>,
  attributes: OpDefinition['attributes'],
  shape: (context: InferContext) => Shape,
): OpDefinition {
  return define(name, inputs, { ...anyType, ...attributes }, (context) => [{ dtype: context.dtype('T'), shape: shape(context) }]);
}

// ── shape functions that several families share ─────────────────────────────────────────────────────────────────────

/** One output, like the first input. */
export function likeFirst({ inputs: [first] }: InferContext): readonly OutputSpec[] {
  return [{ dtype: first.dtype, shape: first.shape }];
}

export function firstShape({ inputs: [{ shape }] }: InferContext): Shape {
  return shape;
}

/** The shape to which two inputs broadcast. */
export function broadcast({ inputs, fail }: InferContext): Shape {
  const [x, y] = inputs;
  return broadcastShapes(x.shape, y.shape) ?? fail(`shapes ${formatShape(x.shape)} and ${formatShape(y.shape)} do not broadcast`);
}

/** The shape that all inputs have. */
export function oneShape({ inputs, fail }: InferContext): Shape {
  let shape: Shape = 'unknown';
  for (const each of inputs) {
    shape = mergeShapes(shape, each.shape) ?? fail(`${formatShape(inputs[0].shape)} and ${formatShape(each.shape)} are not one shape`);
  }
  return shape;
}
