/** Builds graphs: every node is checked when it is added, so that a mistake is found at the line that makes it. */
import { ShoalError } from '../../base/errors.ts';
import { anyList, anyText, anything, checkOptions, optionTable } from '../../base/schema.ts';
import { checkNode } from './check-node.ts';
import type { Attribute, OpDefinition } from './definition.ts';
import { formatDeviceName, parseDeviceName, type DeviceName } from './device-name.ts';
import { frameTable } from './frames.ts';
import { Graph } from './graph.ts';
import { describeNode, Node, nodeError, type Output } from './graph-node.ts';
import { formatShape, mergeShapes } from './shape.ts';

/** Options of every operation beside its attributes. */
export interface NodeOptions {
  /** Default: the operation's name; made unique by a number. */
  readonly name?: string;
  /** Where the node runs, all or part of a device name; what it leaves out comes from the scope. */
  readonly device?: string;
  /** Nodes that must have run before. */
  readonly controlInputs?: readonly (Node | Output)[];
  /** The node runs on the device of this one, whatever the scope says. */
  readonly colocateWith?: Node | Output;
}

/** Where a node is, and what it comes after. */
export const placeShapes = { device: anyText, controlInputs: anyList, colocateWith: anything };
export const nodeOptionKeys = optionTable<NodeOptions>({ name: anyText, ...placeShapes });

/** A variable, and the node that gives it its first value. */
export interface MadeVariable {
  readonly variable: Output;
  readonly initializer: Node;
  /** Optimisers change it unless they are told which variables to change. */
  readonly isTrainable: boolean;
}

/** One way of a `cond`. */
export interface Branch {
  readonly pred: Output<'bool'>;
  /** The end of a Switch by `pred` from which values come here. */
  readonly side: 0 | 1;
  /** The branch that the `cond` is in. */
  readonly parent: Branch | undefined;
}

/** A loop of `whileLoop`: like a node, with what goes in and what comes out. */
export interface BuiltLoop {
  readonly name: string;
  /** Its variables, and behind them its invariants, before the loop. */
  readonly inputs: readonly Output[];
  /** Its variables after the loop. */
  readonly outputs: readonly Output[];
  /** Its variables in an iteration, and whether there is one. */
  readonly taken: readonly Output[];
  readonly go: Output<'bool'>;
  readonly frame: { readonly frame_name: string; readonly parallel_iterations: number };
  readonly body: (variables: readonly Output[], invariants: readonly Output[]) => readonly Output[];
}

interface Scope {
  readonly prefix: string;
  readonly device: DeviceName;
  readonly controlInputs: readonly Node[];
  /** Control inputs of nodes that would have no input. */
  readonly beforeSources: readonly Node[];
  readonly branch?: Branch;
}

/** Builds a graph node by node; mistakes throw ShoalError `usage` at the call that makes them, naming the node.
 *
 *      const g = new GraphBuilder();
 *      const x = placeholder(g, 'float32', [null, 4]);
 *      const w = variable(g, 'float32', [4, 2], { name: 'w', device: '/job:ps' });
 *      const y = relu(g, matMul(g, x, w));
 *      const graph = g.finish(); */
export class GraphBuilder {
  /** Variables that `getVariable` has made, in their order. */
  readonly variables: MadeVariable[] = [];
  /** Loops by the nodes that their values leave them by. */
  readonly loops = new Map<Node, BuiltLoop>();
  readonly #branches = new Map<Node, Branch>();
  readonly #nodes: Node[] = [];
  readonly #own = new Set<Node>();
  readonly #names = new Map<string, number>();
  /** Inputs of merges that may still get their back edge. */
  readonly #open = new Map<Node, Output[]>();
  #scope: Scope = { prefix: '', device: {}, controlInputs: [], beforeSources: [] };
  #finished = false;

  /** Nodes that have been added so far. */
  get nodes(): readonly Node[] {
    return [...this.#nodes];
  }

  /** Adds a node. Operations have functions of their own that call this; see `src/graph/ops`.
   *  @throws ShoalError `usage` that names the node, for inputs, attributes and options that do not fit. */
  node(
    definition: OpDefinition,
    inputs: readonly Output[],
    attributes: Readonly<Record<string, Attribute | undefined>> = {},
    options: NodeOptions = {},
  ): Node {
    checkOptions(definition.name, options, nodeOptionKeys);
    const wanted = options.name ?? definition.name;
    const label = describeNode({ op: definition.name, name: `${this.#scope.prefix}${wanted}` });
    this.#checkOpen(label);
    if (options.name !== undefined) checkName(label, options.name);
    const ownInputs = inputs.map((input, index) => this.#checkOutput(input, `${label}: input ${index}`));
    const explicit = this.#controlInputs(options.controlInputs ?? [], label);
    const controlInputs = inputs.length + explicit.length === 0 ? this.#scope.beforeSources : explicit;
    const colocateWith = options.colocateWith === undefined ? undefined : this.#checkNode(options.colocateWith, `${label}: colocateWith`);
    // A place beside another node, or beside the variable that it changes, counts more than the scope.
    const isColocated = colocateWith !== undefined || definition.inputs.some(({ isRef }) => isRef);
    const device = formatDeviceName({ ...(isColocated ? {} : this.#scope.device), ...parseDeviceName(options.device ?? '') });
    const checked = checkNode(definition, `${this.#scope.prefix}${wanted}`, ownInputs, attributes);
    const name = this.#uniqueName(`${this.#scope.prefix}${wanted}`);
    const parts = { name, definition, inputs: ownInputs, controlInputs, attributes: checked.attributes, device, colocateWith };
    const node = new Node(parts, checked.outputs);
    this.#nodes.push(node);
    this.#own.add(node);
    if (this.#scope.branch !== undefined) this.#branches.set(node, this.#scope.branch);
    if (node.control === 'merge') this.#open.set(node, ownInputs);
    return node;
  }

  /** Nodes made by `build` have names that begin with `name/`; `build` is told the whole name, made unique. */
  withScope<T>(name: string, build: (scope: string) => T): T {
    checkName('withScope', name);
    const scope = this.#uniqueName(`${this.#scope.prefix}${name}`);
    return this.#within({ ...this.#scope, prefix: `${scope}/` }, () => build(scope));
  }

  /** Nodes made by `build` run on this device, unless they say more or something else themselves, or are colocated with another node or
   *  with the variable that they change. */
  withDevice<T>(device: string, build: () => T): T {
    return this.#within({ ...this.#scope, device: { ...this.#scope.device, ...parseDeviceName(device) } }, build);
  }

  /** Nodes made by `build` run after these. */
  withControlInputs<T>(controlInputs: readonly (Node | Output)[], build: () => T): T {
    const all = this.#controlInputs(controlInputs, 'withControlInputs');
    return this.#within({ ...this.#scope, controlInputs: all }, build);
  }

  /** Nodes made by `build` that have no inputs at all run after these: constants in the body of a loop, and in a branch. */
  withSourcesAfter<T>(controlInputs: readonly (Node | Output)[], build: () => T): T {
    const before = controlInputs.map((each, index) => this.#checkNode(each, `withSourcesAfter: control input ${index}`));
    return this.#within({ ...this.#scope, beforeSources: before }, build);
  }

  /** Nodes made by `build` are on this way of a `cond`. */
  withBranch<T>(pred: Output<'bool'>, side: 0 | 1, build: () => T): T {
    return this.#within({ ...this.#scope, branch: { pred, side, parent: this.#scope.branch } }, build);
  }

  /** The innermost branch that a node was made in. */
  branchOf(node: Node): Branch | undefined {
    return this.#branches.get(node);
  }

  /** The only edge that may go back: from a NextIteration to the Merge at which its loop begins. */
  connect(merge: Output, next: Output): void {
    this.#checkOpen('connect');
    const inputs = this.#open.get(this.#checkNode(merge, 'connect: the merge'));
    const source = this.#checkOutput(next, 'connect: the next iteration');
    if (inputs === undefined) throw nodeError(merge.node, 'only a Merge takes the back edge of a loop');
    if (source.node.control !== 'next-iteration')
      throw nodeError(merge.node, `only a NextIteration goes back, not ${describeNode(source.node)}`);
    if (source.dtype !== merge.dtype) throw nodeError(merge.node, `is ${merge.dtype}, but '${source.name}' brings back ${source.dtype}`);
    if (mergeShapes(source.shape, merge.node.outputs[0].shape) === undefined) {
      const [begins, comes] = [formatShape(merge.node.outputs[0].shape), formatShape(source.shape)];
      throw nodeError(merge.node, `begins with shape ${begins}, but '${source.name}' brings back ${comes}`);
    }
    inputs.push(source);
  }

  /** The graph; the builder takes no more nodes. @throws ShoalError `usage` when loops are not well formed. */
  finish(): Graph {
    this.#checkOpen('finish');
    const graph = new Graph(this.#nodes);
    frameTable(graph.nodes);
    this.#finished = true;
    return graph;
  }

  #within<T>(scope: Scope, build: () => T): T {
    const before = this.#scope;
    this.#scope = scope;
    try {
      return build();
    } finally {
      this.#scope = before;
    }
  }

  #checkOpen(what: string): void {
    if (this.#finished) throw new ShoalError('usage', `${what}: the graph is finished; start a new builder`);
  }

  #controlInputs(given: readonly (Node | Output)[], label: string): Node[] {
    const nodes = given.map((each, index) => this.#checkNode(each, `${label}: control input ${index}`));
    return [...new Set([...this.#scope.controlInputs, ...nodes])];
  }

  #checkOutput(given: Output, role: string): Output {
    if (this.#own.has(given?.node) && given.node.outputs[given.slot] === given) return given;
    throw new ShoalError('usage', `${role} is not an output of a node of this graph`);
  }

  #checkNode(given: Node | Output, role: string): Node {
    const node = given instanceof Node ? given : given?.node;
    if (this.#own.has(node)) return node;
    throw new ShoalError('usage', `${role} is not a node of this graph`);
  }

  #uniqueName(wanted: string): string {
    const used = this.#names.get(wanted);
    if (used === undefined) {
      this.#names.set(wanted, 0);
      return wanted;
    }
    for (let number = used + 1; ; number++) {
      const name = `${wanted}_${number}`;
      if (this.#names.has(name)) continue;
      this.#names.set(wanted, number);
      this.#names.set(name, 0);
      return name;
    }
  }
}

/** @throws ShoalError `usage` for names that keys, messages or other programs could not hold. */
export function checkName(label: string, name: string): void {
  if (/^[A-Za-z0-9._][A-Za-z0-9._\-/]{0,999}$/.test(name)) return;
  throw new ShoalError('usage', `${label}: '${name}' is no name: letters, digits and . _ - / only, at most 1000, and no - or / first`);
}
