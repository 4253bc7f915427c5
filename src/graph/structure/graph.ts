/** A finished dataflow graph: nodes in an order in which every node follows its inputs, but for the back edges of loops. */
import { ShoalError } from '../../base/errors.ts';
import { nearestName } from '../../base/settings/nearest-name.ts';
import type { Node, Output } from './graph-node.ts';

/** A finished dataflow graph; made by `GraphBuilder.finish` and the importers. */
export class Graph {
  /** Every node after its inputs, but for the back edges of loops. */
  readonly nodes: readonly Node[];
  readonly #byName: ReadonlyMap<string, Node>;

  constructor(nodes: readonly Node[]) {
    this.nodes = nodes;
    this.#byName = new Map(nodes.map((node) => [node.name, node]));
  }

  /** @throws ShoalError `usage` when there is no such node. */
  node(name: string): Node {
    const found = this.#byName.get(name);
    if (found !== undefined) return found;
    const nearest = nearestName(name, [...this.#byName.keys()]);
    throw new ShoalError('usage', `the graph has no node '${name}'${nearest === undefined ? '' : `; did you mean '${nearest}'?`}`);
  }

  /** `x:1` is output 1 of `x`, `x` is its output 0. @throws ShoalError `usage` when there is none. */
  output(name: string): Output {
    const colon = /^(.*):(\d{1,6})$/.exec(name);
    const node = this.node(colon === null ? name : colon[1]);
    const slot = colon === null ? 0 : Number(colon[2]);
    if (slot < node.outputs.length) return node.outputs[slot];
    throw new ShoalError('usage', `node '${node.name}' has ${node.outputs.length} outputs; '${name}' is not one of them`);
  }

  /** Is this very node part of this graph? */
  has(node: Node): boolean {
    return this.#byName.get(node.name) === node;
  }
}
