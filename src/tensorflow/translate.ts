/** Nodes of a GraphDef as nodes of a graph: attributes by their kinds, constant inputs as attributes, fused operations as several. */
import { textOf } from '../base/bytes.ts';
import { ShoalError } from '../base/errors.ts';
import { describeValue } from '../base/schema.ts';
import { operations } from '../graph/ops/registry.ts';
import type { Attribute, AttributeKind, Fail, OpDefinition } from '../graph/structure/definition.ts';
import { elementsOf } from '../graph/structure/elements.ts';
import type { NodeData } from '../graph/structure/node-data.ts';
import { describeNode, nodeError } from '../graph/structure/graph-node.ts';
import { isValue, type Value } from '../graph/structure/value.ts';
import { inlined, inputsOf } from './functions.ts';
import { dtypeOf, type AttrProto, type GraphProto, type Int64, type NodeProto } from './graph-def.ts';
import { Budget, shapeOfProto, valueOfProto } from './tensor.ts';
import {
  fillsTable,
  fusedOperations,
  fusedSteps,
  ignoredAttributes,
  translations,
  type ConstantKind,
  type Translation,
} from './translations.ts';

/** The value of a Const, when it is beside the graph. */
export type ValueSource = (node: NodeProto, fail: Fail) => Value | undefined;

/** Before this version of GraphDef a placeholder of no dimensions was one of any shape. */
const scalarPlaceholders = 22;

const definitions = new Map(operations.map((each) => [each.name, each]));

/** @throws ShoalError `unsupported` that lists all operations that are not known, and for what an operation here does not do; `usage` for
 *  nodes that are not well formed. All name the node. */
export function translate({ versions, ...given }: GraphProto, weights: ValueSource = () => undefined): NodeData[] {
  const graph = { node: inlined({ versions, ...given }), versions };
  const unknown = new Set(
    graph.node.map(({ op }) => op).filter((op) => !Object.hasOwn(fusedOperations, op) && !Object.hasOwn(translations, op)),
  );
  if (unknown.size > 0) {
    const names = [...unknown].sort().map((op) => op || '(no name)');
    throw new ShoalError('unsupported', `the GraphDef has operations that cannot be imported: ${names.join(', ')}`);
  }
  return new Translator(graph, weights).nodes();
}

class Translator {
  readonly #graph: GraphProto;
  readonly #weights: ValueSource;
  readonly #byName: ReadonlyMap<string, NodeProto>;
  readonly #values = new Map<NodeProto, Value>();
  readonly #budget = new Budget();

  constructor(graph: GraphProto, weights: ValueSource) {
    this.#graph = graph;
    this.#weights = weights;
    this.#byName = new Map(graph.node.map((node) => [node.name, node]));
    const handles = graph.node.filter(({ op }) => op === 'VarHandleOp');
    const shared = handles.map(({ attr }) => (Object.hasOwn(attr, 'shared_name') ? textOf(attr.shared_name.s ?? new Uint8Array()) : ''));
    const again = shared.findIndex((name, k) => name !== '' && shared.indexOf(name) < k);
    if (again >= 0) unsupported(handles[again], `the variable '${shared[again]}' has a second handle`);
  }

  nodes(): NodeData[] {
    return this.#graph.node.flatMap((node) =>
      Object.hasOwn(fusedOperations, node.op) ? this.#fused(node) : [this.#node(node, translations[node.op])],
    );
  }

  #node(node: NodeProto, translation: Translation): NodeData {
    const fail = failOf(node);
    const op = translation.op ?? node.op;
    const attributes = this.#attributes(node, op, translation, fail);
    const { values: given, control } = inputsOf(node);
    const values = translation.isLookup === true ? [...given.slice(1), ...this.#contentsOf(given[0], fail)] : given;
    const folded = new Set<number>();
    for (const [at, attribute, kind] of translation.constants ?? []) {
      const place = at < 0 ? values.length + at : at;
      const input = values[place] ?? fail(`input ${place}, its ${attribute}, is missing`);
      folded.add(place);
      const value = constantOf(this.#constant(input, attribute, fail), kind, attribute, fail);
      if (!isSaid(translation, attribute, value, fail)) attributes[attribute] = value;
    }
    const left = values.filter((_, place) => !folded.has(place));
    const inputs = [...(translation.order?.map((place) => left[place]).filter((each) => each !== undefined) ?? left), ...control];
    if (translation.isReduction === true && (attributes.axis as readonly number[]).length === 0)
      return { name: node.name, op: 'Identity', inputs, ...placeOf(node, fail), attributes: {} };
    const beside = translation.isBeside === true && node.device === '' ? { colocateWith: producerOf(values[0] ?? '') } : {};
    return { name: node.name, op, inputs, ...beside, ...placeOf(node, fail), attributes };
  }

  /** Keys and values that a table is filled with. */
  #contentsOf(table: string | undefined, fail: Fail): readonly string[] {
    const fill = this.#graph.node.find((node) => fillsTable(node) && node.input[0] === table);
    return fill?.input.slice(1, 3) ?? fail(`its table '${String(table)}' is not filled with keys and values of the graph`);
  }

  /** A product, and a node per step behind it; the last has the name of the whole. */
  #fused(node: NodeProto): NodeData[] {
    const fail = failOf(node);
    const op = fusedOperations[node.op];
    const steps = (Object.hasOwn(node.attr, 'fused_ops') ? (node.attr.fused_ops.list?.s ?? []) : []).map(textOf);
    const unknown = steps.filter((step) => !Object.hasOwn(fusedSteps, step));
    if (unknown.length > 0) return unsupported(node, `${unknown.join(', ')} behind the product`);
    const { values, control } = inputsOf(node);
    const takes = 2 + steps.filter((step) => fusedSteps[step].takesInput === true).length;
    if (values.length !== takes)
      fail(`takes ${takes} inputs with ${steps.join(', ') || 'nothing behind the product'}, not ${values.length}`);
    const inner = (k: number): string => (k === steps.length ? node.name : this.#unused(`${node.name}/${k === 0 ? op : steps[k - 1]}`));
    const place = placeOf(node, fail);
    const attributes = this.#attributes(node, op, translations[op], fail);
    const made: NodeData[] = [{ name: inner(0), op, inputs: [...values.slice(0, 2), ...control], ...place, attributes }];
    let next = 2;
    steps.forEach((step, k) => {
      const { op: behind, takesInput, renamed } = fusedSteps[step];
      const inputs = takesInput === true ? [made[k].name, values[next++]] : [made[k].name];
      const own = Object.fromEntries(
        Object.entries(renamed ?? {})
          .filter(([from]) => Object.hasOwn(node.attr, from))
          .map(([from, to]): [string, Attribute] => [to, this.#attribute(node, from, 'float', fail)]),
      );
      made.push({ name: inner(k + 1), op: behind, inputs, ...place, attributes: own });
    });
    return made;
  }

  #unused(name: string): string {
    let free = name;
    for (let number = 1; this.#byName.has(free); number++) free = `${name}_${number}`;
    return free;
  }

  #attributes(node: NodeProto, op: string, translation: Translation, fail: Fail): Record<string, Attribute> {
    const specs = (definitions.get(op) as OpDefinition).attributes;
    const attributes: Record<string, Attribute> = { ...translation.added };
    for (const name of Object.keys(node.attr)) {
      const known = translation.renamed?.[name] ?? name;
      if (op === 'Const' && name === 'value') attributes.value = this.#value(node, fail);
      else if (isSaid(translation, name, () => this.#plain(node, name, fail), fail)) continue;
      else if (Object.hasOwn(specs, known)) attributes[known] = this.#attribute(node, name, specs[known].kind, fail);
      else if (!name.startsWith('_') && !ignoredAttributes.has(name) && !(op === 'Const' && name === 'dtype'))
        return unsupported(node, `attribute '${name}' is not known`);
    }
    if (op === 'Const') attributes.value ??= this.#value(node, fail);
    if (op === 'Placeholder') this.#openScalar(attributes);
    return attributes;
  }

  #openScalar(attributes: Record<string, Attribute>): void {
    const { shape } = attributes;
    if (Array.isArray(shape) && shape.length === 0 && (this.#graph.versions?.producer ?? 0) < scalarPlaceholders)
      attributes.shape = 'unknown';
  }

  #value(node: NodeProto, fail: Fail): Value {
    const known = this.#values.get(node);
    if (known !== undefined) return known;
    const dtype = Object.hasOwn(node.attr, 'dtype') ? this.#attribute(node, 'dtype', 'type', fail) : undefined;
    const value = this.#weights(node, fail) ?? (this.#attribute(node, 'value', 'value', fail) as Value);
    if (dtype !== undefined && dtype !== value.dtype) fail(`its dtype is ${describeValue(dtype)}, but its value's ${value.dtype}`);
    this.#values.set(node, value);
    return value;
  }

  #attribute(node: NodeProto, name: string, kind: AttributeKind, fail: Fail): Attribute {
    const proto = node.attr[name] ?? fail(`attribute '${name}' is missing`);
    return attributeOf(proto, kind, this.#budget, (why) => fail(`attribute '${name}': ${why}`));
  }

  /** The node is translated as it is. */
  #plain(node: NodeProto, name: string, fail: Fail): Attribute | undefined {
    const kind = plainKinds.find(([field]) => Object.hasOwn(node.attr[name], field))?.[1];
    return kind === undefined ? undefined : this.#attribute(node, name, kind, fail);
  }

  /** The value of an input that TensorFlow computes, and that must be known here when the graph is made. */
  #constant(input: string, role: string, fail: Fail): Value {
    let name = input.replace(/:0$/, '');
    for (let steps = 0; steps <= this.#byName.size; steps++) {
      const node = this.#byName.get(name) ?? fail(`its input '${input}' is not there`);
      if (node.op === 'Const') return this.#value(node, failOf(node));
      if (node.op !== 'Identity' || node.input.length === 0) return fail(`its ${role} must be a constant, but '${name}' is ${node.op}`);
      name = node.input[0].replace(/:0$/, '');
    }
    return fail(`its ${role} must be a constant, but '${input}' goes round in a circle`);
  }
}

/** The node that an input comes from. */
function producerOf(input: string): string {
  return input.replace(/:\d+$/, '');
}

const plainKinds = [
  ['b', 'bool'],
  ['i', 'int'],
  ['s', 'string'],
  ['type', 'type'],
] as const;

/** Is this an attribute that may only have the value which says nothing? @throws ShoalError when it has another. */
function isSaid({ only }: Translation, name: string, given: Attribute | (() => Attribute | undefined), fail: Fail): boolean {
  if (only === undefined || !Object.hasOwn(only, name)) return false;
  const value = typeof given === 'function' ? (given as () => Attribute | undefined)() : given;
  if (value !== only[name]) fail(`its ${name} must be ${describeValue(only[name])}, not ${describeValue(value)}`);
  return true;
}

/** `loc:@name` in `_class`: the node is where that one is. */
function placeOf(node: NodeProto, fail: Fail): Pick<NodeData, 'device' | 'colocateWith'> {
  const classes = (Object.hasOwn(node.attr, '_class') ? (node.attr._class.list?.s ?? []) : []).map(textOf);
  const companions = [...new Set(classes.filter((each) => each.startsWith('loc:@')).map((each) => each.slice(5)))];
  const others = companions.filter((each) => each !== node.name);
  if (others.length > 1) fail(`is colocated with ${others.join(', ')}; one of them is enough`);
  return { ...(node.device !== '' && { device: node.device }), ...(others.length === 1 && { colocateWith: others[0] }) };
}

function attributeOf(proto: AttrProto, kind: AttributeKind, budget: Budget, fail: Fail): Attribute {
  const of: FieldOf = (field) => (Object.hasOwn(proto, field) ? proto[field] : undefined) ?? fail(`is no ${kind}`);
  return readers[kind](of, fail, budget);
}

/** The value of an attribute's field. @throws ShoalError when that is nothing. */
type FieldOf = <K extends keyof AttrProto>(field: K) => NonNullable<AttrProto[K]>;

const readers: { readonly [Kind in AttributeKind]: (of: FieldOf, fail: Fail, budget: Budget) => Attribute } = {
  type: (of, fail) => dtypeOf(of('type'), fail),
  shape: (of, fail) => shapeOfProto(of('shape'), fail),
  int: (of, fail) => integerOf(of('i'), fail),
  int64: (of) => BigInt(String(of('i'))),
  float: (of) => of('f'),
  bool: (of) => of('b'),
  string: (of) => textOf(of('s')),
  value: (of, fail, budget) => valueOfProto(of('tensor'), budget, fail),
  'list(int)': (of, fail) => of('list').i.map((each) => integerOf(each, fail)),
  'list(int64)': (of) => of('list').i.map((each) => BigInt(String(each))),
  'list(type)': (of, fail) => of('list').type.map((each) => dtypeOf(each, fail)),
  'list(shape)': (of, fail) => of('list').shape.map((each) => shapeOfProto(each, fail)),
  'list(string)': (of) => of('list').s.map(textOf),
  function: (_, fail) => fail('functions cannot be imported'),
};

function integerOf(value: Int64, fail: Fail): number {
  const number = Number(value);
  return Number.isSafeInteger(number) ? number : fail(`${String(value)} is too large`);
}

function constantOf(value: Value, kind: ConstantKind, role: string, fail: Fail): Attribute {
  if (!isValue(value) || value.dtype === 'string' || value.dtype === 'bool') return fail(`its ${role} must be numbers`);
  const numbers = Array.from(elementsOf(value) as ArrayLike<number>, Number);
  if (kind === 'int' || kind === 'float') return numbers.length === 1 ? numbers[0] : fail(`its ${role} must be one number`);
  if (kind === 'list(int)') return numbers;
  return numbers.map((each) => (each === -1 ? null : each));
}

function failOf(node: NodeProto): Fail {
  return (why) => {
    throw nodeError(node, why);
  };
}

function unsupported(node: NodeProto, why: string): never {
  throw new ShoalError('unsupported', `${describeNode(node)}: ${why}; it cannot be imported`);
}
