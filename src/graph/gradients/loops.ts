/** The gradient of a loop: a loop the other way. The first one keeps its variables of every iteration in a *history*; the other takes them
 *  back, makes the body again on them, and goes on with its gradients. */
import { ShoalError } from '../../base/errors.ts';
import { constant, identity, zerosLike } from '../ops/array.ts';
import { enter, exit, merge, nextIteration, switchOn, whileLoop } from '../ops/control-flow.ts';
import { historyPop, historyPush } from '../ops/gradient.ts';
import { add, less } from '../ops/math.ts';
import type { BuiltLoop, GraphBuilder } from '../structure/builder.ts';
import { floatDTypes, type FloatDType } from '../structure/graph-dtype.ts';
import { describeNode, type Output } from '../structure/graph-node.ts';
import type { Floats } from './rules.ts';

/** Dense gradients of xs, zeros among them. */
type Differentiate = (ys: readonly Floats[], xs: readonly Floats[], gradYs: readonly Floats[]) => readonly Floats[];

/** @returns gradients of the loop's inputs, by those of its outputs. */
export function loopGradients(
  g: GraphBuilder,
  loop: BuiltLoop,
  gradients: readonly (Floats | undefined)[],
  differentiate: Differentiate,
): (Floats | undefined)[] {
  const count = loop.outputs.length;
  const [variables, invariants] = [loop.inputs.slice(0, count), loop.inputs.slice(count)];
  const changing = variables.flatMap((each, k) => (isFloat(each) ? [k] : []));
  const constants = invariants.flatMap((each, k) => (isFloat(each) ? [k] : []));
  const last = changing.map((k) => gradients[k] ?? zerosLike(g, loop.outputs[k] as Floats));
  const sums = constants.map((k) => zerosLike(g, invariants[k] as Floats));
  const body = ([history, ...state]: readonly Output[], inner: readonly Output[]): Output[] => {
    const [below, ...values] = g.node(historyPop, [history], {
      output_types: loop.taken.map(({ dtype }) => dtype),
      output_shapes: loop.taken.map(({ shape }) => shape),
    }).outputs;
    const results = repeated(g, loop, values, inner);
    const xs = [...changing.map((k) => values[k]), ...constants.map((k) => inner[k])] as readonly Floats[];
    const [ys, gradYs] = [changing.map((k) => results[k]), state.slice(0, changing.length)] as readonly Floats[][];
    const made = differentiate(ys, xs, gradYs);
    const added = constants.map((_, k) => add(g, state[changing.length + k] as Floats, made[changing.length + k]));
    return [below, ...made.slice(0, changing.length), ...added];
  };
  const zero = (): Output<'int32'> => constant(g, { dtype: 'int32', shape: [], data: [0] });
  const [, ...found] = whileLoop(
    g,
    [historyOf(g, loop, zero()), ...last, ...sums],
    { cond: ([history]) => less(g, zero(), history as Output<'int32'>), body },
    { name: `${loop.name.replaceAll('/', '_')}_back`, invariants },
  ) as readonly Floats[];
  const byInput = new Map([...changing, ...constants.map((k) => count + k)].map((input, k) => [input, found[k]]));
  return loop.inputs.map((_, input) => byInput.get(input));
}

/** A further variable of the loop, which collects the others. */
function historyOf(g: GraphBuilder, { taken, go, frame }: BuiltLoop, empty: Output<'int32'>): Output {
  const [start] = merge(g, [enter(g, empty, frame)]);
  const [whenFalse, whenTrue] = switchOn(g, start, go);
  g.connect(start, nextIteration(g, historyPush(g, identity(g, whenTrue), taken)));
  return exit(g, whenFalse);
}

/** @throws ShoalError `unsupported` when the body would not do the same again. */
function repeated(g: GraphBuilder, loop: BuiltLoop, variables: readonly Output[], invariants: readonly Output[]): readonly Output[] {
  const before = g.nodes.length;
  const results = loop.body(variables, invariants);
  const other = g.nodes.slice(before).find(({ op, definition }) => definition.isStateful === true && op !== 'Call');
  if (other === undefined) return results;
  const message = `gradients: ${describeNode(other)} in the loop '${loop.name}' does something else when it is run again`;
  throw new ShoalError('unsupported', message);
}

function isFloat({ dtype }: Output): boolean {
  return floatDTypes.includes(dtype as FloatDType);
}
