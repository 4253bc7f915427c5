/** Kernels of optimisers, by the parameter kernels that the parameter server has as well: the same bits. Rows that several indices name
 *  are summed first, in the order of the indices. */
import { must } from '../../base/assert.ts';
import type { ParameterKernels, Reals, UpdateRule } from '../../memory/parameter-kernels.ts';
import type { Kernel, KernelTable } from '../execute/kernel.ts';
import type { Reference } from '../execute/variable-store.ts';
import type { Attributes } from '../structure/definition.ts';
import type { Value } from '../structure/value.ts';
import { realsOf, rowNumbers, rowWidth } from '../structure/elements.ts';
import { changed } from './sparse.ts';

interface Update {
  readonly rule: UpdateRule;
  /** Variables of state behind the one that is updated. */
  readonly states: number;
  /** The kernel's parameters from [2] on: decay, rate, and those of the rule. */
  readonly parameters: (attribute: (name: string) => number) => readonly number[];
}

const descent: Update = { rule: 'sgd', states: 0, parameters: (of) => [0, of('learning_rate')] };
const adagrad: Update = { rule: 'adagrad', states: 1, parameters: (of) => [0, of('learning_rate'), of('epsilon')] };
const ftrl: Update = { rule: 'ftrl', states: 2, parameters: (of) => [of('l2'), of('learning_rate'), of('l1'), of('beta')] };

export function updateKernels(kernels: ParameterKernels): KernelTable {
  return {
    ApplyGradientDescent: dense(kernels, descent),
    ApplyAdagrad: dense(kernels, adagrad),
    ApplyAdam: adam(kernels),
    SparseApplyGradientDescent: sparse(kernels, descent),
    SparseApplyAdagrad: sparse(kernels, adagrad),
    SparseApplyFtrl: sparse(kernels, ftrl),
  };
}

function dense(kernels: ParameterKernels, { rule, states, parameters }: Update): Kernel {
  return ({ node, inputs }) => {
    const own = inputs.slice(0, states + 1).map(realsToChange);
    kernels.update(rule, own[0], realsOf(inputs[states + 1]), own.slice(1), parametersOf(parameters, node.attributes));
    return [inputs[0]];
  };
}

/** The rate of step t contains the correction of the bias, as in the parameter server. */
function adam(kernels: ParameterKernels): Kernel {
  return ({ node: { attributes }, inputs: [ref, m, v, steps, grad] }) => {
    const [value, mean, variance, count] = [ref, m, v, steps].map(realsToChange);
    const step = ++count[0];
    const parameters = (of: (name: string) => number): number[] => {
      const [beta1, beta2] = [of('beta1'), of('beta2')];
      const rate = (of('learning_rate') * Math.sqrt(1 - beta2 ** step)) / (1 - beta1 ** step);
      return [0, rate, beta1, 1 - beta1, beta2, 1 - beta2, of('epsilon')];
    };
    kernels.update('adam', value, realsOf(grad), [mean, variance], parametersOf(parameters, attributes));
    return [ref];
  };
}

function sparse(kernels: ParameterKernels, { rule, states, parameters }: Update): Kernel {
  return ({ node, inputs }) => {
    const [grad, indices] = inputs.slice(states + 1);
    const references = inputs.slice(0, states + 1) as Reference[];
    const { shape } = references[0];
    const width = rowWidth(shape);
    const summed = sumRows(rowNumbers(indices, shape[0]), realsOf(grad), width);
    const tables = references.map(realsToChange);
    const numbers = parametersOf(parameters, node.attributes);
    // The rows side by side: one call of the kernel for all of them.
    const rows = tables.map((table) => packRows(table, summed.rows, width));
    kernels.update(rule, rows[0], summed.values, rows.slice(1), numbers);
    tables.forEach((table, k) => unpackRows(table, summed.rows, width, rows[k]));
    return [references[0]];
  };
}

function parametersOf(parameters: Update['parameters'], attributes: Attributes): Float64Array {
  return Float64Array.of(1, Infinity, ...parameters((name) => attributes[name] as number));
}

function realsToChange(reference: Value): Reals {
  return realsOf(changed(reference as Reference));
}

interface Rows {
  readonly rows: readonly number[];
  readonly values: Reals;
}

/** Each row once, in the order in which they come first. */
export function sumRows(indices: Int32Array, source: Reals, width: number): Rows {
  const places = new Map<number, number>();
  for (const row of indices) if (!places.has(row)) places.set(row, places.size);
  const values = newReals(source, places.size * width);
  for (let k = 0; k < indices.length; k++) {
    const at = must(places.get(indices[k]), () => 'every row has a place') * width;
    for (let i = 0; i < width; i++) values[at + i] += source[k * width + i];
  }
  return { rows: [...places.keys()], values };
}

function packRows(table: Reals, rows: readonly number[], width: number): Reals {
  const packed = newReals(table, rows.length * width);
  for (let k = 0; k < rows.length; k++) for (let i = 0; i < width; i++) packed[k * width + i] = table[rows[k] * width + i];
  return packed;
}

function unpackRows(table: Reals, rows: readonly number[], width: number, packed: Reals): void {
  for (let k = 0; k < rows.length; k++) for (let i = 0; i < width; i++) table[rows[k] * width + i] = packed[k * width + i];
}

function newReals(like: Reals, count: number): Reals {
  return like instanceof Float32Array ? new Float32Array(count) : new Float64Array(count);
}
