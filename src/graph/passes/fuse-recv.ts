/** The FuseRecv pass: decides which transfers of a partitioned graph are received together, by one request. Sends stay as they are.
 *
 *      group = sending device × receiving device × wave × embeddings or dense, cut at the caps
 *
 *  Stays a Recv of its own: a transfer alone in its group; one as large as the cap; one that reads a variable by reference, and
 *  what else its consumers get from other devices: a variable is read when it is sent, which must not wait for others. */
import { ShoalError } from '../../base/errors.ts';
import { anyNumber, anyObject, checkOptions, optionTable } from '../../base/schema.ts';
import { knownBytes, type Transfer } from '../placement/transfers.ts';
import { digraph, levels } from '../structure/digraph.ts';
import type { Graph } from '../structure/graph.ts';
import type { Node } from '../structure/node.ts';
import { sourceWave, type FusePolicy } from './fuse-policy.ts';

/** How receives become one request. */
export interface FuseOptions {
  /** Default: source-wave. */
  readonly policy?: FusePolicy;
  /** Bytes of a group at most, as far as shapes are known. Default 4 MiB. */
  readonly bytesMax?: number;
  /** Tensors of a group at most. Default 128. */
  readonly tensorsMax?: number;
}

const fuseOptionKeys = optionTable<FuseOptions>({ policy: anyObject, bytesMax: anyNumber, tensorsMax: anyNumber });

/** Transfers that one FuseRecv receives; at least two, in order of their slots. */
export type FuseGroup = readonly Transfer[];

/** @throws ShoalError `usage` for options that do not fit. */
export function fuseReceives(graph: Graph, transfers: readonly Transfer[], options: FuseOptions = {}): FuseGroup[] {
  checkOptions('fuseReceives', options, fuseOptionKeys);
  const { policy = sourceWave, bytesMax = 4 * 1024 * 1024, tensorsMax = 128 } = options;
  if (!(bytesMax > 0) || !(tensorsMax >= 2))
    throw new ShoalError('usage', `fuseReceives: bytesMax must be above 0 and tensorsMax at least 2`);
  const levelOf = waves(graph);
  const groups = new Map<string, Transfer[]>();
  for (const transfer of transfers) {
    if (knownBytes(transfer) >= bytesMax || isRefused(transfer)) continue;
    const kind = isEmbedding(transfer) ? 'embedding' : 'dense';
    const key = `${transfer.sendDevice}|${transfer.recvDevice}|${policy.waveOf(transfer, levelOf)}|${kind}`;
    const group = groups.get(key);
    if (group === undefined) groups.set(key, [transfer]);
    else group.push(transfer);
  }
  return [...groups.values()].flatMap((group) => cut(group, bytesMax, tensorsMax)).filter(({ length }) => length > 1);
}

/** The wave of every node; see `FusePolicy`. */
function waves({ nodes }: Graph): (node: Node) => number {
  const indexes = new Map<Node, number>(nodes.map((node, index) => [node, index]));
  const indexOf = (node: Node): number => indexes.get(node) ?? 0;
  const edges: number[] = [];
  nodes.forEach((node, index) => {
    for (const { node: source } of node.inputs) edges.push(indexOf(source), index);
    for (const source of node.controlInputs) edges.push(indexOf(source), index);
  });
  const level = levels(digraph(nodes.length, edges));
  return (node) => level[indexOf(node)];
}

/** Does a node that uses it get a reference from another device? */
function isRefused({ consumers }: Transfer): boolean {
  return consumers.some(({ inputs, device }) => inputs.some(({ isRef, node }) => isRef && node.device !== device));
}

/** Small rows of tables, and indices on their way to them, do not wait for dense tensors. */
function isEmbedding({ source, consumers }: Transfer): boolean {
  return source.definition.isSparse === true || consumers.some(({ definition }) => definition.isSparse === true);
}

function cut(group: readonly Transfer[], bytesMax: number, tensorsMax: number): Transfer[][] {
  const parts: Transfer[][] = [];
  let bytes = Infinity;
  for (const transfer of group) {
    const own = knownBytes(transfer);
    if (bytes + own > bytesMax || parts[parts.length - 1].length === tensorsMax) {
      parts.push([]);
      bytes = 0;
    }
    parts[parts.length - 1].push(transfer);
    bytes += own;
  }
  return parts;
}
