/** Symbolic gradients, as TensorFlow's `tf.gradients`: nodes that compute d(Σ ys)/dx are added to the graph. What an operation
 *  contributes is a rule (rules.ts). The gradient of a table that is read by Gather is *indexed slices*: rows, and which they are. */
import { checkedBuilder, checkOutputs } from '../structure/check-arguments.ts';
import { ShoalError } from '../../base/errors.ts';
import { anyList, anyText, checkOptions, flag, optionTable } from '../../base/schema.ts';
import { addN } from '../ops/math.ts';
import { concat, constant, reshape } from '../ops/array.ts';
import { broadcastLike, slicesToDense } from '../ops/gradient.ts';
import type { GraphBuilder } from '../structure/builder.ts';
import { floatDTypes, type FloatDType, type IndexDType } from '../structure/graph-dtype.ts';
import { describeNode, type Node, type Output } from '../structure/graph-node.ts';
import { gradientRules, type Floats } from './rules.ts';

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

/** Undefined: `ys` do not depend on it. */
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
 *  @throws ShoalError `unsupported` that names the node whose operation has no gradient: loops and branches among them. */
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
    ys.forEach((y, k) => this.#add(y, gradYs?.[k] ?? ones(this.#g, y)));
    const stops = new Set<Output>(xs);
    for (const node of betweenOf(ys, xs)) this.#propagate(node, stops);
    return xs.map((x) => this.#total(x));
  }

  #propagate(node: Node, stops: ReadonlySet<Output>): void {
    if (node.inputs.length === 0 || !node.outputs.some((output) => this.#partial.has(output))) return;
    const rule = gradientRules[node.op];
    if (rule === undefined) throw new ShoalError('unsupported', `gradients: ${describeNode(node)} has no gradient`);
    const g = this.#g;
    g.withScope(`${node.name.replaceAll('/', '_')}_grad`, () => {
      const incoming = node.outputs.map((output) => this.#dense(output, stops));
      const make = (): void =>
        rule({
          g,
          node,
          inputs: node.inputs as readonly Floats[],
          outputs: node.outputs as readonly Floats[],
          gradients: incoming,
        }).forEach((gradient, index) => {
          if (gradient === undefined) return;
          const input = node.inputs[index] as Floats;
          this.#add(input, 'indices' in gradient ? new IndexedSlices(gradient.values, gradient.indices, input) : gradient);
        });
      const device = this.#colocate ? deviceOf(node) : '';
      if (device === '') make();
      else g.withDevice(device, make);
    });
  }

  #add(output: Output, gradient: Floats | IndexedSlices): void {
    const found = this.#partial.get(output);
    if (found === undefined) this.#partial.set(output, [gradient]);
    else found.push(gradient);
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
  const [first] = parts;
  const rows = (slices: IndexedSlices): { values: Floats; indices: Output<IndexDType> } => {
    const { indices, values, of } = slices;
    if (indices.shape !== 'unknown' && indices.shape.length === 1) return { values, indices };
    const width = of.shape === 'unknown' ? [] : of.shape.slice(1);
    return { values: reshape(g, values, { shape: [null, ...width] }), indices: reshape(g, indices, { shape: [null] }) };
  };
  const flat = parts.map(rows);
  const values = flat.map((part) => part.values);
  const indices = flat.map((part) => part.indices);
  return new IndexedSlices(concat(g, values, { axis: 0 }), concat(g, indices, { axis: 0 }), first.of);
}

function ones(g: GraphBuilder, y: Floats): Floats {
  const one = constant(g, { dtype: y.dtype, shape: [], data: Float32Array.of(1) });
  return y.shape !== 'unknown' && y.shape.length === 0 ? one : broadcastLike(g, one, y);
}

/** Nodes on a way from xs to ys, those nearest to ys first. */
function betweenOf(ys: readonly Output[], xs: readonly Output[]): Node[] {
  const order: Node[] = [];
  const dependent = new Map<Node, boolean>();
  const sources = new Set(xs.map(({ node }) => node));
  const starts = new Set<Output>(xs);
  const way: { readonly node: Node; next: number }[] = [];
  const visit = (node: Node): void => {
    if (dependent.has(node)) return;
    dependent.set(node, false);
    way.push({ node, next: 0 });
  };
  for (const { node: target } of ys) {
    visit(target);
    for (let top = way.at(-1); top !== undefined; top = way.at(-1)) {
      if (top.next < top.node.inputs.length) {
        const input = top.node.inputs[top.next++];
        if (!starts.has(input)) visit(input.node);
        continue;
      }
      way.pop();
      const depends = top.node.inputs.some((input) => starts.has(input) || dependent.get(input.node) === true);
      dependent.set(top.node, depends || sources.has(top.node));
      if (depends) order.push(top.node);
    }
  }
  return order.reverse();
}

/** The device that a node asks for, or the node that it is colocated with. */
function deviceOf({ device, colocateWith }: Node): string {
  return device === '' && colocateWith !== undefined ? deviceOf(colocateWith) : device;
}
