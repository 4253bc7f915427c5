/** Branches and loops. A value that goes the way not taken is *dead*: what it reaches does not run, up to a Merge that takes what is
 *  alive. `cond` and `whileLoop` build both the way TensorFlow does. */
import { checkedBuilder, checkOutputs } from '../structure/check-arguments.ts';
import { anyList, anyNumber, anyText, callback, checkArgument, checkFields, checkOptions, optionTable } from '../../base/schema.ts';
import { ShoalError } from '../../base/errors.ts';
import type { GraphBuilder, NodeOptions } from '../structure/builder.ts';
import type { OpDefinition } from '../structure/definition.ts';
import type { GraphDType } from '../structure/graph-dtype.ts';
import type { Node, Output } from '../structure/graph-node.ts';
import { commonShape } from '../structure/shape.ts';
import { identity } from './array.ts';
import { define, anyType, inputsOf, likeFirst, op, type Unary } from './op.ts';

type SwitchCall = <D extends GraphDType>(
  g: GraphBuilder,
  data: Output<D>,
  pred: Output<'bool'>,
  options?: NodeOptions,
) => readonly [whenFalse: Output<D>, whenTrue: Output<D>];

/** `data` to output 1 when `pred` is true, to output 0 when it is false; the other is dead. */
export const switchOn = op<SwitchCall>({
  name: 'Switch',
  inputs: inputsOf({ data: 'T', pred: 'bool' }),
  attributes: anyType,
  infer: (context) => {
    context.ranked(1, 0);
    return [...likeFirst(context), ...likeFirst(context)];
  },
  control: 'switch',
});

type MergeCall = <D extends GraphDType>(
  g: GraphBuilder,
  inputs: readonly Output<D>[],
  options?: NodeOptions,
) => readonly [output: Output<D>, index: Output<'int32'>];

/** The first input that arrives alive, and which it was; dead when all are. */
export const merge = op<MergeCall>({
  name: 'Merge',
  inputs: [{ name: 'inputs', dtype: 'T', isList: true, least: 1 }],
  attributes: anyType,
  infer: ({ inputs }) => [
    { dtype: inputs[0].dtype, shape: inputs.map(({ shape }) => shape).reduce(commonShape) },
    { dtype: 'int32', shape: [] },
  ],
  control: 'merge',
});

export const enter = op<
  Unary<GraphDType, { readonly frame_name: string; readonly is_constant?: boolean; readonly parallel_iterations?: number }>
>({
  name: 'Enter',
  inputs: [{ name: 'data', dtype: 'T' }],
  attributes: {
    ...anyType,
    frame_name: { kind: 'string' },
    is_constant: { kind: 'bool', default: false },
    parallel_iterations: { kind: 'int', default: 10, least: 1 },
  },
  infer: likeFirst,
  control: 'enter',
});

function passing(name: string, control: 'exit' | 'next-iteration'): OpDefinition {
  return { name, inputs: [{ name: 'data', dtype: 'T' }], attributes: anyType, infer: likeFirst, control };
}

export const exit = op<Unary<GraphDType>>(passing('Exit', 'exit'));
export const nextIteration = op<Unary<GraphDType>>(passing('NextIteration', 'next-iteration'));

/** Marks the condition that decides about the next iteration. */
export const loopCond = op<Unary<'bool'>>(define('LoopCond', { input: 'bool' }, {}, likeFirst));

/** A node without a value: runs when its control inputs have, so that one fetch runs them all. */
export const noOp = op<(g: GraphBuilder, options?: NodeOptions) => Node>(define('NoOp', {}, {}, () => []));

/** Runs, alive, when its control inputs are done, dead ones among them. */
export const controlTrigger = op<(g: GraphBuilder, options?: NodeOptions) => Node>({
  name: 'ControlTrigger',
  inputs: [],
  attributes: {},
  infer: () => [],
  control: 'control-trigger',
});

type Branch = (inputs: readonly Output[]) => readonly Output[];

const branchKeys = optionTable<{ readonly then: Branch; readonly else: Branch }>({ then: callback, else: callback });
const condOptionKeys = optionTable<{ readonly name?: string }>({ name: anyText });
const loopKeys = optionTable<WhileLoop>({ cond: callback, body: callback });
const loopOptionKeys = optionTable<WhileLoopOptions>({ name: anyText, parallelIterations: anyNumber, invariants: anyList });

/** One of two branches. Each gets the values it uses through its own end of a Switch, so it runs only when it is taken.
 *  @param inputs what the branches use; they see them as `inputs` of theirs.
 *  @returns the branches' results, merged.
 *  @throws ShoalError `usage` when the branches give different numbers of results. */
export function cond(
  g: GraphBuilder,
  pred: Output<'bool'>,
  inputs: readonly Output[],
  branches: { readonly then: Branch; readonly else: Branch },
  options: { readonly name?: string } = {},
): readonly Output[] {
  checkedBuilder('cond', g);
  checkOutputs('cond: inputs', inputs);
  checkFields('cond: branches', branches, branchKeys);
  for (const branch of [branches.then, branches.else]) checkArgument('cond: a branch', branch, callback);
  checkOptions('cond', options, condOptionKeys);
  return g.withScope(options.name ?? 'cond', (scope) => {
    const ways = inputs.map((input) => switchOn(g, input, pred));
    const pivots = switchOn(g, pred, pred, { name: 'pivot' });
    const build = (name: string, side: 0 | 1, branch: Branch): readonly Output[] =>
      g.withBranch(pred, side, () =>
        g.withScope(name, () => {
          const pivot = identity(g, pivots[side], { name: 'pivot' });
          const results = g.withSourcesAfter([pivot], () => branch(ways.map((way) => way[side])));
          // A result that the branch did not compute must be dead all the same when the branch is not taken.
          return results.map((value) => identity(g, value, { controlInputs: [pivot] }));
        }),
      );
    const whenTrue = build('then', 1, branches.then);
    const whenFalse = build('else', 0, branches.else);
    if (whenTrue.length !== whenFalse.length) {
      throw new ShoalError('usage', `cond '${scope}': one branch gives ${whenTrue.length} results, the other ${whenFalse.length}`);
    }
    return whenTrue.map((value, index) => merge(g, [value, whenFalse[index]])[0]);
  });
}

/** A loop: its condition and its body, called once each to build the nodes. */
export interface WhileLoop {
  /** Whether there is another iteration: a bool scalar of the variables. */
  readonly cond: (variables: readonly Output[], invariants: readonly Output[]) => Output<'bool'>;
  /** The variables of the next iteration: as many, of the same dtypes. */
  readonly body: (variables: readonly Output[], invariants: readonly Output[]) => readonly Output[];
}

/** Options of a loop. */
export interface WhileLoopOptions {
  /** Scope of its nodes, and name of its frame. Default `while`. */
  readonly name?: string;
  /** Default 10. */
  readonly parallelIterations?: number;
  /** Values the loop uses and does not change. */
  readonly invariants?: readonly Output[];
}

/** `while (cond(vars)) vars = body(vars)`; @returns the variables after the loop.
 *  @throws ShoalError `usage` for a body that does not give every variable anew. */
export function whileLoop(
  g: GraphBuilder,
  variables: readonly Output[],
  loop: WhileLoop,
  options: WhileLoopOptions = {},
): readonly Output[] {
  checkedBuilder('whileLoop', g);
  checkOutputs('whileLoop: variables', variables);
  checkFields('whileLoop', loop, loopKeys);
  for (const part of [loop.cond, loop.body]) checkArgument('whileLoop: cond and body', part, callback);
  checkOptions('whileLoop', options, loopOptionKeys);
  return g.withScope(options.name ?? 'while', (scope) => {
    if (variables.length === 0) throw new ShoalError('usage', `whileLoop '${scope}': needs a variable, or it would never end`);
    const attributes = { frame_name: scope, parallel_iterations: options.parallelIterations ?? 10 };
    const enters = variables.map((value) => enter(g, value, attributes));
    const invariants = (options.invariants ?? []).map((value) => enter(g, value, { ...attributes, is_constant: true }));
    const merges = enters.map((value) => merge(g, [value])[0]);
    const goesOn = g.withSourcesAfter([merges[0]], () => loop.cond(merges, invariants));
    const go = loopCond(g, goesOn);
    const ways = merges.map((value) => switchOn(g, value, go));
    const taken = ways.map(([, whenTrue]) => identity(g, whenTrue));
    const results = g.withSourcesAfter([taken[0]], () => loop.body(taken, invariants));
    if (results.length !== variables.length) {
      throw new ShoalError('usage', `whileLoop '${scope}': has ${variables.length} variables, but its body gives ${results.length}`);
    }
    results.forEach((value, index) => g.connect(merges[index], nextIteration(g, value, { controlInputs: [taken[index]] })));
    const exits = ways.map(([whenFalse]) => exit(g, whenFalse));
    const inputs = [...variables, ...(options.invariants ?? [])];
    const built = { name: scope, inputs, outputs: exits, taken, go, frame: attributes, body: loop.body };
    for (const { node } of exits) g.loops.set(node, built);
    return exits;
  });
}
