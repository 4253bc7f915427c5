/** One graph per device. Where an edge would cross, the one graph gets a Send, the other a Recv or a slot of a FuseRecv.
 *
 *      a ──▶ b          a ──▶ Send  ┄┄┄▶  Recv ──▶ b                       a value
 *      a ┄^┄ b          a ┄^┄ Const ──▶ Send  ┄┄┄▶  Recv ──▶ Identity ┄^┄ b    only that a has run, or is dead
 *
 *  In a loop a receive runs after the node that begins the iteration on its device (spread-loops.ts). */
import { getOrMake } from '../../base/collections/lists.ts';
import { assert, must } from '../../base/assert.ts';
import { anyObject, anything, checkFields, flag, optionTable } from '../../base/schema.ts';
import { constantDefinition, identity } from '../ops/array.ts';
import { fuseRecvDefinition, recvDefinition, sendDefinition } from '../ops/transfer.ts';
import { fuseReceives, type FuseGroup, type FuseOptions, type UnfusedReceive } from '../passes/fuse-recv.ts';
import type { Device, DeviceSet } from '../placement/devices.ts';
import { emptyTensor, planTransfers, type Transfer, type TransferTable } from '../placement/device-transfers.ts';
import { derivedNode } from '../structure/check-node.ts';
import type { Attributes, OpDefinition } from '../structure/definition.ts';
import { Graph } from '../structure/graph.ts';
import { nodeError, Node, type Output } from '../structure/graph-node.ts';
import { deadlockProblems } from './deadlock.ts';
import { spreadLoops, type SpreadGraph } from './spread-loops.ts';

export interface PartitionOptions {
  readonly devices: DeviceSet;
  /** Receive what is sent at about the same time by one request. Default false. */
  readonly doFuseRecv?: boolean;
  readonly fuse?: FuseOptions;
  /** Prove that the result has no deadlock; as much work again as partitioning. Default true. */
  readonly check?: boolean;
}

const partitionOptionKeys = optionTable<PartitionOptions>({ devices: anything, doFuseRecv: flag, fuse: anyObject, check: flag });

/** The part of a graph that one device runs. */
export interface Partition {
  /** The device of the partition. */
  readonly device: Device;
  /** Its nodes, with a Send or a Recv for every edge that leaves or enters it. */
  readonly graph: Graph;
}

/** A graph cut by device: see `Session.partitions` and `drawGraph`. */
export interface PartitionedGraph {
  /** Partitions, in the order in which their devices appear in the graph. */
  readonly partitions: readonly Partition[];
  /** Every value that goes from one device to another. */
  readonly transfers: readonly Transfer[];
  /** Groups of transfers that one FuseRecv receives together; none without `doFuseRecv`. */
  readonly groups: readonly FuseGroup[];
  /** Receives that `doFuseRecv` left alone, each with the reason. */
  readonly unfused: readonly UnfusedReceive[];
}

/** @param graph placed: the device of every node is the full name of one of the devices.
 *  @throws ShoalError `usage` for a device that does not exist, `unsupported` for a loop on several devices without one LoopCond. */
export function partitionGraph(placed: Graph, options: PartitionOptions): PartitionedGraph {
  checkFields('partitionGraph', options, partitionOptionKeys);
  const { devices, doFuseRecv = false, fuse, check = true } = options;
  const { graph, beginOf } = spreadLoops(placed);
  const transfers = planTransfers(graph);
  const { groups, unfused } = doFuseRecv ? fuseReceives(graph, transfers.all, fuse) : { groups: [], unfused: [] };
  const emitter = new Emitter({ devices, transfers, groups, beginOf });
  for (const node of graph.nodes) emitter.add(node);
  const partitioned = { partitions: emitter.finish(), transfers: transfers.all, groups, unfused };
  if (check) {
    const problems = deadlockProblems(partitioned);
    assert(problems.length === 0, () => `the partitioned graph is broken: ${problems[0]}`);
  }
  return partitioned;
}

interface PartitionDraft {
  readonly device: Device;
  readonly nodes: Node[];
  readonly names: Set<string>;
}

interface EmitterOptions extends Pick<SpreadGraph, 'beginOf'> {
  readonly devices: DeviceSet;
  readonly transfers: TransferTable;
  readonly groups: readonly FuseGroup[];
}

class Emitter {
  readonly #devices: DeviceSet;
  readonly #transfers: TransferTable;
  readonly #beginOf: SpreadGraph['beginOf'];
  readonly #groupOf = new Map<Transfer, FuseGroup>();
  readonly #drafts = new Map<string, PartitionDraft>();
  readonly #copies = new Map<Node, Node>();
  /** The output that has the value of a transfer. */
  readonly #received = new Map<Transfer, Output>();
  /** Inputs that come back from nodes which are not there yet. */
  readonly #open: { readonly inputs: Output[]; readonly index: number; readonly source: Output }[] = [];

  constructor({ devices, transfers, groups, beginOf }: EmitterOptions) {
    this.#devices = devices;
    this.#transfers = transfers;
    this.#beginOf = beginOf;
    for (const group of groups) for (const transfer of group) this.#groupOf.set(transfer, group);
  }

  /** A copy of `node`, behind what it receives and before what it sends. */
  add(node: Node): void {
    const draft = this.#draft(node);
    const inputs: Output[] = [];
    node.inputs.forEach((source, index) => {
      const transfer = this.#crossing(source.node, source.slot, node);
      const copy = transfer === undefined ? this.#copies.get(source.node)?.outputs[source.slot] : this.#receive(transfer);
      if (copy === undefined) this.#open.push({ inputs, index, source });
      else inputs[index] = copy;
    });
    const controlInputs = node.controlInputs.map((source) => {
      const transfer = this.#crossing(source, undefined, node);
      return transfer === undefined ? must(this.#copies.get(source), () => `'${source.name}' comes first`) : this.#receive(transfer).node;
    });
    const { name, definition, attributes, device } = node;
    const copy = new Node({ name, definition, inputs, controlInputs, attributes, device }, node.outputs);
    draft.names.add(name);
    draft.nodes.push(copy);
    this.#copies.set(node, copy);
    for (const transfer of this.#transfers.from(node)) this.#send(transfer, copy, draft);
  }

  finish(): Partition[] {
    for (const { inputs, index, source } of this.#open) {
      inputs[index] = must(this.#copies.get(source.node), () => `'${source.node.name}' was added`).outputs[source.slot];
    }
    return [...this.#drafts.values()].map(({ device, nodes }) => ({ device, graph: new Graph(nodes) }));
  }

  #crossing(source: Node, slot: number | undefined, node: Node): Transfer | undefined {
    return source.device === node.device ? undefined : this.#transfers.find(source, slot, node.device);
  }

  #draft(node: Node): PartitionDraft {
    return getOrMake(this.#drafts, node.device, () => {
      const device = this.#devices.find(node.device);
      if (device === undefined) throw nodeError(node, `device '${node.device}' does not exist; ${this.#devices.suggestion(node.device)}`);
      return { device, nodes: [], names: new Set() };
    });
  }

  #send(transfer: Transfer, source: Node, draft: PartitionDraft): void {
    const { id, slot, dtype } = transfer;
    const value = slot === undefined ? this.#dummy(transfer, source, draft) : source.outputs[slot];
    const attributes = { T: dtype, tensor_name: transfer.tensorName, ...this.#ends(transfer) };
    emit(draft, sendDefinition, { name: `${source.name}/_send_${id}`, inputs: [value], attributes });
  }

  #dummy({ id }: Transfer, source: Node, draft: PartitionDraft): Output {
    const attributes = { value: { ...emptyTensor, data: new Float32Array(0) } };
    return emit(draft, constantDefinition, { name: `${source.name}/_const_${id}`, controlInputs: [source], attributes }).outputs[0];
  }

  #receive(transfer: Transfer): Output {
    const group = this.#groupOf.get(transfer) ?? [transfer];
    if (!this.#received.has(transfer)) this.#addReceive(group);
    return must(this.#received.get(transfer), () => `${transfer.tensorName} is received`);
  }

  #addReceive(group: FuseGroup): void {
    const [first] = group;
    const draft = this.#draft(first.consumers[0]);
    const begin = this.#copies.get(this.#beginOf(first.frame, first.recvDevice) as Node);
    const controlInputs = begin === undefined ? [] : [begin];
    const [definition, name, attributes] =
      group.length === 1
        ? [recvDefinition, `${first.source.name}/_recv_${first.id}`, this.#recvAttributes(first)]
        : [fuseRecvDefinition, `_fuse_recv_${first.id}`, this.#fuseAttributes(group)];
    const node = emit(draft, definition, { name, controlInputs, attributes });
    group.forEach((transfer, slot) => {
      const value = node.outputs[slot];
      // A node is dead when its input is; a receive is not dead when a slot of it is.
      const name = `${transfer.source.name}/_control_${transfer.id}`;
      const output = transfer.slot === undefined ? emit(draft, identity.definition, { name, inputs: [value] }).outputs[0] : value;
      this.#received.set(transfer, output);
    });
  }

  #recvAttributes(transfer: Transfer): Attributes {
    const { dtype, shape, tensorName } = transfer;
    return { tensor_type: dtype, shape, tensor_name: tensorName, ...this.#ends(transfer) };
  }

  #fuseAttributes(group: FuseGroup): Attributes {
    const ends = group.map((transfer) => this.#ends(transfer));
    return {
      tensor_type: group.map(({ dtype }) => dtype),
      shapes: group.map(({ shape }) => shape),
      tensor_name: group.map(({ tensorName }) => tensorName),
      send_device: ends.map(({ send_device }) => send_device),
      send_device_incarnation: ends.map(({ send_device_incarnation }) => send_device_incarnation),
      recv_device: ends.map(({ recv_device }) => recv_device),
    };
  }

  #ends({ sendDevice, recvDevice }: Transfer): {
    readonly send_device: string;
    readonly send_device_incarnation: bigint;
    readonly recv_device: string;
  } {
    const { incarnation } = must(this.#devices.find(sendDevice), () => `${sendDevice} exists`);
    return { send_device: sendDevice, send_device_incarnation: incarnation, recv_device: recvDevice };
  }
}

interface EmittedParts {
  readonly name: string;
  readonly inputs?: readonly Output[];
  readonly controlInputs?: readonly Node[];
  readonly attributes?: Attributes;
}

/** A node that was not in the graph. */
function emit(
  draft: PartitionDraft,
  definition: OpDefinition,
  { name: wanted, inputs = [], controlInputs = [], attributes = {} }: EmittedParts,
): Node {
  let name = wanted;
  for (let number = 1; draft.names.has(name); number++) name = `${wanted}_${number}`;
  draft.names.add(name);
  const node = derivedNode(definition, { name, device: draft.device.name, inputs, controlInputs, attributes });
  draft.nodes.push(node);
  return node;
}
