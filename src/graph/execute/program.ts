/** The graph of one device, prepared for execution: who gets each output, how many inputs each node waits for, and which nodes share
 *  a frame. Made once per graph, used by all its steps. */
import { getOrMake } from '../../base/collections/lists.ts';
import { must } from '../../base/assert.ts';
import { checkDevice } from '../../memory/device/device-tensor.ts';
import type { GpuDevice } from '../../memory/device/gpu.ts';
import { frameTable, type Frame } from '../structure/frames.ts';
import { fitsDevice } from './device-values.ts';
import type { Graph } from '../structure/graph.ts';
import { describeNode, type Node, type Output } from '../structure/graph-node.ts';
import { composeKernels } from './composed-kernels.ts';
import type { Kernel, KernelTable } from './kernel.ts';

export interface ProgramNode {
  readonly node: Node;
  /** The node's kernel; undefined: the executor moves its values itself, or there is none. */
  readonly kernel: Kernel | undefined;
  /** The device that takes its inputs; of a receive, the one that takes what comes. */
  readonly device: GpuDevice | undefined;
  readonly isMerge: boolean;
  /** Its place in the state of its frame. */
  readonly position: number;
  /** The place of its first input in the values of its frame; the others follow. */
  readonly firstInput: number;
  readonly frame: FrameProgram;
  /** The consumers, by output slot. */
  readonly consumers: readonly (readonly Consumer[])[];
  readonly controlConsumers: readonly ProgramNode[];
}

export interface Consumer {
  readonly target: ProgramNode;
  /** The place of its input in the values of its frame. */
  readonly place: number;
}

export interface FrameProgram {
  readonly frame: Frame;
  readonly nodes: readonly ProgramNode[];
  /** Values that the nodes of the frame take. */
  readonly inputCount: number;
  /** Inputs that a node waits for, by position; control inputs only for a Merge. */
  readonly pending: Int32Array;
  /** Memory of iterations that are over, for the next ones of any step. */
  readonly spare: FrameMemory[];
}

/** State of a frame's nodes, by position. */
export interface FrameMemory {
  /** Inputs that have not come. */
  readonly pending: Int32Array;
  /** Dead inputs that have come. */
  readonly dead: Int32Array;
  /** Merges that have their value. */
  readonly merged: Uint8Array;
}

export interface Program {
  readonly root: FrameProgram;
  /** The frame behind an Enter. */
  readonly entered: ReadonlyMap<ProgramNode, FrameProgram>;
}

interface NodeDraft extends ProgramNode {
  device: GpuDevice | undefined;
  readonly consumers: Consumer[][];
  readonly controlConsumers: NodeDraft[];
}

interface FrameDraft extends Omit<FrameProgram, 'pending'> {
  readonly nodes: NodeDraft[];
  inputCount: number;
  pending: Int32Array;
}

export function createProgram({ nodes }: Graph, kernels: KernelTable = {}): Program {
  const frames = frameTable(nodes);
  const drafts = new Map<Frame, FrameDraft>();
  const draftOf = (frame: Frame): FrameDraft =>
    getOrMake(drafts, frame, () => ({ frame, nodes: [], inputCount: 0, pending: new Int32Array(0), spare: [] }));
  const root = draftOf(frames.root);
  const programNodes = new Map<Node, NodeDraft>();
  /** The unit that gives an output of the graph, and the number of the output there. */
  const origins = new Map<Output, readonly [NodeDraft, number]>();
  for (const { node, kernel, frame: of, results } of composeKernels(nodes, kernels, frames)) {
    const frame = draftOf(of);
    const draft: NodeDraft = {
      node,
      kernel,
      device: deviceOf(kernel, node),
      isMerge: node.control === 'merge',
      position: frame.nodes.length,
      firstInput: frame.inputCount,
      frame,
      consumers: node.outputs.map(() => []),
      controlConsumers: [],
    };
    frame.nodes.push(draft);
    frame.inputCount += node.inputs.length;
    programNodes.set(node, draft);
    results.forEach((output, slot) => origins.set(output, [draft, slot]));
  }
  const draftNode = (node: Node): NodeDraft => must(programNodes.get(node), () => `'${node.name}' is in the graph`);
  for (const [node, draft] of programNodes) {
    node.inputs.forEach((output, index) => {
      const [source, slot] = must(origins.get(output), () => `'${output.name}' is in the graph`);
      source.consumers[slot].push({ target: draft, place: draft.firstInput + index });
    });
    for (const source of node.controlInputs) draftNode(source).controlConsumers.push(draft);
  }
  for (const draft of programNodes.values()) if (draft.node.control === 'recv') draft.device = deviceOfConsumers(draft);
  for (const draft of drafts.values()) {
    const dataInputs = ({ control, inputs }: Node): number => (control === 'merge' ? 0 : inputs.length);
    draft.pending = Int32Array.from(draft.nodes, ({ node }) => node.controlInputs.length + dataInputs(node));
  }
  const entered = new Map<ProgramNode, FrameProgram>();
  for (const [node, draft] of programNodes) if (node.control === 'enter') entered.set(draft, draftOf(frames.outputFrameOf(node)));
  return { root, entered };
}

/** @throws ShoalError `usage` for what is no device. */
function deviceOf(kernel: Kernel | undefined, node: Node): GpuDevice | undefined {
  const device = kernel?.deviceOf?.(node);
  if (device !== undefined) checkDevice(`${describeNode(node)} on ${node.device}`, device);
  return device;
}

/** The device of all that take what the receive gives. */
function deviceOfConsumers({ node, consumers }: NodeDraft): GpuDevice | undefined {
  const [{ dtype, shape }] = node.outputs;
  const devices = new Set(consumers[0].map(({ target }) => target.device));
  return devices.size === 1 && fitsDevice(dtype, shape) ? [...devices][0] : undefined;
}
