/** Symbolic gradients, as TensorFlow's `tf.gradients`: nodes that compute d(Σ ys)/dx are added to the graph. What an operation
 *  contributes is a rule (rules.ts). The gradient of a table that is read by Gather is *indexed slices*: rows, and which they are. */
import { pushTo } from '../../base/collections/lists.ts';
import { checkedBuilder, checkOutputs } from '../structure/check-arguments.ts';
import { ShoalError } from '../../base/errors.ts';
import { anyList, anyText, checkOptions, flag, optionTable } from '../../base/schema.ts';
import { addN } from '../ops/math.ts';
import { concat, constant, reshape, zerosLike } from '../ops/array.ts';
import { merge, switchOn } from '../ops/control-flow.ts';
import { joinElements } from '../ops/embedding.ts';
import { broadcastLike, slicesToDense } from '../ops/gradient.ts';
import type { Branch, BuiltLoop, GraphBuilder } from '../structure/builder.ts';
import { floatDTypes, type FloatDType, type IndexDType } from '../structure/graph-dtype.ts';
import { describeNode, Node, requestedDevice, type Output } from '../structure/graph-node.ts';
import { loopGradients } from './loops.ts';
import { gradientRules, type Floats, type GradientRule } from './rules.ts';

/** The gradient of a table: row `indices[k]` has `values[k]`; a row may be there several times and then has the sum. */
export class IndexedSlices {
  /** The rows of the gradient, `[n, ...rest of the table's shape]`. */
  readonly values: Floats;
  /** The row of the table that each is, `[n]`; a row may be there several times. */
  readonly indices: Output<IndexDType>;
  /** The table that they are rows of. */
  readonly of: Floats;

  constructor(values: Floats, indices: Output<IndexDType>, of: Floats) {
    this.values = values;
    this.indices = indices;
    this.of = of;
  }
}

/** The gradient for one of the `xs`; undefined: `ys` do not depend on it. */
export type Gradient = Floats | IndexedSlices | undefined;

/** Options of `gradients`. */
export interface GradientsOptions {
  /** Scope of the new nodes. Default: `gradients`. */
  readonly name?: string;
  /** True: the gradient of a node is computed where the node is. Default: wherever the nodes are made to be. */
  readonly colocate?: boolean;
  /** d(loss)/d(ys), of the shapes of ys. Default: ones. */
  readonly gradYs?: readonly Floats[];
}

const gradientsOptionKeys = optionTable<GradientsOptions>({ name: anyText, colocate: flag, gradYs: anyList });

/** @returns for each of xs the sum over ys of dy/dx.
 *  @throws ShoalError `unsupported` that names the node whose operation has no gradient. */
export function gradients(
  g: GraphBuilder,
  ys: Output | readonly Output[],
  xs: readonly Output[],
  options: GradientsOptions = {},
): Gradient[] {
  checkOptions('gradients', options, gradientsOptionKeys);
  const { name = 'gradients', colocate = false, gradYs } = options;
  const targets = (Array.isArray(ys) ? ys : [ys]) as readonly Output[];
  checkedBuilder('gradients', g);
  checkOutputs('gradients: ys', targets);
  checkOutputs('gradients: xs', xs);
  for (const each of [...targets, ...xs]) {
    if (!floatDTypes.includes(each.dtype as FloatDType))
      throw new ShoalError('usage', `gradients: '${each.name}' is ${each.dtype}; only floating-point values have gradients`);
  }
  if (gradYs !== undefined && gradYs.length !== targets.length)
    throw new ShoalError('usage', `gradients: ${gradYs.length} gradYs for ${targets.length} ys`);
  return g.withScope(name, () => new Backpropagation(g, colocate).run(targets as readonly Floats[], xs as readonly Floats[], gradYs));
}

class Backpropagation {
  readonly #g: GraphBuilder;
  readonly #colocate: boolean;
  /** The gradients that have come for each output so far. */
  readonly #partial = new Map<Output, (Floats | IndexedSlices)[]>();

  constructor(g: GraphBuilder, colocate: boolean) {
    this.#g = g;
    this.#colocate = colocate;
  }

  run(ys: readonly Floats[], xs: readonly Floats[], gradYs: readonly Floats[] | undefined): Gradient[] {
    ys.forEach((y, k) => pushTo(this.#partial, y, gradYs?.[k] ?? ones(this.#g, y)));
    const stops = new Set<Output>(xs);
    for (const unit of betweenOf(this.#g, ys, xs)) this.#propagate(unit, stops);
    return xs.map((x) => this.#total(x));
  }

  #propagate(unit: Unit, stops: ReadonlySet<Output>): void {
    if (unit.inputs.length === 0 || !unit.outputs.some((output) => this.#partial.has(output))) return;
    const g = this.#g;
    const { node } = unit.outputs[0];
    g.withScope(`${unit.name.replaceAll('/', '_')}_grad`, () => {
      const incoming = unit.outputs.map((output) => this.#dense(output, stops));
      const make = (): void =>
        this.#gradientsOf(unit, incoming).forEach((gradient, index) => {
          if (gradient === undefined) return;
          const input = unit.inputs[index] as Floats;
          const part = 'indices' in gradient ? new IndexedSlices(gradient.values, gradient.indices, input) : gradient;
          pushTo(this.#partial, input, this.#outOfBranches(node, input, part));
        });
      // The history that a loop keeps for its gradient stays on its device.
      const device = this.#colocate || !(unit instanceof Node) ? requestedDevice(node) : '';
      if (device === '') make();
      else g.withDevice(device, make);
    });
  }

  #gradientsOf(unit: Unit, gradients: readonly (Floats | undefined)[]): ReturnType<GradientRule> {
    const g = this.#g;
    if (!(unit instanceof Node)) {
      return loopGradients(g, unit, gradients, (ys, xs, gradYs) => {
        const made = new Backpropagation(g, this.#colocate).run(ys, xs, gradYs);
        return made.map((each, k) => (each === undefined ? zerosLike(g, xs[k]) : this.#wholeOf(each)));
      });
    }
    const rule = gradientRules[unit.op];
    if (rule === undefined) throw new ShoalError('unsupported', `gradients: ${describeNode(unit)} has no gradient`);
    return rule({ g, node: unit, inputs: unit.inputs as readonly Floats[], outputs: unit.outputs as readonly Floats[], gradients });
  }

  /** A branch that is not taken has dead gradients. What it uses from outside, and not through a Switch, has zeros then. */
  #outOfBranches(node: Node, input: Floats, gradient: Floats | IndexedSlices): Floats | IndexedSlices {
    const g = this.#g;
    const shared = new Set<Branch>();
    for (let branch = g.branchOf(input.node); branch !== undefined; branch = branch.parent) shared.add(branch);
    let part = gradient;
    for (let branch = g.branchOf(node); branch !== undefined && !shared.has(branch); branch = branch.parent) {
      if (input.node.op === 'Switch' && input.node.inputs[1] === branch.pred) break;
      const elsewhere = switchOn(g, input, branch.pred)[1 - branch.side];
      [part] = merge(g, [this.#wholeOf(part), zerosLike(g, elsewhere)]);
    }
    return part;
  }

  /** Slices become whole where a rule has to go on with them. */
  #dense(output: Output, stops: ReadonlySet<Output>): Floats | undefined {
    const total = this.#total(output);
    if (total === undefined) return undefined;
    if (!stops.has(output)) this.#partial.set(output, [total]);
    return this.#wholeOf(total);
  }

  #total(output: Output): Gradient {
    const parts = this.#partial.get(output);
    if (parts === undefined) return undefined;
    if (parts.length === 1) return parts[0];
    const slices = parts.filter((part) => part instanceof IndexedSlices);
    const wholes = (): Floats[] => parts.map((part) => this.#wholeOf(part));
    const total = slices.length === parts.length ? joined(this.#g, slices) : addN(this.#g, wholes());
    this.#partial.set(output, [total]);
    return total;
  }

  #wholeOf(part: Floats | IndexedSlices): Floats {
    return part instanceof IndexedSlices ? whole(this.#g, part) : part;
  }
}

/** Makes one tensor of it, zero in the rows that are not named. */
export function whole(g: GraphBuilder, { values, indices, of }: IndexedSlices): Floats {
  return slicesToDense(g, values, indices, of);
}

/** All rows of several slices of one table. */
export function joined(g: GraphBuilder, parts: readonly IndexedSlices[]): IndexedSlices {
  const [{ of }] = parts;
  const width = of.shape === 'unknown' ? [] : of.shape.slice(1);
  const flat = parts.map(({ indices, values }) =>
    indices.shape !== 'unknown' && indices.shape.length === 1 ? values : reshape(g, values, { shape: [null, ...width] }),
  );
  const indices = parts.map((part) => part.indices);
  return new IndexedSlices(concat(g, flat, { axis: 0 }), joinElements(g, indices), of);
}

function ones(g: GraphBuilder, y: Floats): Floats {
  const one = constant(g, { dtype: y.dtype, shape: [], data: Float32Array.of(1) });
  return y.shape !== 'unknown' && y.shape.length === 0 ? one : broadcastLike(g, one, y);
}

/** A node, or a loop as a whole. */
type Unit = Node | BuiltLoop;

/** Units on a way from xs to ys, those nearest to ys first. */
function betweenOf(g: GraphBuilder, ys: readonly Output[], xs: readonly Output[]): Unit[] {
  const order: Unit[] = [];
  const unitOf = ({ node }: Output): Unit => g.loops.get(node) ?? node;
  const dependent = new Map<Unit, boolean>();
  const sources = new Set(xs.map(unitOf));
  const starts = new Set<Output>(xs);
  const way: { readonly unit: Unit; next: number }[] = [];
  const visit = (unit: Unit): void => {
    if (dependent.has(unit)) return;
    dependent.set(unit, false);
    way.push({ unit, next: 0 });
  };
  for (const target of ys) {
    visit(unitOf(target));
    for (let top = way.at(-1); top !== undefined; top = way.at(-1)) {
      if (top.next < top.unit.inputs.length) {
        const input = top.unit.inputs[top.next++];
        if (!starts.has(input)) visit(unitOf(input));
        continue;
      }
      way.pop();
      const depends = top.unit.inputs.some((input) => starts.has(input) || dependent.get(unitOf(input)) === true);
      dependent.set(top.unit, depends || sources.has(top.unit));
      if (depends) order.push(top.unit);
    }
  }
  return order.reverse();
}
