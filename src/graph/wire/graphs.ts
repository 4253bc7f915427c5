/** Graphs as bytes between tasks, and in files: nodes as JSON, the values of their attributes beside it. */
import { describeValue } from '../../base/schema.ts';
import { checkedGraph } from '../structure/check-arguments.ts';
import { ShoalError } from '../../base/errors.ts';
import { joinPieces } from '../rpc/rpc.ts';
import type { Graph } from '../structure/graph.ts';
import type { Attribute } from '../structure/definition.ts';
import { exportNodes, importNodes, type NodeData } from '../structure/node-data.ts';
import { isValue, type Value } from '../structure/value.ts';
import { operations } from '../ops/registry.ts';
import { decodeMessage, encodeMessage, malformed } from './messages.ts';

/** A graph as a file holds it. @throws ShoalError `unsupported` for functions that are not named. */
export function encodeGraph(graph: Graph): Uint8Array {
  const values: Value[] = [];
  const nodes = graphData(checkedGraph('encodeGraph', graph), values);
  return joinPieces(encodeMessage({ nodes }, values));
}

/** @throws ShoalError `protocol` for other bytes, and whatever `importNodes` refuses. */
export function decodeGraph(bytes: Uint8Array): Graph {
  if (!(bytes instanceof Uint8Array)) throw new ShoalError('usage', `decodeGraph takes bytes, not ${describeValue(bytes)}`);
  const { fields, values } = decodeMessage(Uint8Array.from(bytes));
  if (typeof fields !== 'object' || fields === null || !('nodes' in fields)) throw malformed('it holds no graph');
  return graphOf(fields.nodes, values);
}

/** A graph as JSON that refers to `values`. @throws ShoalError `unsupported` for functions: they are called by name on other tasks. */
export function graphData(graph: Graph, values: Value[]): unknown {
  return exportNodes(graph).map(({ attributes = {}, ...node }) => ({
    ...node,
    attributes: Object.fromEntries(Object.entries(attributes).map(([key, each]) => [key, encodeAttribute(each, values)])),
  }));
}

/** @throws ShoalError `protocol` and whatever `importNodes` refuses. */
export function graphOf(data: unknown, values: readonly Value[]): Graph {
  if (!Array.isArray(data)) throw malformed('a graph is a list of nodes');
  const nodes = data.map((each: unknown): NodeData => {
    if (typeof each !== 'object' || each === null) throw malformed('a node is an object');
    const { attributes, inputs, ...node } = each as NodeData;
    if (typeof attributes !== 'object' || attributes === null || !Array.isArray(inputs))
      throw malformed('a node has attributes and inputs');
    return {
      ...node,
      inputs,
      attributes: Object.fromEntries(Object.entries(attributes).map(([key, value]) => [key, decodeAttribute(value, values)])),
    };
  });
  return importNodes(nodes, operations);
}

function encodeAttribute(value: Attribute, values: Value[]): unknown {
  if (typeof value === 'bigint') return { bigint: value.toString() };
  if (Array.isArray(value)) return { list: value.map((each) => encodeAttribute(each as Attribute, values)) };
  if (value === Infinity || value === -Infinity) return { number: String(value) };
  if (!isValue(value)) return value;
  values.push(value);
  return { value: values.length - 1 };
}

function decodeAttribute(data: unknown, values: readonly Value[]): Attribute {
  if (typeof data !== 'object' || data === null) return data as Attribute;
  const { bigint, list, number, value } = data as Record<string, unknown>;
  if (typeof bigint === 'string' && /^-?\d{1,20}$/.test(bigint)) return BigInt(bigint);
  if (Array.isArray(list)) return list.map((each) => decodeAttribute(each, values)) as never;
  if (number === 'Infinity' || number === '-Infinity') return Number(number);
  const found = typeof value === 'number' ? values[value] : undefined;
  if (found === undefined) throw malformed('an attribute is not one');
  return found;
}
