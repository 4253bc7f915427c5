/** Where the boxes of a drawn graph are: the wave of a node gives its column, its device the lane, and within a lane nodes of one wave are
 *  below each other. */
import { groupBy } from '../../base/collections/lists.ts';
import { keysOf } from '../../graph/partition/keys.ts';
import type { PartitionedGraph } from '../../graph/partition/partition-graph.ts';
import { digraph, levels } from '../../graph/structure/digraph.ts';
import { describeNode, type Node } from '../../graph/structure/graph-node.ts';

export interface Box {
  readonly label: string;
  readonly detail: string;
  readonly kind: 'kernel' | 'send' | 'recv' | 'fuse-recv' | 'control' | 'scope';
  readonly device: string;
  readonly wave: number;
  /** Within its lane. */
  readonly row: number;
}

export interface DrawnEdge {
  readonly from: Box;
  readonly to: Box;
  readonly kind: 'data' | 'control' | 'transfer';
}

export interface Layout {
  readonly boxes: readonly Box[];
  readonly edges: readonly DrawnEdge[];
  /** Nodes, drawn or collapsed. */
  readonly nodes: number;
  readonly waves: number;
  /** Rows by device; and those of the last. */
  readonly rows: ReadonlyMap<string, number>;
  readonly bottom: number;
}

interface IndexEdge {
  readonly from: number;
  readonly to: number;
  readonly kind: DrawnEdge['kind'];
}

export function layoutOf({ partitions }: PartitionedGraph, boxesMax: number): Layout {
  const nodes = partitions.flatMap(({ graph }) => graph.nodes);
  const edges = edgesOf(nodes);
  const wave = levels(
    digraph(
      nodes.length,
      edges.flatMap(({ from, to }) => [from, to]),
    ),
  );
  const keys = boxKeys(nodes, boxesMax);
  const boxes = new Map<string, Box>();
  const filled = new Map<string, number>();
  const rows = new Map<string, number>();
  for (const [key, indexes] of groupBy(nodes.keys(), (index) => keys[index])) {
    const node = nodes[indexes[0]];
    const first = Math.min(...indexes.map((index) => wave[index]));
    const cell = `${node.device} ${first}`;
    const row = filled.get(cell) ?? 0;
    filled.set(cell, row + 1);
    rows.set(node.device, Math.max(rows.get(node.device) ?? 0, row + 1));
    boxes.set(key, { ...(indexes.length === 1 ? single(node) : scope(key, indexes.length)), device: node.device, wave: first, row });
  }
  const drawn = new Map<string, DrawnEdge>();
  for (const { from, to, kind } of edges) {
    const [a, b] = [boxes.get(keys[from]), boxes.get(keys[to])];
    if (a !== undefined && b !== undefined && a !== b) drawn.set(`${keys[from]} ${keys[to]} ${kind}`, { from: a, to: b, kind });
  }
  const waves = 1 + Math.max(0, ...[...boxes.values()].map((box) => box.wave));
  const bottom = rows.get(partitions.at(-1)?.device.name ?? '') ?? 0;
  return { boxes: [...boxes.values()], edges: [...drawn.values()], nodes: nodes.length, waves, rows, bottom };
}

function edgesOf(nodes: readonly Node[]): IndexEdge[] {
  const indexes = new Map(nodes.map((node, index) => [node, index]));
  const senders = new Map(
    nodes.flatMap((node, index) => (node.control === 'send' ? keysOf(node).map((key) => [key, index] as const) : [])),
  );
  const edges: IndexEdge[] = [];
  const add = (from: number | undefined, to: number, kind: DrawnEdge['kind']): void => {
    if (from !== undefined) edges.push({ from, to, kind });
  };
  nodes.forEach((node, index) => {
    for (const input of node.inputs) add(indexes.get(input.node), index, 'data');
    for (const source of node.controlInputs) add(indexes.get(source), index, 'control');
    if (node.control !== 'send') for (const key of keysOf(node)) add(senders.get(key), index, 'transfer');
  });
  return edges;
}

/** The box that each node is drawn as: its own, or that of its scope, as deep as there is room. */
function boxKeys(nodes: readonly Node[], boxesMax: number): string[] {
  const own = nodes.map(({ device, name }) => `${device} ${name}`);
  if (nodes.length <= boxesMax) return own;
  for (let depth = 8; depth > 0; depth--) {
    const keys = nodes.map(({ device, name }) => `${device} ${name.split('/').slice(0, depth).join('/')}`);
    if (new Set(keys).size <= boxesMax) return keys;
  }
  // Many names without scopes: those that differ by their numbers only are one.
  const keys = nodes.map(({ device, name }) => `${device} ${name.split('/')[0].replaceAll(/\d+/g, '#')}`);
  return new Set(keys).size <= boxesMax ? keys : nodes.map(({ device, op }) => `${device} ${op}`);
}

function single(node: Node): Pick<Box, 'label' | 'detail' | 'kind'> {
  const { control } = node;
  const isDrawn = control === 'kernel' || control === 'send' || control === 'recv' || control === 'fuse-recv';
  const kind = isDrawn ? control : 'control';
  const names = node.attributes.tensor_name;
  const fused = control === 'fuse-recv' && Array.isArray(names) ? `: ${names.join(', ')}` : '';
  return { label: node.name, detail: `${describeNode(node)}${fused}`, kind };
}

function scope(key: string, count: number): Pick<Box, 'label' | 'detail' | 'kind'> {
  const name = key.slice(key.indexOf(' ') + 1);
  return { label: `${name} (${count})`, detail: `${name}: ${count} nodes`, kind: 'scope' };
}
