/** Small nodes that can start at the same time become one kernel, because the executor's work for a node would take longer than theirs:
 *
 *      recv ─▶ MatMul ─▶ Add ─▶ Tanh ─▶ send            recv ─▶ MatMul, Add, Tanh ─▶ send
 *
 *  Nodes belong together if they wait for the same values. So none waits for longer, all of them are dead or none, and no cycle comes
 *  about. Constants, variables and what the step is fed are there from its start. */
import { getOrMake } from '../../base/collections/lists.ts';
import { must } from '../../base/assert.ts';
import type { Frame, FrameTable } from '../structure/frames.ts';
import { Node, type Output } from '../structure/graph-node.ts';
import { exactCount } from '../structure/shape.ts';
import type { Value } from '../structure/value.ts';
import { checkOutputs, type Kernel, type KernelTable } from './kernel.ts';
import { plainOf, Resident } from './resident.ts';

/** Elements of a small tensor: all nodes of a kernel together must take little time. */
const elementsMax = 1024;
/** Values that a node of a composed kernel waits for. */
const sourcesMax = 64;

/** A node of the graph, or several as one. */
export interface Unit {
  readonly node: Node;
  readonly kernel: Kernel | undefined;
  readonly frame: Frame;
  /** Outputs of the graph's nodes that its outputs are. */
  readonly results: readonly Output[];
}

/** A failure of one of several nodes. */
export class NodeFailure extends Error {
  readonly node: Node;

  constructor(node: Node, cause: unknown) {
    super(node.name, { cause });
    this.node = node;
  }
}

/** @param nodes in an order in which inputs come first, but for back edges. @returns all of them, in this order. */
export function composeKernels(nodes: readonly Node[], kernels: KernelTable, frames: FrameTable): readonly Unit[] {
  const groups = groupsOf(nodes, kernels, frames);
  const outside = new Set<Output>();
  for (const node of nodes) for (const input of node.inputs) if (groups.get(input.node) !== groups.get(node)) outside.add(input);
  return nodes.flatMap((node): Unit[] => {
    const [group, frame] = [groups.get(node), frames.frameOf(node)];
    const kernel = node.control === 'kernel' ? kernels[node.op] : undefined;
    if (group === undefined) return [{ node, kernel, frame, results: node.outputs }];
    return node === group[0] ? [{ ...composed(group, kernels, outside), frame }] : [];
  });
}

/** Nodes that become one kernel, by each of them. */
function groupsOf(nodes: readonly Node[], kernels: KernelTable, frames: FrameTable): ReadonlyMap<Node, readonly Node[]> {
  const before = new Set(nodes.flatMap(({ controlInputs }) => controlInputs));
  const numbers = new Map<unknown, number>();
  const sourcesOf = new Map<Node, ReadonlySet<number>>();
  const groups = new Map<string, Node[]>();
  const there = new Set<Node>();
  for (const node of nodes) {
    if (isThere(node, kernels, there)) there.add(node);
    if (before.has(node) || !isSmall(node, kernels)) continue;
    const sources = new Set<number>();
    for (const input of node.inputs) {
      const behind = sourcesOf.get(input.node);
      if (behind !== undefined) for (const each of behind) sources.add(each);
      else if (!there.has(input.node)) sources.add(getOrMake(numbers, input, () => numbers.size));
    }
    if (sources.size > sourcesMax) continue;
    sourcesOf.set(node, sources);
    const frame = getOrMake(numbers, frames.frameOf(node), () => numbers.size);
    getOrMake(groups, [frame, ...[...sources].sort((a, b) => a - b)].join(), () => []).push(node);
  }
  const several = [...groups.values()].filter(({ length }) => length > 1);
  return new Map(several.flatMap((group) => group.map((node) => [node, group] as const)));
}

function isSmall({ op, control, controlInputs, inputs, outputs, definition }: Node, kernels: KernelTable): boolean {
  if (control !== 'kernel' || kernels[op]?.isSynchronous !== true || controlInputs.length > 0 || definition.isStateful === true)
    return false;
  return [...inputs, ...outputs].every(({ shape }) => (exactCount(shape) ?? Infinity) <= elementsMax);
}

/** Is its value there from the start of a step? @param there nodes before it of which that is so. */
function isThere({ op, control, controlInputs, inputs, outputs }: Node, kernels: KernelTable, there: ReadonlySet<Node>): boolean {
  if (control === 'argument') return true;
  if (controlInputs.length > 0 || inputs.some(({ node }) => !there.has(node))) return false;
  return kernels[op]?.passes === true || (inputs.length === 0 && outputs.some(({ isRef }) => isRef));
}

function composed(group: readonly Node[], kernels: KernelTable, outside: ReadonlySet<Output>): Omit<Unit, 'frame'> {
  const [{ name, device, op }] = group;
  const members = new Set(group);
  const outputs = group.flatMap((node) => node.outputs);
  const inputs = [...new Set(group.flatMap((node) => node.inputs))].filter((input) => !members.has(input.node));
  const results = outputs.filter((output) => outside.has(output));
  const definition = { name: op, inputs: [{ name: 'inputs', dtype: 'any', isList: true }], attributes: {}, infer: () => results };
  const node = new Node({ name, device, definition, inputs, controlInputs: [], attributes: {} }, results);
  return { node, kernel: composedKernel(group, kernels, inputs, results), results };
}

/** Values have places: first the inputs, then what each node gives. */
function composedKernel(group: readonly Node[], kernels: KernelTable, inputs: readonly Output[], results: readonly Output[]): Kernel {
  const places = new Map([...inputs, ...group.flatMap(({ outputs }) => outputs)].map((output, place) => [output, place]));
  const placeOf = (output: Output): number => must(places.get(output), () => `${output.name} has a place`);
  const steps = group.map((node) => ({ node, kernel: kernels[node.op], takes: node.inputs.map(placeOf), frees: [] as number[] }));
  const lastUses = new Map<Output, number[]>();
  for (const { node, frees } of steps) for (const each of [...node.outputs, ...node.inputs]) lastUses.set(each, frees);
  for (const output of [...inputs, ...results]) lastUses.delete(output);
  for (const [output, frees] of lastUses) frees.push(placeOf(output));
  const gives = results.map(placeOf);
  const run: Kernel = ({ inputs: given, ...step }) => {
    const values: (Value | undefined)[] = given.slice();
    let current = group[0];
    try {
      for (const { node, kernel, takes, frees } of steps) {
        current = node;
        const taken: Value[] = [];
        for (const place of takes) taken.push(kernel.takesResidents === true ? values[place]! : plainOf(values[place]!));
        const outputs = kernel({ node, inputs: taken, stepId: step.stepId, signal: step.signal, atEnd: step.atEnd });
        if (Array.isArray(outputs)) for (const output of outputs as readonly Value[]) values.push(output);
        checkOutputs(node, outputs, true);
        for (const place of frees) free(values, place);
      }
      return gives.map((place) => values[place] as Value);
    } catch (thrown) {
      for (let place = inputs.length; place < values.length; place++) free(values, place);
      throw new NodeFailure(current, thrown);
    }
  };
  return Object.assign(run, { takesResidents: true, bring: steps.find(({ kernel }) => kernel.bring)?.kernel.bring });
}

function free(values: (Value | undefined)[], place: number): void {
  const value = values[place];
  if (value instanceof Resident) value.dispose();
  values[place] = undefined;
}
