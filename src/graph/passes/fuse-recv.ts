/** The FuseRecv pass: decides which transfers of a partitioned graph are received together, by one request. Sends stay as they are.
 *
 *      group = sending device × receiving device × loop × wave × embeddings or dense, cut at the caps
 *
 *  Stays a Recv of its own: a transfer alone in its group; one as large as the cap. A variable is fused as any tensor: its Send reads it,
 *  and Sends do not wait for each other. */
import { pushTo } from '../../base/collections/lists.ts';
import { ShoalError } from '../../base/errors.ts';
import { anyNumber, anyObject, checkOptions, optionTable } from '../../base/schema.ts';
import { knownBytes, type Transfer } from '../placement/device-transfers.ts';
import { digraph, levels } from '../structure/digraph.ts';
import { iterationOrder } from '../structure/frames.ts';
import type { Graph } from '../structure/graph.ts';
import type { Node } from '../structure/graph-node.ts';
import { sourceWave, type FusePolicy } from './fuse-policy.ts';

/** Options for the fusing of receives. */
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

/** A receive that the pass left alone. */
export interface UnfusedReceive {
  /** Output that is received: `weights:0`; of a node that others only run after, `^init`. */
  readonly tensor: string;
  /** The device that has the tensor. */
  readonly sendDevice: string;
  /** The device that receives it. */
  readonly recvDevice: string;
  /** The reason, for people. */
  readonly why: string;
}

/** @returns what is received together, and every other transfer with the reason. @throws ShoalError `usage` for options that do not fit. */
export function fuseReceives(
  graph: Graph,
  transfers: readonly Transfer[],
  options: FuseOptions = {},
): { readonly groups: readonly FuseGroup[]; readonly unfused: readonly UnfusedReceive[] } {
  checkOptions('fuseReceives', options, fuseOptionKeys);
  const { policy = sourceWave, bytesMax = 4 * 1024 * 1024, tensorsMax = 128 } = options;
  if (!(bytesMax > 0) || !(tensorsMax >= 2))
    throw new ShoalError('usage', `fuseReceives: bytesMax must be above 0 and tensorsMax at least 2`);
  const levelOf = waves(graph);
  const candidates = new Map<string, Transfer[]>();
  const groups: FuseGroup[] = [];
  const unfused: UnfusedReceive[] = [];
  const leave = ({ source, slot, sendDevice, recvDevice }: Transfer, why: string): void => {
    const tensor = slot === undefined ? `^${source.name}` : source.outputs[slot].name;
    unfused.push({ tensor, sendDevice, recvDevice, why });
  };
  for (const transfer of transfers) {
    const bytes = knownBytes(transfer);
    if (bytes >= bytesMax) {
      leave(transfer, `its ${bytes} bytes reach the cap of a group, bytesMax ${bytesMax}`);
      continue;
    }
    const kind = isEmbedding(transfer) ? 'embedding' : 'dense';
    const key = `${transfer.sendDevice}|${transfer.recvDevice}|${policy.waveOf(transfer, levelOf)}|${kind}|${transfer.frame.name}`;
    pushTo(candidates, key, transfer);
  }
  for (const [key, found] of candidates) {
    const [, , wave, kind] = key.split('|');
    for (const group of cut(found, bytesMax, tensorsMax)) {
      if (group.length > 1) groups.push(group);
      else if (found.length === 1) leave(group[0], `no other ${kind} tensor of wave ${wave} (${policy.name}) goes the same way`);
      else leave(group[0], `the groups of its wave are full: tensorsMax ${tensorsMax}, bytesMax ${bytesMax}`);
    }
  }
  return { groups, unfused };
}

/** The wave of every node; see `FusePolicy`. */
function waves({ nodes }: Graph): (node: Node) => number {
  const { indexes, edges, count } = iterationOrder([nodes]);
  const level = levels(digraph(count, edges));
  return (node) => level[indexes.get(node) ?? 0];
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
