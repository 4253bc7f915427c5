/** The proof about a partitioned graph: no receive waits for what waits for it. It looks at the result alone, not at how it was made:
 *  the order of an iteration in all partitions as one directed graph, with an edge from every Send to the receive of its key. A fused
 *  receive can reach one of its own sources if, and only if, it is on a circle there. */
import type { OpDefinition } from '../structure/definition.ts';
import { circleThrough, components, digraph } from '../structure/digraph.ts';
import { iterationOrder } from '../structure/frames.ts';
import type { Graph } from '../structure/graph.ts';
import { describeNode, type Node } from '../structure/graph-node.ts';
import { keysOf } from './keys.ts';

export interface PartitionGraphs {
  readonly partitions: readonly { readonly graph: Graph }[];
}

/** Everything wrong, readable; empty when there is nothing: every key is sent once and received once, with one dtype, the slots of a fused
 *  receive have one sender and one receiver, and no receive can reach its own sources. */
export function deadlockProblems({ partitions }: PartitionGraphs): string[] {
  const nodes = partitions.flatMap(({ graph }) => graph.nodes);
  const problems: string[] = [];
  const transfers: number[] = [];
  const present = new Set(nodes);
  const senders = new Map<string, Sender>();
  nodes.forEach((node, index) => {
    if (node.control !== 'send') return;
    const [key] = keysOf(node);
    if (senders.has(key)) problems.push(`${label(node)} sends ${key}, which another node sends`);
    senders.set(key, { index, dtype: node.inputs[0].dtype, receiver: undefined });
  });
  nodes.forEach((node, index) => {
    if (!node.inputs.every((input) => present.has(input.node)) || !node.controlInputs.every((source) => present.has(source)))
      problems.push(`${label(node)} has an input that is in no partition`);
    if (!isReceive(node.definition)) return;
    const keys = keysOf(node);
    keys.forEach((key, slot) => {
      const sender = senders.get(key);
      if (sender === undefined) problems.push(`${label(node)} waits for ${key}, which nobody sends`);
      else if (sender.receiver !== undefined) problems.push(`${label(node)} and ${label(sender.receiver)} both receive ${key}`);
      else if (sender.dtype !== node.outputs[slot].dtype)
        problems.push(`${label(node)} expects ${node.outputs[slot].dtype} as ${key}, but ${sender.dtype} is sent`);
      if (sender === undefined) return;
      sender.receiver = node;
      transfers.push(sender.index, index);
    });
    if (keys.length > 1 && new Set(keys.map(endsOf)).size > 1)
      problems.push(`${label(node)} receives from several devices, or for several`);
  });
  for (const [key, { index, receiver }] of senders)
    if (receiver === undefined) problems.push(`${label(nodes[index])} sends ${key} to nobody`);
  return problems.length > 0 ? problems : circles(partitions, transfers);
}

interface Sender {
  readonly index: number;
  readonly dtype: string;
  receiver: Node | undefined;
}

function circles(partitions: PartitionGraphs['partitions'], transfers: readonly number[]): string[] {
  const { indexes, edges, count: all } = iterationOrder(partitions.map(({ graph }) => graph.nodes));
  const nodes = [...indexes.keys()];
  const graph = digraph(all, [...edges, ...transfers]);
  const { of, count } = components(graph);
  const sizes = new Int32Array(count);
  for (const component of of) sizes[component]++;
  const found = nodes.flatMap((node, index) => {
    if (!isReceive(node.definition) || sizes[of[index]] === 1) return [];
    const way = (circleThrough(graph, index) ?? []).map((each) => nodes[each]?.name ?? 'a loop').join(' → ');
    return [{ isFused: node.control === 'fuse-recv', problem: `${label(node)} waits for itself: ${way}` }];
  });
  return [...found.filter(({ isFused }) => isFused), ...found.filter(({ isFused }) => !isFused)].map(({ problem }) => problem);
}

function isReceive({ control }: OpDefinition): boolean {
  return control === 'recv' || control === 'fuse-recv';
}

/** Sender and receiver in a key. */
function endsOf(key: string): string {
  return key.split(';', 3).join(';');
}

function label(node: Node): string {
  return `${describeNode(node)} on ${node.device}`;
}
