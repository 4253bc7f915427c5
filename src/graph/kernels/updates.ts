/** Kernels of optimisers, by the parameter kernels that the parameter server has as well: the same bits. Rows that several indices name
 *  are summed first, in the order of the indices. */
import { must } from '../../base/assert.ts';
import {
  adamRate,
  ruleParameters,
  updateRule,
  type ParameterKernels,
  type Reals,
  type RuleNumbers,
  type UpdateRule,
} from '../../memory/parameter-kernels.ts';
import type { Kernel, KernelTable } from '../execute/kernel.ts';
import type { Reference } from '../execute/variable-store.ts';
import type { Attributes } from '../structure/definition.ts';
import type { Value } from '../structure/value.ts';
import { realsOf, rowNumbers, rowWidth } from '../structure/elements.ts';
import { changed } from './sparse.ts';

/** A rule, and TensorFlow's names of its hyperparameters. */
interface Update {
  readonly rule: UpdateRule;
  readonly names: Partial<Record<keyof RuleNumbers, string>>;
}

const descent: Update = { rule: 'sgd', names: { rate: 'learning_rate' } };
const adagrad: Update = { rule: 'adagrad', names: { rate: 'learning_rate', epsilon: 'epsilon' } };
const ftrl: Update = { rule: 'ftrl', names: { rate: 'learning_rate', decay: 'l2', l1: 'l1', beta: 'beta' } };
const adamUpdate: Update = { rule: 'adam', names: { rate: 'learning_rate', b1: 'beta1', b2: 'beta2', epsilon: 'epsilon' } };

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

function dense(kernels: ParameterKernels, update: Update): Kernel {
  const { rule } = update;
  const states = updateRule(rule).states.length;
  return ({ node, inputs }) => {
    const own = inputs.slice(0, states + 1).map(realsToChange);
    kernels.update(rule, own[0], realsOf(inputs[states + 1]), own.slice(1), ruleParameters(rule, numbersOf(update, node.attributes)));
    return [inputs[0]];
  };
}

function adam(kernels: ParameterKernels): Kernel {
  return ({ node: { attributes }, inputs: [ref, m, v, steps, grad] }) => {
    const [value, mean, variance, count] = [ref, m, v, steps].map(realsToChange);
    const numbers = numbersOf(adamUpdate, attributes);
    const rate = adamRate(numbers.rate, numbers.b1!, numbers.b2!, ++count[0]);
    kernels.update('adam', value, realsOf(grad), [mean, variance], ruleParameters('adam', { ...numbers, rate }));
    return [ref];
  };
}

function sparse(kernels: ParameterKernels, update: Update): Kernel {
  const { rule } = update;
  const states = updateRule(rule).states.length;
  return ({ node, inputs }) => {
    const [grad, indices] = inputs.slice(states + 1);
    const references = inputs.slice(0, states + 1) as Reference[];
    const { shape } = references[0];
    const width = rowWidth(shape);
    const summed = sumRows(rowNumbers(indices, shape[0]), realsOf(grad), width);
    const tables = references.map(realsToChange);
    const numbers = ruleParameters(rule, numbersOf(update, node.attributes));
    // The rows side by side: one call of the kernel for all of them.
    const rows = tables.map((table) => packRows(table, summed.rows, width));
    kernels.update(rule, rows[0], summed.values, rows.slice(1), numbers);
    tables.forEach((table, k) => unpackRows(table, summed.rows, width, rows[k]));
    return [references[0]];
  };
}

function numbersOf({ names }: Update, attributes: Attributes): RuleNumbers {
  return Object.fromEntries(Object.entries(names).map(([own, name]) => [own, attributes[name]])) as unknown as RuleNumbers;
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
