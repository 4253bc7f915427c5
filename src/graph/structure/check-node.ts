/** The checks of a node when it is added: its attributes, the number and dtypes of its inputs, its shape function. */
import { describeForeign } from '../../memory/foreign-value.ts';
import { nearestName } from '../../base/settings/nearest-name.ts';
import { describeValue } from '../../base/schema.ts';
import { dimensionsMax } from '../../memory/tensor.ts';
import type {
  Attribute,
  AttributeKind,
  Attributes,
  AttributeSpec,
  Fail,
  InferContext,
  InputSpec,
  OpDefinition,
  OutputSpec,
} from './definition.ts';
import { elementsOf } from './elements.ts';
import { indexDTypes, isGraphDType, type GraphDType, type IndexDType } from './graph-dtype.ts';
import { Node, nodeError, type NodeParts, type Output } from './graph-node.ts';
import { formatShape, isShape, type Dimension } from './shape.ts';
import { isValue, type Value } from './value.ts';

export interface CheckedNode {
  readonly attributes: Attributes;
  readonly outputs: readonly OutputSpec[];
}

/** @throws ShoalError `usage` that names the node. */
export function checkNode(
  definition: OpDefinition,
  name: string,
  inputs: readonly OutputSpec[],
  given: Readonly<Record<string, Attribute | undefined>>,
): CheckedNode {
  const fail = (why: string): never => {
    throw nodeError({ op: definition.name, name }, why);
  };
  const attributes = completeAttributes(definition, given, fail);
  bindInputs(definition, inputs, attributes, fail);
  for (const [key, spec] of Object.entries(definition.attributes)) {
    if (attributes[key] === undefined) fail(`attribute '${key}' (${spec.kind}) is missing`);
    checkAllowed(key, spec, attributes[key], fail);
  }
  const outputs = definition.infer(inferContext(inputs, attributes, fail));
  outputs.forEach(({ shape }, slot) => {
    if (shape.length > dimensionsMax && shape !== 'unknown')
      fail(`output ${slot} would have ${shape.length} dimensions; at most ${dimensionsMax} are allowed`);
  });
  return { attributes, outputs };
}

/** A node that no builder has made, complete and checked like one that a builder has. */
export function derivedNode(
  definition: OpDefinition,
  { name, device, inputs = [], controlInputs = [], attributes: given = {} }: Pick<NodeParts, 'name' | 'device'> & Partial<NodeParts>,
): Node {
  const { attributes, outputs } = checkNode(definition, name, inputs, given);
  return new Node({ name, definition, inputs, controlInputs, attributes, device }, outputs);
}

function completeAttributes(
  { attributes: specs }: OpDefinition,
  given: Readonly<Record<string, Attribute | undefined>>,
  fail: Fail,
): Record<string, Attribute> {
  const complete: Record<string, Attribute> = {};
  for (const [key, spec] of Object.entries(specs)) if (spec.default !== undefined) complete[key] = spec.default;
  for (const [key, value] of Object.entries(given)) {
    if (value === undefined) continue;
    const spec = Object.hasOwn(specs, key) ? specs[key] : undefined;
    if (spec === undefined) {
      const nearest = nearestName(key, Object.keys(specs));
      return fail(`has no attribute '${key}'${nearest === undefined ? '' : `; did you mean '${nearest}'?`}`);
    }
    const describe = spec.kind === 'value' ? describeForeign : describeValue;
    if (!kinds[spec.kind].is(value)) fail(`attribute '${key}' must be ${kinds[spec.kind].words}, not ${describe(value)}`);
    complete[key] = value;
  }
  return complete;
}

/** Counts the inputs and binds type attributes to their dtypes. */
function bindInputs(
  { inputs: specs }: OpDefinition,
  inputs: readonly OutputSpec[],
  attributes: Record<string, Attribute>,
  fail: Fail,
): void {
  const list = specs.at(-1)?.isList === true ? specs.at(-1) : undefined;
  const fixed = list === undefined ? specs.length : specs.length - 1;
  const least = fixed + (list?.least ?? 0);
  if (inputs.length < least || (list === undefined && inputs.length > fixed)) {
    fail(`takes ${list === undefined ? '' : 'at least '}${least} ${least === 1 ? 'input' : 'inputs'}, not ${inputs.length}`);
  }
  inputs.forEach((input, index) => {
    const spec: InputSpec = specs[Math.min(index, specs.length - 1)];
    const role = index >= fixed ? `${spec.name}[${index - fixed}]` : spec.name;
    if (spec.isRef === true && input.isRef !== true) fail(`input ${role} must be a variable`);
    const isTable = (input as Partial<Output>).node?.op === 'KvVariable';
    if (isTable !== (spec.isTable === true))
      fail(isTable ? `input ${role} is a hash table, of which embeddingLookup gives rows` : `input ${role} must be a hash table`);
    if (spec.dtype === 'any') return;
    const [expected, why] = isGraphDType(spec.dtype) ? [spec.dtype, ''] : [attributes[spec.dtype], ` like the other ${spec.dtype}`];
    if (expected === undefined) attributes[spec.dtype] = input.dtype;
    else if (expected !== input.dtype) fail(`input ${role} is ${input.dtype}, but must be ${describeType(expected)}${why}`);
  });
}

function describeType(value: Attribute): string {
  return isGraphDType(value) ? value : describeValue(value);
}

function checkAllowed(key: string, spec: AttributeSpec, value: Attribute, fail: Fail): void {
  if (spec.allowed !== undefined && !spec.allowed.includes(value as GraphDType)) {
    fail(`${key} must be ${spec.allowed.join(', ')}, not ${describeType(value)}`);
  }
  if (spec.least !== undefined && (value as number) < spec.least) fail(`${key} must be at least ${spec.least}, not ${describeType(value)}`);
}

function inferContext(inputs: readonly OutputSpec[], attributes: Attributes, fail: Fail): InferContext {
  return {
    inputs,
    attributes,
    dtype: (attribute) => attributes[attribute] as GraphDType,
    integer: (attribute) => attributes[attribute] as number,
    integers: (attribute) => attributes[attribute] as readonly number[],
    flag: (attribute) => attributes[attribute] as boolean,
    ranked: (input, rank) => {
      const { shape } = inputs[input];
      if (shape === 'unknown') return Array.from({ length: rank }, (): Dimension => null);
      if (shape.length !== rank)
        fail(`input ${input} must have ${rank} ${rank === 1 ? 'dimension' : 'dimensions'}, not ${formatShape(shape)}`);
      return shape;
    },
    constant: (input) => constantOf(inputs[input]),
    fail,
  };
}

/** Only an input that is an output of a node can be constant. */
function constantOf(input: Partial<Output>): readonly number[] | undefined {
  const { node, dtype } = input;
  if (node?.op === 'Identity') return constantOf(node.inputs[0]);
  if (node?.op !== 'Const' || !indexDTypes.includes(dtype as IndexDType)) return undefined;
  return Array.from(elementsOf(node.attributes.value as Value) as ArrayLike<number>, Number);
}

const isBigint = (value: unknown): boolean => typeof value === 'bigint';
const isString = (value: unknown): boolean => typeof value === 'string';

function listOf(is: (each: unknown) => boolean): (value: unknown) => boolean {
  return (value) => Array.isArray(value) && value.every((each) => is(each));
}

/** The names of kinds in messages, and the test of each. */
const kinds: { readonly [Kind in AttributeKind]: { readonly words: string; readonly is: (value: unknown) => boolean } } = {
  type: { words: 'a dtype', is: isGraphDType },
  shape: { words: `a shape of at most ${dimensionsMax} dimensions`, is: isShape },
  int: { words: 'an integer', is: Number.isSafeInteger },
  int64: { words: 'a bigint', is: isBigint },
  float: { words: 'a number', is: (value) => typeof value === 'number' && !Number.isNaN(value) },
  bool: { words: 'true or false', is: (value) => typeof value === 'boolean' },
  string: { words: 'a string', is: isString },
  value: { words: 'a value with dtype and shape', is: (value) => isValue(value) && isGraphDType(value.dtype) },
  function: { words: 'a function, or the name of one', is: (value) => typeof value === 'function' || typeof value === 'string' },
  'list(int)': { words: 'a list of integers', is: listOf(Number.isSafeInteger) },
  'list(int64)': { words: 'a list of bigints', is: listOf(isBigint) },
  'list(type)': { words: 'a list of dtypes', is: listOf(isGraphDType) },
  'list(shape)': { words: 'a list of shapes', is: listOf(isShape) },
  'list(string)': { words: 'a list of strings', is: listOf(isString) },
};
