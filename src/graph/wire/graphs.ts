/** Graphs as bytes between tasks: nodes as JSON, the values of their attributes beside it. */
import { ByteReader, Layout, textOf } from '../../base/bytes.ts';
import { describeValue } from '../../base/schema.ts';
import { checkedGraph } from '../structure/check-arguments.ts';
import { ShoalError } from '../../base/errors.ts';
import { joinPieces, type Pieces } from '../rpc/rpc.ts';
import type { Graph } from '../structure/graph.ts';
import type { Attribute } from '../structure/definition.ts';
import { exportNodes, importNodes, type NodeData } from '../structure/node-data.ts';
import { isValue, type Value } from '../structure/value.ts';
import { operations } from '../ops/registry.ts';
import { decodeSlots, encodeSlots, type Slot } from './values.ts';

/** A request or an answer with values beside it. */
export interface Message<T> {
  readonly fields: T;
  readonly values: readonly Slot[];
}

const format = 'a message of a task';
const messageHead = new Layout(format, { bytes: 'u32', zero: 'u32' });

export function encodeMessage(fields: unknown, values: readonly Slot[] = []): Pieces {
  const json = Buffer.from(JSON.stringify(fields));
  const head = messageHead.encode({ bytes: json.byteLength });
  const padding = new Uint8Array(-json.byteLength & 7);
  return [head, json, padding, ...(values.length === 0 ? [] : encodeSlots(values))];
}

/** @throws ShoalError `protocol`. */
export function decodeMessage(body: Uint8Array): Message<unknown> {
  const reader = new ByteReader(body, format);
  const { bytes } = reader.record(messageHead);
  const json = reader.bytes(bytes);
  reader.bytes(-bytes & 7);
  let fields: unknown;
  try {
    fields = JSON.parse(textOf(json));
  } catch (cause) {
    throw new ShoalError('protocol', `${format} is not well formed: no JSON`, { cause });
  }
  return { fields, values: reader.done ? [] : decodeSlots(reader.bytes(reader.left)) };
}

/** A graph as a file holds it. @throws ShoalError `unsupported` for functions that are not named. */
export function encodeGraph(graph: Graph): Uint8Array {
  const values: Slot[] = [];
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
export function graphData(graph: Graph, values: Slot[]): unknown {
  return exportNodes(graph).map(({ attributes = {}, ...node }) => ({
    ...node,
    attributes: Object.fromEntries(Object.entries(attributes).map(([key, each]) => [key, encodeAttribute(each, values)])),
  }));
}

/** @throws ShoalError `protocol` and whatever `importNodes` refuses. */
export function graphOf(data: unknown, values: readonly Slot[]): Graph {
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

function encodeAttribute(value: Attribute, values: Slot[]): unknown {
  if (typeof value === 'bigint') return { bigint: value.toString() };
  if (Array.isArray(value)) return { list: value.map((each) => encodeAttribute(each as Attribute, values)) };
  if (value === Infinity || value === -Infinity) return { number: String(value) };
  if (!isValue(value)) return value;
  values.push(value);
  return { value: values.length - 1 };
}

function decodeAttribute(data: unknown, values: readonly Slot[]): Attribute {
  if (typeof data !== 'object' || data === null) return data as Attribute;
  const { bigint, list, number, value } = data as Record<string, unknown>;
  if (typeof bigint === 'string' && /^-?\d{1,20}$/.test(bigint)) return BigInt(bigint);
  if (Array.isArray(list)) return list.map((each) => decodeAttribute(each, values)) as never;
  if (number === 'Infinity' || number === '-Infinity') return Number(number);
  const found = typeof value === 'number' ? values[value] : undefined;
  if (found === undefined || found instanceof ShoalError) throw malformed('an attribute is not one');
  return found satisfies Value;
}

function malformed(why: string): ShoalError {
  return new ShoalError('protocol', `${format} is not well formed: ${why}`);
}
