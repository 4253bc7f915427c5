/** Loops on several devices. Each device that takes part gets a *control loop*, which begins the iterations there. It has no variable: it
 *  follows the condition, which goes to all of these devices in every iteration (Yu et al., "Dynamic control flow in large-scale machine
 *  learning", 2018).
 *
 *      Const ──▶ Enter ──▶ Merge ──▶ Switch ──▶ NextIteration ──▶ Merge, once more
 *                            ┊         ▲
 *                            ┊         LoopCond, from its device
 *                            └┄▶ all receives of the iteration on this device
 *
 *  The receives of an iteration run also when the condition is false: then all that the body sends is dead. What an Enter or a
 *  NextIteration gives is there in one iteration, not in each, so it must not cross: such a node runs on the devices that use it. */
import { must } from '../../base/assert.ts';
import { getOrMake } from '../../base/collections/lists.ts';
import { ShoalError } from '../../base/errors.ts';
import { constantDefinition } from '../ops/array.ts';
import { enter, merge, nextIteration, switchOn } from '../ops/control-flow.ts';
import { emptyTensor } from '../placement/device-transfers.ts';
import { derivedNode } from '../structure/check-node.ts';
import type { Attributes, OpDefinition } from '../structure/definition.ts';
import { frameTable, type Frame, type FrameTable } from '../structure/frames.ts';
import { Graph } from '../structure/graph.ts';
import { Node, type Output } from '../structure/graph-node.ts';

export interface SpreadGraph {
  readonly graph: Graph;
  /** The node of a control loop after which the receives of an iteration run; undefined outside loops. */
  readonly beginOf: (frame: Frame, device: string) => Node | undefined;
}

/** @param graph placed: the device of every node is a full name.
 *  @throws ShoalError `unsupported` for a loop on several devices without one LoopCond. */
export function spreadLoops(graph: Graph): SpreadGraph {
  if (!hasSpread(devicesByFrame(graph.nodes, frameTable(graph.nodes)))) return { graph, beginOf: () => undefined };
  const nodes = withMovedGates(graph.nodes);
  const frames = frameTable(nodes);
  const devices = devicesByFrame(nodes, frames);
  const numbers = new Map([...devices.keys()].map((frame, number) => [frame, number]));
  const [first, last]: Node[][] = [[], []];
  const begins = new Map<string, Node>();
  const begin = (frame: Frame, device: string): Node =>
    getOrMake(begins, entryOf(frame, device), () => {
      const add = (list: Node[], definition: OpDefinition, inputs: readonly Output[], attributes?: Attributes): Node => {
        const name = `_loop_${numbers.get(frame)}/${definition.name}`;
        const node = derivedNode(definition, { name, device, inputs, attributes });
        list.push(node);
        return node;
      };
      const { name, parallelIterations, parent } = frame;
      const start =
        parent?.parent === undefined
          ? add(first, constantDefinition, [], { value: { ...emptyTensor, data: new Float32Array(0) } })
          : begin(parent, device);
      const attributes = { frame_name: name, parallel_iterations: parallelIterations };
      const inputs = [...add(first, enter.definition, start.outputs.slice(0, 1), attributes).outputs];
      const merged = add(first, merge.definition, inputs);
      const ways = add(last, switchOn.definition, [merged.outputs[0], conditionOf(frame, nodes, frames)]);
      inputs.push(...add(last, nextIteration.definition, [ways.outputs[1]]).outputs);
      return merged;
    });
  for (const [frame, names] of devices) if (names.size > 1) for (const device of names) begin(frame, device);
  return { graph: new Graph([...first, ...nodes, ...last]), beginOf: (frame, device) => begins.get(entryOf(frame, device)) };
}

function entryOf({ name }: Frame, device: string): string {
  return `${device} ${name}`;
}

type DevicesByFrame = ReadonlyMap<Frame, ReadonlySet<string>>;

/** Devices that take part in a loop, or in one within it. */
function devicesByFrame(nodes: readonly Node[], frames: FrameTable): DevicesByFrame {
  const devices = new Map<Frame, Set<string>>();
  for (const node of nodes) {
    const inner = node.control === 'exit' ? frames.frameOf(node) : frames.outputFrameOf(node);
    for (let frame = inner; frame.parent !== undefined; frame = frame.parent)
      getOrMake(devices, frame, () => new Set<string>()).add(node.device);
  }
  return devices;
}

function hasSpread(devices: DevicesByFrame): boolean {
  return [...devices.values()].some(({ size }) => size > 1);
}

function conditionOf(frame: Frame, nodes: readonly Node[], frames: FrameTable): Output {
  const found = nodes.filter((node) => node.op === 'LoopCond' && frames.frameOf(node) === frame);
  if (found.length === 1) return found[0].outputs[0];
  const message = `the loop '${frame.name}' is on several devices and has ${found.length} LoopConds; it needs one, or must be on one device`;
  throw new ShoalError('unsupported', message);
}

function isGate({ control }: Node): boolean {
  return control === 'enter' || control === 'next-iteration';
}

/** The same graph, with every Enter and NextIteration on the devices of its consumers, once on each. */
function withMovedGates(nodes: readonly Node[]): Node[] {
  const wanted = new Map<Node, Set<string>>();
  const homesOf = (node: Node): Iterable<string> => (isGate(node) && wanted.get(node)) || [node.device];
  const want = (node: Node): void => {
    for (const source of [...node.inputs.map((input) => input.node), ...node.controlInputs]) {
      if (isGate(source)) for (const device of homesOf(node)) getOrMake(wanted, source, () => new Set<string>()).add(device);
    }
  };
  for (const node of nodes) if (!isGate(node)) want(node);
  for (const node of nodes.toReversed()) if (isGate(node)) want(node);

  const copies = new Map<Node, Map<string, Node>>();
  const copyOf = (source: Node, device: string): Node | undefined => {
    const made = copies.get(source);
    return made?.get(device) ?? made?.values().next().value;
  };
  const closings: (() => void)[] = [];
  for (const node of nodes) {
    const made = getOrMake(copies, node, () => new Map<string, Node>());
    for (const device of homesOf(node)) {
      const existing = (source: Node): Node => must(copyOf(source, device), () => `'${source.name}' comes first`);
      const inputs: Output[] = [];
      node.inputs.forEach((source, index) => {
        const connect = (): unknown => (inputs[index] = existing(source.node).outputs[source.slot]);
        if (copyOf(source.node, device) === undefined) closings.push(connect);
        else connect();
      });
      const { name, definition, attributes } = node;
      const parts = { name, definition, inputs, controlInputs: node.controlInputs.map(existing), attributes, device };
      made.set(device, new Node(parts, node.outputs));
    }
  }
  for (const close of closings) close();
  return [...copies.values()].flatMap((made) => [...made.values()]);
}
