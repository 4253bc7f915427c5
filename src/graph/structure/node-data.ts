/** Graphs as plain data, to keep and to send: what TensorFlow calls a GraphDef. Nodes come in any order and refer to each other by
 *  name: `a` and `a:1` are outputs, `^a` is a node that must have run before. */
import { checkedGraph } from './check-arguments.ts';
import { ShoalError } from '../../base/errors.ts';
import { anyList, anyObject, anyText, checkArgument, checkFields, optionTable } from '../../base/schema.ts';
import { checkName, GraphBuilder } from './builder.ts';
import type { Attribute, Attributes, OpDefinition } from './definition.ts';
import { circleThrough, components, digraph, type Digraph } from './digraph.ts';
import type { Graph } from './graph.ts';
import { describeNode, nodeError, type Node, type Output } from './graph-node.ts';

/** One node of a graph as plain data: TensorFlow's NodeDef. */
export interface NodeData {
  /** Differs between all nodes of the graph. */
  readonly name: string;
  /** The name of an operation that the importer is given: `MatMul`. */
  readonly op: string;
  /** Inputs in order: `x` is output 0 of node x, `x:1` is its output 1, `^x` is a node that is waited for. */
  readonly inputs: readonly string[];
  /** Full or partial: `/job:ps/task:0`. Default: any. */
  readonly device?: string;
  /** Name of the node whose device it has. Default: none. */
  readonly colocateWith?: string;
  /** Attributes, as the operation declares them. Default: those that have a default there. */
  readonly attributes?: Readonly<Record<string, Attribute>>;
}

const nodeDataKeys = optionTable<NodeData>({
  name: anyText,
  op: anyText,
  inputs: anyList,
  device: anyText,
  colocateWith: anyText,
  attributes: anyObject,
});

interface Reference {
  readonly node: number;
  /** Undefined: a control input. */
  readonly slot: number | undefined;
}

/** @throws ShoalError `unsupported` that lists all operations that are not known; `usage` for circles, names that are not there or
 *  there twice, and whatever a builder refuses. */
export function importNodes(nodes: readonly NodeData[], operations: readonly OpDefinition[]): Graph {
  checkArgument('importNodes: nodes', nodes, anyList);
  checkArgument('importNodes: operations', operations, anyList);
  for (const each of nodes) checkFields('importNodes: a node', each, nodeDataKeys);
  const definitions = definitionsOf(nodes, operations);
  const indexes = new Map<string, number>();
  nodes.forEach((each, index) => {
    checkName('importNodes', each.name);
    if (indexes.has(each.name)) throw new ShoalError('usage', `importNodes: there are two nodes '${each.name}'`);
    indexes.set(each.name, index);
  });
  const references = nodes.map((each) => each.inputs.map((input) => reference(each, input, indexes)));
  const isBack = (from: number, to: number): boolean =>
    definitions[from].control === 'next-iteration' && definitions[to].control === 'merge';
  const builder = new GraphBuilder();
  const made: Node[] = [];
  const outputOf = (user: NodeData, { node, slot = 0 }: Reference): Output => {
    const output = made[node].outputs[slot];
    if (output !== undefined) return output;
    throw nodeError(user, `'${made[node].name}' has no output ${slot}`);
  };
  for (const index of inputsFirst(nodes, references, indexes, isBack)) {
    const { name, device, colocateWith, attributes } = nodes[index];
    const forward = references[index].filter(({ node }) => !isBack(node, index));
    made[index] = builder.node(
      definitions[index],
      forward.filter(({ slot }) => slot !== undefined).map((each) => outputOf(nodes[index], each)),
      attributes,
      {
        name,
        device,
        controlInputs: forward.filter(({ slot }) => slot === undefined).map(({ node }) => made[node]),
        colocateWith: colocateWith === undefined ? undefined : made[indexes.get(colocateWith) ?? -1],
      },
    );
    if (made[index].name !== name) throw nodeError(nodes[index], "the name collides with another node's");
  }
  references.forEach((each, index) => {
    for (const one of each) if (isBack(one.node, index)) builder.connect(made[index].outputs[0], outputOf(nodes[index], one));
  });
  return builder.finish();
}

/** @throws ShoalError `unsupported` for functions, which are no data. */
export function exportNodes(graph: Graph): NodeData[] {
  return checkedGraph('exportNodes', graph).nodes.map(({ name, op, inputs, controlInputs, device, colocateWith, attributes }) => {
    for (const [key, value] of Object.entries(attributes)) {
      // A gradient is for the program that builds graphs.
      if (typeof value === 'function' && key !== 'gradient') {
        const message = `${describeNode({ op, name })}: its ${key} is a function, which is no data; give it a name instead`;
        throw new ShoalError('unsupported', message);
      }
    }
    const names = [
      ...inputs.map((input) => (input.slot === 0 ? input.node.name : input.name)),
      ...controlInputs.map((node) => `^${node.name}`),
    ];
    return {
      name,
      op,
      inputs: names,
      ...(device === '' ? {} : { device }),
      ...(colocateWith === undefined ? {} : { colocateWith: colocateWith.name }),
      attributes: withoutFunctions(attributes),
    };
  });
}

function withoutFunctions(attributes: Attributes): Attributes {
  if (!Object.values(attributes).some((value) => typeof value === 'function')) return attributes;
  return Object.fromEntries(Object.entries(attributes).filter(([, value]) => typeof value !== 'function'));
}

function definitionsOf(nodes: readonly NodeData[], operations: readonly OpDefinition[]): OpDefinition[] {
  const byName = new Map(operations.map((each) => [each.name, each]));
  const unknown = new Set(nodes.map(({ op }) => op).filter((op) => !byName.has(op)));
  if (unknown.size > 0)
    throw new ShoalError('unsupported', `importNodes: operations that are not known: ${[...unknown].sort().join(', ')}`);
  return nodes.map(({ op }) => byName.get(op) as OpDefinition);
}

function reference(user: NodeData, text: string, indexes: ReadonlyMap<string, number>): Reference {
  const [, caret, name, slot] = /^(\^?)(.*?)(?::(\d{1,6}))?$/.exec(text) ?? [];
  const node = indexes.get(name);
  if (node === undefined) throw nodeError(user, `its input '${text}' is not there`);
  return { node, slot: caret === '^' ? undefined : Number(slot ?? 0) };
}

/** An order in which nodes follow their inputs, and those they are colocated with; one that is such an order already stays. */
function inputsFirst(
  nodes: readonly NodeData[],
  references: readonly (readonly Reference[])[],
  indexes: ReadonlyMap<string, number>,
  isBack: (from: number, to: number) => boolean,
): number[] {
  const edges: number[] = [];
  nodes.forEach((each, index) => {
    for (const { node } of references[index]) if (!isBack(node, index)) edges.push(index, node);
    if (each.colocateWith === undefined) return;
    const other = indexes.get(each.colocateWith);
    if (other === undefined) throw nodeError(each, `colocateWith '${each.colocateWith}' is not there`);
    edges.push(index, other);
  });
  const graph = digraph(nodes.length, edges);
  const { of } = components(graph);
  const order: number[] = [];
  const own = edges.findIndex((from, at) => at % 2 === 0 && from === edges[at + 1]);
  if (own >= 0) throw circle(nodes, graph, edges[own]);
  of.forEach((component, node) => {
    if (order[component] !== undefined) throw circle(nodes, graph, order[component]);
    order[component] = node;
  });
  return order;
}

function circle(nodes: readonly NodeData[], graph: Digraph, on: number): ShoalError {
  const names = (circleThrough(graph, on) ?? []).map((index) => nodes[index].name).reverse();
  return new ShoalError('usage', `importNodes: the graph has a circle: ${names.join(' → ')}; only NextIteration to Merge goes back`);
}
