/** Functions of a GraphDef in the place of their calls: PartitionedCall as its nodes, If and While as the Switch, Merge, Enter and Exit
 *  that TensorFlow makes of them. What had the name of the call is an IdentityN of its results. */
import { textOf } from '../base/bytes.ts';
import { ShoalError } from '../base/errors.ts';
import { describeNode, nodeError } from '../graph/structure/graph-node.ts';
import type { AttrProto, FunctionProto, GraphProto, NodeProto } from './graph-def.ts';

/** Nodes that functions may become, and calls within calls. */
const [nodesMax, depthMax] = [2 ** 20, 64];

/** Outputs of operations that have several with names; those of all others are numbered. */
const outputNames: Readonly<Record<string, readonly string[]>> = {
  Switch: ['output_false', 'output_true'],
  Merge: ['output', 'value_index'],
  Unique: ['y', 'idx'],
  SoftmaxCrossEntropyWithLogits: ['loss', 'backprop'],
  SparseSoftmaxCrossEntropyWithLogits: ['loss', 'backprop'],
  FusedBatchNorm: ['y', 'batch_mean', 'batch_variance', 'reserve_space_1', 'reserve_space_2'],
  FusedBatchNormV2: ['y', 'batch_mean', 'batch_variance', 'reserve_space_1', 'reserve_space_2'],
  FusedBatchNormV3: ['y', 'batch_mean', 'batch_variance', 'reserve_space_1', 'reserve_space_2', 'reserve_space_3'],
};

const changesVariable = /^(Assign|Scatter|Apply|Resource(Scatter|Apply))/;

/** @throws ShoalError `usage` for functions that are not there, call themselves or do not fit their calls; `unsupported` for variables that
 *  a branch or a loop changes. */
export function inlined(graph: GraphProto): readonly NodeProto[] {
  const inliner = new Inliner(graph.library?.function ?? []);
  for (const node of graph.node) inliner.add(node);
  return inliner.nodes;
}

interface Body {
  readonly results: readonly string[];
  /** Control inputs that stand for all effects of the body. */
  readonly effects: readonly string[];
}

class Inliner {
  readonly nodes: NodeProto[] = [];
  readonly #functions: ReadonlyMap<string, FunctionProto>;
  /** The functions whose nodes are being added, the outermost first. */
  readonly #open: string[] = [];
  /** The node after which those of the innermost branch or loop run; undefined outside of branches and loops. */
  #pivot: string | undefined;

  constructor(functions: readonly FunctionProto[]) {
    this.#functions = new Map(functions.map((each) => [each.signature?.name ?? '', each]));
  }

  add(node: NodeProto): void {
    const { op } = node;
    if (op === 'PartitionedCall' || op === 'StatefulPartitionedCall') this.#call(node, this.#functionOf(node, 'f'));
    else if (op === 'If' || op === 'StatelessIf') this.#if(node);
    else if (op === 'While' || op === 'StatelessWhile') this.#while(node);
    else if (this.#functions.has(op)) this.#call(node, op);
    else this.#push(node);
  }

  #push(node: NodeProto): void {
    if (this.#pivot !== undefined && changesVariable.test(node.op))
      throw new ShoalError('unsupported', `${describeNode(node)} changes a variable in a branch or a loop; it cannot be imported`);
    if (this.nodes.push(node) > nodesMax) throw new ShoalError('usage', `functions of the GraphDef become more than ${nodesMax} nodes`);
  }

  #functionOf(node: NodeProto, attribute: string): string {
    return (Object.hasOwn(node.attr, attribute) ? node.attr[attribute].func?.name : undefined) ?? '';
  }

  #call(node: NodeProto, name: string): void {
    const { values, control } = inputsOf(node);
    const { results, effects } = this.#body(node, name, node.name, values, control);
    this.#end(node, [...results, ...effects, ...(results.length === 0 ? control : [])]);
  }

  #if(node: NodeProto): void {
    const { values, control } = inputsOf(node);
    const [condition = '', ...args] = values;
    const make = this.#maker(node);
    const ways = args.map((arg, k) => make(`Switch_${k}`, 'Switch', [arg, condition, ...control]));
    const pivot = make('pivot', 'Switch', [condition, condition, ...control]);
    const branch = (name: string, attribute: string, side: string): readonly string[] => {
      const start = make(`pivot_${name}`, 'Identity', [`${pivot}${side}`]);
      const way = ways.map((each) => `${each}${side}`);
      return this.#within(node, this.#functionOf(node, attribute), `${node.name}/${name}`, way, start);
    };
    const [whenTrue, whenFalse] = [branch('then', 'then_branch', ':1'), branch('else', 'else_branch', '')];
    if (whenTrue.length !== whenFalse.length)
      throw nodeError(node, `one branch gives ${whenTrue.length} results, the other ${whenFalse.length}`);
    this.#end(
      node,
      whenTrue.map((each, k) => make(`Merge_${k}`, 'Merge', [whenFalse[k], each])),
    );
  }

  #while(node: NodeProto): void {
    const { values, control } = inputsOf(node);
    if (values.length === 0) throw nodeError(node, 'a loop needs a variable');
    const make = this.#maker(node);
    const { parallel_iterations } = node.attr;
    const attr = { frame_name: { s: Buffer.from(node.name) }, ...(parallel_iterations !== undefined && { parallel_iterations }) };
    const merges = values.map((value, k) =>
      make(`Merge_${k}`, 'Merge', [make(`Enter_${k}`, 'Enter', [value, ...control], attr), `${node.name}/NextIteration_${k}`]),
    );
    const [condition = ''] = this.#within(node, this.#functionOf(node, 'cond'), `${node.name}/cond`, merges, merges[0]);
    const go = make('LoopCond', 'LoopCond', [condition]);
    const ways = merges.map((merge, k) => make(`Switch_${k}`, 'Switch', [merge, go]));
    const taken = ways.map((way, k) => make(`Identity_${k}`, 'Identity', [`${way}:1`]));
    const results = this.#within(node, this.#functionOf(node, 'body'), `${node.name}/body`, taken, taken[0]);
    if (results.length !== values.length) throw nodeError(node, `has ${values.length} variables, but its body gives ${results.length}`);
    results.forEach((result, k) => make(`NextIteration_${k}`, 'NextIteration', [result]));
    this.#end(
      node,
      ways.map((way, k) => make(`Exit_${k}`, 'Exit', [way])),
    );
  }

  /** @returns a function that adds a node of the call, and gives its name. */
  #maker(call: NodeProto): (name: string, op: string, input: readonly string[], attr?: NodeProto['attr']) => string {
    return (own, op, input, attr = {}) => {
      const name = `${call.name}/${own}`;
      this.#push({ name, op, input, attr, device: call.device });
      return name;
    };
  }

  #end({ name, device }: NodeProto, input: readonly string[]): void {
    this.#push({ name, op: 'IdentityN', input, attr: {}, device });
  }

  /** A body that runs only when a value does. */
  #within(call: NodeProto, name: string, prefix: string, args: readonly string[], start: string): readonly string[] {
    const outer = this.#pivot;
    this.#pivot = start;
    const { results } = this.#body(call, name, prefix, args, []);
    this.#pivot = outer;
    return results;
  }

  /** @param before control inputs of nodes that take no others' outputs. */
  #body(call: NodeProto, name: string, prefix: string, args: readonly string[], before: readonly string[]): Body {
    const found = this.#functions.get(name) ?? undefined;
    if (found === undefined) throw nodeError(call, `its function '${name}' is not there`);
    const { signature, nodeDef, ret, controlRet } = found;
    const [inputArgs, outputArgs] = [signature?.inputArg ?? [], signature?.outputArg ?? []];
    if (this.#open.includes(name) || this.#open.length >= depthMax)
      throw nodeError(call, `'${name}' calls itself, or is in ${depthMax} calls`);
    if (inputArgs.length !== args.length) throw nodeError(call, `'${name}' takes ${inputArgs.length} inputs, not ${args.length}`);
    const byArg = new Map(inputArgs.map((arg, k) => [arg.name, args[k]]));
    const byName = new Map(nodeDef.map((node) => [node.name, node]));
    /** Undefined: a control input that is an argument, which comes as a value anyway. */
    const outside = (input: string): string | undefined => {
      const [source, output = '0', index = '0'] = input.replace('^', '').split(':');
      const node = byName.get(source);
      if (input.startsWith('^')) return node === undefined ? undefined : `^${prefix}/${source}`;
      if (node === undefined) return byArg.get(source) ?? `${prefix}/${source}`;
      const names = Object.hasOwn(outputNames, node.op) ? outputNames[node.op] : [];
      const slot = /^\d+$/.test(output) ? Number(output) : Math.max(0, names.indexOf(output)) + Number(index);
      return `${prefix}/${source}:${slot}`;
    };
    const first = this.#pivot === undefined ? before : [...before, `^${this.#pivot}`];
    this.#open.push(name);
    for (const node of nodeDef) {
      const input = node.input.map(outside).filter((each) => each !== undefined);
      const isFirst = !node.input.some((each) => byName.has(each.replace('^', '').split(':')[0]));
      const attr = Object.hasOwn(node.attr, '_class') ? { ...node.attr, _class: companions(node.attr._class, prefix, byName) } : node.attr;
      this.add({
        ...node,
        name: `${prefix}/${node.name}`,
        original: node.original ?? node.name,
        input: isFirst ? [...input, ...first] : input,
        attr,
        device: node.device === '' ? call.device : node.device,
      });
    }
    this.#open.pop();
    const results = outputArgs.map((arg) => outside(Object.hasOwn(ret, arg.name) ? ret[arg.name] : '') ?? '');
    return { results, effects: Object.values(controlRet).map((each) => `^${prefix}/${each}`) };
  }
}

/** Nodes of the same function with which a node is colocated. */
function companions(given: AttrProto, prefix: string, byName: ReadonlyMap<string, NodeProto>): AttrProto {
  const names = (given.list?.s ?? []).map(textOf).filter((each) => byName.has(each.replace('loc:@', '')));
  const s = names.map((each) => Buffer.from(each.replace('loc:@', `loc:@${prefix}/`)));
  return { list: { s, i: [], type: [], shape: [] } };
}

/** Inputs that are values, and control inputs. */
export function inputsOf({ input }: NodeProto): { readonly values: readonly string[]; readonly control: readonly string[] } {
  return { values: input.filter((each) => !each.startsWith('^')), control: input.filter((each) => each.startsWith('^')) };
}
