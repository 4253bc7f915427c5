/** The values that must cross from one device to another: one transfer per tensor and destination device, whoever uses it there, and one
 *  per node that nodes of another device run after. */
import { getOrMake } from '../../base/collections/lists.ts';
import { frameTable, type Frame } from '../structure/frames.ts';
import { elementBytes, type GraphDType } from '../structure/graph-dtype.ts';
import type { Graph } from '../structure/graph.ts';
import type { Node } from '../structure/graph-node.ts';
import { knownCount, type Shape } from '../structure/shape.ts';

export interface Transfer {
  /** Counts from 0, in the order of the first consumers. */
  readonly id: number;
  readonly source: Node;
  /** Undefined: nothing but that the node has run; an empty tensor travels. */
  readonly slot: number | undefined;
  readonly dtype: GraphDType;
  readonly shape: Shape;
  /** The loop that it is in; one transfer is made in each of its iterations. */
  readonly frame: Frame;
  readonly sendDevice: string;
  readonly recvDevice: string;
  /** The name in keys: `edge_3_tower/h1`. */
  readonly tensorName: string;
  /** Transfers in the order of the graph. */
  readonly consumers: readonly Node[];
}

/** Bytes at least: unknown dimensions count 1, a string 1. */
export function knownBytes({ dtype, shape }: Transfer): number {
  return knownCount(shape) * (elementBytes(dtype) ?? 1);
}

/** Transfers by what they carry. */
export class TransferTable {
  readonly all: readonly Transfer[];
  /** Transfers by source, then by `entryOf`. */
  readonly #table: ReadonlyMap<Node, ReadonlyMap<string, Transfer>>;

  constructor(all: readonly Transfer[], table: ReadonlyMap<Node, ReadonlyMap<string, Transfer>>) {
    this.all = all;
    this.#table = table;
  }

  /** The transfer to a device; undefined: source and consumer are on one device. */
  find(source: Node, slot: number | undefined, recvDevice: string): Transfer | undefined {
    return this.#table.get(source)?.get(entryOf(slot, recvDevice));
  }

  /** All that leave `source`, in order. */
  from(source: Node): Iterable<Transfer> {
    return this.#table.get(source)?.values() ?? [];
  }
}

function entryOf(slot: number | undefined, recvDevice: string): string {
  return `${slot ?? '^'} ${recvDevice}`;
}

/** @param graph placed: the device of every node is a full name. */
export function planTransfers(graph: Graph): TransferTable {
  const frames = frameTable(graph.nodes);
  const all: (Transfer & { readonly consumers: Node[] })[] = [];
  const drafts = new Map<Node, Map<string, (typeof all)[number]>>();
  for (const node of graph.nodes) {
    for (const { node: source, slot } of node.inputs) if (source.device !== node.device) cross(source, slot, node);
    for (const source of node.controlInputs) if (source.device !== node.device) cross(source, undefined, node);
  }
  return new TransferTable(all, drafts);

  function cross(source: Node, slot: number | undefined, node: Node): void {
    const own = getOrMake(drafts, source, () => new Map<string, (typeof all)[number]>());
    const draft = getOrMake(own, entryOf(slot, node.device), () => open(source, slot, node.device));
    if (draft.consumers.at(-1) !== node) draft.consumers.push(node);
  }

  function open(source: Node, slot: number | undefined, recvDevice: string): (typeof all)[number] {
    const id = all.length;
    const carried = slot === undefined ? emptyTensor : source.outputs[slot];
    const { dtype, shape } = carried;
    const tensorName = `edge_${id}_${source.name}`;
    const frame = frames.outputFrameOf(source);
    const draft = { id, source, slot, dtype, shape, frame, sendDevice: source.device, recvDevice, tensorName, consumers: [] };
    all.push(draft);
    return draft;
  }
}

/** The value that travels for a control edge. */
export const emptyTensor = { dtype: 'float32', shape: [0] } as const;
