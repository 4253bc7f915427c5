/** The part of a graph that one kind of step needs: the way back from its fetches, up to what it is fed. Fed outputs become arguments,
 *  fetches results, on the devices they were on. Any output can be fed, not only that of a placeholder. */
import { must } from '../../base/assert.ts';
import { ShoalError } from '../../base/errors.ts';
import { argumentDefinition, returnDefinition } from '../ops/transfer.ts';
import type { Placement } from '../placement/place.ts';
import { derivedNode } from '../structure/check-node.ts';
import type { Attributes, OpDefinition } from '../structure/definition.ts';
import { Graph } from '../structure/graph.ts';
import { describeNode, Node, type Output } from '../structure/graph-node.ts';

export interface StepSignature {
  readonly feeds: readonly Output[];
  readonly fetches: readonly Output[];
  /** Nodes that must run, whatever they give. */
  readonly targets: readonly Node[];
}

/** @returns the graph of such a step: `_Arg` k is feed k, `_Retval` k takes fetch k; every node is on its full device.
 *  @throws ShoalError `usage` when a placeholder is needed and not fed. */
export function prune(graph: Graph, placement: Placement, { feeds, fetches, targets }: StepSignature): Graph {
  const fed = new Set(feeds);
  const needed = neededNodes(fetches, targets, fed);
  const copies = new Map<Node, Node>();
  const sources = new Map<Output, Output>();
  const nodes: Node[] = [];
  const open: { readonly inputs: Output[]; readonly index: number; readonly source: Output }[] = [];
  const deviceOf = (node: Node): string => must(placement.get(node), () => `'${node.name}' is placed`).name;
  const addNew = (definition: OpDefinition, name: string, device: string, attributes: Attributes, inputs: readonly Output[] = []): Node => {
    const node = derivedNode(definition, { name, device, inputs, attributes });
    nodes.push(node);
    return node;
  };
  const copyOf = (source: Output): Output | undefined => sources.get(source) ?? copies.get(source.node)?.outputs[source.slot];

  feeds.forEach((feed, index) => {
    const attributes = { T: feed.dtype, shape: feed.shape, index };
    sources.set(feed, addNew(argumentDefinition, `_arg_${index}`, deviceOf(feed.node), attributes).outputs[0]);
  });
  for (const node of graph.nodes) {
    if (!needed.has(node)) continue;
    if (node.op === 'Placeholder') throw new ShoalError('usage', `${describeNode(node)} must be fed: a fetch of this step needs it`);
    const inputs: Output[] = [];
    node.inputs.forEach((source, index) => {
      const copy = copyOf(source);
      if (copy === undefined) open.push({ inputs, index, source });
      else inputs[index] = copy;
    });
    const controlInputs = node.controlInputs.flatMap((source) => copies.get(source) ?? []);
    const { name, definition, attributes } = node;
    const copy = new Node({ name, definition, inputs, controlInputs, attributes, device: deviceOf(node) }, node.outputs);
    copies.set(node, copy);
    nodes.push(copy);
  }
  for (const { inputs, index, source } of open) inputs[index] = must(copyOf(source), () => `'${source.name}' is needed`);
  fetches.forEach((fetch, index) => {
    const source = must(copyOf(fetch), () => `'${fetch.name}' is needed`);
    addNew(returnDefinition, `_retval_${index}`, source.node.device, { T: fetch.dtype, index }, [source]);
  });
  return new Graph(nodes);
}

function neededNodes(fetches: readonly Output[], targets: readonly Node[], fed: ReadonlySet<Output>): ReadonlySet<Node> {
  const needed = new Set<Node>();
  const queue: Node[] = [];
  const need = (node: Node): void => {
    if (needed.has(node)) return;
    needed.add(node);
    queue.push(node);
  };
  for (const fetch of fetches) if (!fed.has(fetch)) need(fetch.node);
  for (const target of targets) need(target);
  for (let node = queue.pop(); node !== undefined; node = queue.pop()) {
    for (const source of node.inputs) if (!fed.has(source)) need(source.node);
    // A placeholder that is fed has run, as far as others wait for it.
    for (const source of node.controlInputs) if (!source.outputs.some((output) => fed.has(output))) need(source);
  }
  return needed;
}
