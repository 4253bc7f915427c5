/** Graphs of TensorFlow: GraphDef in Protocol Buffers. */
import { ShoalError } from '../base/errors.ts';
import { describeValue } from '../base/schema.ts';
import { operations } from '../graph/ops/registry.ts';
import type { Graph } from '../graph/structure/graph.ts';
import { importNodes } from '../graph/structure/node-data.ts';
import { decoded, loadCodec, type GraphProto } from './graph-def.ts';
import { translate, type ValueSource } from './translate.ts';

/** @param bytes a GraphDef, as in a `.pb` file of a frozen graph.
 *  @throws ShoalError `protocol` for other bytes; `unsupported` that lists all operations that are not known, and without the package
 *  protobufjs; `usage` for a graph that is not well formed. */
export async function importGraphDef(bytes: Uint8Array): Promise<Graph> {
  if (!(bytes instanceof Uint8Array)) throw new ShoalError('usage', `importGraphDef takes bytes, not ${describeValue(bytes)}`);
  return graphOfProto('importGraphDef: the GraphDef', decoded(await loadCodec(), bytes, 'GraphDef') as GraphProto);
}

/** @param what names it in the error for one without nodes. */
export function graphOfProto(what: string, proto: GraphProto, weights?: ValueSource): Graph {
  if (proto.node.length === 0) throw new ShoalError('protocol', `${what} has no nodes`);
  return importNodes(translate(proto, weights), operations);
}
