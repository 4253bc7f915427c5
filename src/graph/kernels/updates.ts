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
import { readScalar } from '../execute/structural-kernels.ts';
import type { Reference } from '../execute/variable-store.ts';
import type { Attributes } from '../structure/definition.ts';
import type { Value } from '../structure/value.ts';
import { realsOf, rowNumbers, rowWidth } from '../structure/elements.ts';
import { changedTable } from './embedding.ts';
import { changed } from './sparse.ts';

/** A rule, and TensorFlow's names of its hyperparameters. */
interface Update {
  readonly names: Partial<Record<keyof RuleNumbers, string>>;
  /** The states of the variable's shape. */
  readonly states: number;
  /** True: behind the states, a scalar counts the updates. */
  readonly isCounted?: boolean;
  readonly apply: (value: Reals, grad: Reals, states: readonly Reals[], numbers: RuleNumbers, attributes: Attributes) => void;
}

export function updateKernels(kernels: ParameterKernels): KernelTable {
  const byRule = (rule: UpdateRule, names: Update['names']): Update => ({
    names,
    states: updateRule(rule).states.length,
    isCounted: rule === 'adam',
    apply: (value, grad, states, numbers) => kernels.update(rule, value, grad, states, ruleParameters(rule, numbers)),
  });
  const updates: Readonly<Record<string, Update>> = {
    GradientDescent: byRule('sgd', {}),
    Momentum: momentum,
    Adagrad: byRule('adagrad', { epsilon: 'epsilon' }),
    Adam: byRule('adam', { b1: 'beta1', b2: 'beta2', epsilon: 'epsilon' }),
    Ftrl: byRule('ftrl', { decay: 'l2', l1: 'l1', beta: 'beta' }),
  };
  return Object.fromEntries(
    Object.entries(updates).flatMap(([name, update]) => [
      [`Apply${name}`, kernel(update, false)],
      [`SparseApply${name}`, kernel(update, true)],
      [`KvResourceSparseApply${name}`, kernel({ ...update, states: 0 }, true)],
    ]),
  );
}

/** TensorFlow's rule: the rate is no part of what accumulates, so that it may change. */
const momentum: Update = {
  names: { mu: 'momentum' },
  states: 1,
  apply: (value, grad, [accumulated], { rate, mu = 0 }, { use_nesterov: isNesterov }) => {
    for (let k = 0; k < value.length; k++) {
      accumulated[k] = mu * accumulated[k] + grad[k];
      value[k] -= rate * (isNesterov === true ? grad[k] + mu * accumulated[k] : accumulated[k]);
    }
  },
};

function kernel(update: Update, isSparse: boolean): Kernel {
  return ({ node: { attributes, outputs }, inputs }) => {
    const tables = inputs.slice(0, 1 + update.states) as Reference[];
    const rest = inputs.slice(tables.length);
    const count = update.isCounted === true ? realsToChange(rest.shift()!) : undefined;
    const [grad, ...more] = rest;
    const indices = isSparse ? more.shift() : undefined;
    const given = more.length === 0 ? (attributes.learning_rate as number) : Number(readScalar(more[0]));
    const own = Object.fromEntries(Object.entries(update.names).map(([key, name]) => [key, attributes[name]]));
    const numbers: RuleNumbers = { ...own, rate: given };
    const rate = count === undefined ? given : adamRate(given, numbers.b1!, numbers.b2!, ++count[0]);
    const apply = (values: readonly Reals[], gradient: Reals): void =>
      update.apply(values[0], gradient, values.slice(1), { ...numbers, rate }, attributes);
    if (indices === undefined) apply(tables.map(realsToChange), realsOf(grad));
    else changeRows(rowsOf(tables, indices, attributes), realsOf(grad), apply);
    return outputs.map(() => inputs[0]);
  };
}

interface RowsToChange {
  /** The table and its states. */
  readonly tables: readonly Reals[];
  /** The row of each gradient; −1: none. */
  readonly rows: Int32Array;
  readonly width: number;
}

function rowsOf(references: readonly Reference[], indices: Value, { columns, first }: Attributes): RowsToChange {
  if (columns === undefined) {
    const { shape } = references[0];
    const rows = rowNumbers(indices, shape[0]);
    return { tables: references.map(realsToChange), rows, width: rowWidth(shape) };
  }
  const table = changedTable(references[0]);
  const rows = table.admit(indices);
  const firsts = realsOf(first as Value);
  const states = (columns as readonly string[]).map((name, k) => table.column(name, firsts[k]));
  return { tables: [table.column('', 0), ...states], rows, width: table.width };
}

/** Lays the rows side by side: one call of the kernel for all of them. */
function changeRows({ tables, rows, width }: RowsToChange, grad: Reals, apply: (rows: readonly Reals[], grad: Reals) => void): void {
  const summed = sumRows(rows, grad, width);
  const packed = tables.map((table) => packRows(table, summed.rows, width));
  apply(packed, summed.values);
  tables.forEach((table, k) => unpackRows(table, summed.rows, width, packed[k]));
}

function realsToChange(reference: Value): Reals {
  return realsOf(changed(reference as Reference));
}

interface Rows {
  readonly rows: readonly number[];
  readonly values: Reals;
}

/** Each row once, in the order in which they come first; without those that are negative. */
export function sumRows(indices: Int32Array, source: Reals, width: number): Rows {
  const places = new Map<number, number>();
  for (const row of indices) if (row >= 0 && !places.has(row)) places.set(row, places.size);
  const values = newReals(source, places.size * width);
  for (let k = 0; k < indices.length; k++) {
    if (indices[k] < 0) continue;
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
