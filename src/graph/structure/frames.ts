/** Loops in a graph. An Enter takes a value into a frame, an Exit takes one out; what is between runs once per iteration.
 *
 *      outer frame     Enter ─▶ Merge ─▶ Switch ─▶ Exit          outer frame
 *                                 ▲        │
 *      inner frame                └ NextIteration ◀─ body
 *
 *  A node belongs to the frame it runs in: an Enter to the outer one, an Exit to the inner one. */
import { getOrMake } from '../../base/collections/lists.ts';
import type { ShoalError } from '../../base/errors.ts';
import { nodeError, type Node } from './graph-node.ts';

export interface Frame {
  readonly name: string;
  /** Undefined for the root, in which everything outside loops runs. */
  readonly parent: Frame | undefined;
  /** Iterations that may run at a time. */
  readonly parallelIterations: number;
  /** Frames in the order of the nodes. */
  readonly enters: readonly Node[];
}

interface OpenFrame extends Frame {
  readonly parent: OpenFrame | undefined;
  readonly enters: Node[];
}

export interface FrameTable {
  readonly root: Frame;
  /** The frame a node runs in. */
  frameOf(node: Node): Frame;
  /** The frame its outputs are in. */
  outputFrameOf(node: Node): Frame;
}

/** @param nodes in an order in which inputs come first, but for back edges; all inputs of them are among them.
 *  @throws ShoalError `usage` when a node mixes values of several frames, or leaves a frame it is not in. */
export function frameTable(nodes: readonly Node[]): FrameTable {
  const root: OpenFrame = { name: '', parent: undefined, parallelIterations: 1, enters: [] };
  const frames = new Map<string, OpenFrame>();
  const runsIn = new Map<Node, OpenFrame>();
  const gives = new Map<Node, OpenFrame>();
  const later: { readonly node: Node; readonly source: Node }[] = [];

  for (const node of nodes) {
    const frame = inputFrame(node);
    runsIn.set(node, frame);
    gives.set(node, outputFrame(node, frame));
  }
  for (const { node, source } of later) {
    if (gives.get(source) !== runsIn.get(node)) throw mixed(node, source);
  }
  return { root, frameOf: (node) => runsIn.get(node) ?? root, outputFrameOf: (node) => gives.get(node) ?? root };

  function inputFrame(node: Node): OpenFrame {
    let frame: OpenFrame | undefined;
    const join = (source: Node): void => {
      const own = gives.get(source);
      if (own === undefined) later.push({ node, source });
      else if (frame === undefined) frame = own;
      else if (frame !== own) throw mixed(node, source);
    };
    for (const { node: source } of node.inputs) join(source);
    for (const source of node.controlInputs) join(source);
    return frame ?? root;
  }

  function outputFrame(node: Node, frame: OpenFrame): OpenFrame {
    if (node.control === 'exit') {
      if (frame.parent === undefined) throw nodeError(node, 'is in no loop that it could leave');
      return frame.parent;
    }
    if (node.control === 'next-iteration' && frame.parent === undefined) throw nodeError(node, 'is in no loop');
    return node.control === 'enter' ? enter(node, frame) : frame;
  }

  function enter(node: Node, parent: OpenFrame): OpenFrame {
    const name = node.attributes.frame_name as string;
    const parallelIterations = node.attributes.parallel_iterations as number;
    const frame = getOrMake(frames, name, () => ({ name, parent, parallelIterations, enters: [] }));
    if (frame.parent !== parent) throw nodeError(node, `frame '${name}' is entered from '${parent.name}' and from '${frame.parent?.name}'`);
    if (frame.parallelIterations !== parallelIterations)
      throw nodeError(node, `the Enters of frame '${name}' disagree about parallel_iterations`);
    frame.enters.push(node);
    return frame;
  }

  function mixed(node: Node, source: Node): ShoalError {
    return nodeError(node, `its inputs are in different frames; take '${source.name}' into the loop by an Enter, or out of it by an Exit`);
  }
}

export interface IterationOrder {
  readonly indexes: ReadonlyMap<Node, number>;
  /** Source and target of each edge, alternating; loops are numbered behind the nodes. */
  readonly edges: number[];
  /** Nodes and loops. */
  readonly count: number;
}

/** The order of nodes in one iteration, whichever loop it is of: all edges but those that go back, and one from all that enters a loop to
 *  all that leaves it. A loop keeps its first iterations until all has entered, and what is dead leaves it last.
 *  @param parts the nodes of a graph, or of its partitions. */
export function iterationOrder(parts: readonly (readonly Node[])[]): IterationOrder {
  const indexes = new Map(parts.flat().map((node, index) => [node, index]));
  const loops = new Map<string, number>();
  const loopOf = ({ name }: Frame): number => getOrMake(loops, name, () => indexes.size + loops.size);
  const edges: number[] = [];
  for (const nodes of parts) {
    const frames = frameTable(nodes);
    for (const node of nodes) {
      const index = indexes.get(node) ?? 0;
      for (const { node: source } of node.inputs) if (source.control !== 'next-iteration') edges.push(indexes.get(source) ?? 0, index);
      for (const source of node.controlInputs) edges.push(indexes.get(source) ?? 0, index);
      if (node.control === 'enter') edges.push(index, loopOf(frames.outputFrameOf(node)));
      if (node.control === 'exit') edges.push(loopOf(frames.frameOf(node)), index);
    }
  }
  return { indexes, edges, count: indexes.size + loops.size };
}
