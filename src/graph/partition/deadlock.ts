/** The proof about a partitioned graph: no receive waits for what waits for it. It looks at the result alone, not at how it was made:
 *  all partitions as one directed graph, with an edge from every Send to the receive of its key. A fused receive can reach one of its
 *  own sources if, and only if, it is on a circle there; in a loop, on one within an iteration. */
import { groupBy } from '../../base/collections/lists.ts';
import type { OpDefinition } from '../structure/definition.ts';
import { circleThrough, components, digraph } from '../structure/digraph.ts';
import { frameTable, goesBackIn } from '../structure/frames.ts';
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
  const edges: number[] = [];
  const indexes = new Map<Node, number>();
  const senders = new Map<string, Sender>();
  nodes.forEach((node, index) => {
    indexes.set(node, index);
    if (node.control !== 'send') return;
    const [key] = keysOf(node);
    if (senders.has(key)) problems.push(`${label(node)} sends ${key}, which another node sends`);
    senders.set(key, { index, dtype: node.inputs[0].dtype, receiver: undefined });
  });
  nodes.forEach((node, index) => {
    for (const { node: source } of node.inputs) edges.push(indexes.get(source) ?? -1, index);
    for (const source of node.controlInputs) edges.push(indexes.get(source) ?? -1, index);
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
      edges.push(sender.index, index);
    });
    if (keys.length > 1 && new Set(keys.map(endsOf)).size > 1)
      problems.push(`${label(node)} receives from several devices, or for several`);
  });
  for (const [key, { index, receiver }] of senders)
    if (receiver === undefined) problems.push(`${label(nodes[index])} sends ${key} to nobody`);
  if (edges.includes(-1)) problems.push('a node has an input that is in no partition');
  return problems.length > 0 ? problems : circles(partitions, edges);
}

interface Sender {
  readonly index: number;
  readonly dtype: string;
  receiver: Node | undefined;
}

function circles(partitions: PartitionGraphs['partitions'], edges: readonly number[]): string[] {
  const tables = partitions.map(({ graph }) => frameTable(graph.nodes));
  const placed = partitions.flatMap(({ graph }, k) => graph.nodes.map((node) => ({ node, frame: tables[k].frameOf(node) })));
  const receives = [...placed.keys()].filter((index) => isReceive(placed[index].node.definition));
  const found = [...groupBy(receives, (index) => placed[index].frame.name).values()].flatMap((indexes) => {
    const goesBack = goesBackIn(placed[indexes[0]].frame);
    const isForward = (at: number): boolean => !goesBack(placed[edges[at - (at % 2)]].node, placed[edges[at - (at % 2) + 1]].frame);
    const graph = digraph(
      placed.length,
      edges.filter((_, at) => isForward(at)),
    );
    const { of, count } = components(graph);
    const sizes = new Int32Array(count);
    for (const component of of) sizes[component]++;
    const onCircles = indexes.filter((index) => sizes[of[index]] > 1);
    return onCircles.map((index) => {
      const { node } = placed[index];
      const way = (circleThrough(graph, index) ?? []).map((each) => placed[each].node.name).join(' → ');
      return { isFused: node.control === 'fuse-recv', problem: `${label(node)} waits for itself: ${way}` };
    });
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
