/** Kernels of tables: rows by index, taken apart and put together. They move elements of any dtype and compute nothing. */
import { ShoalError } from '../../base/errors.ts';
import type { TypedArray } from '../../memory/dtype.ts';
import type { Kernel, KernelTable } from '../execute/kernel.ts';
import type { Reference } from '../execute/variable-store.ts';
import type { Value } from '../structure/value.ts';
import { countOf, elementsOf, elementsValue, emptyElements, rowNumbers, rowWidth, type ElementsValue } from '../structure/elements.ts';

/** Rows of a table. */
const gather: Kernel = ({ inputs: [params, indices] }) => {
  const width = rowWidth(params.shape);
  const source = elementsOf(params);
  const rows = rowNumbers(indices, params.shape[0]);
  const target = emptyElements(params.dtype, rows.length * width);
  for (let k = 0; k < rows.length; k++) copyRow(target, k, source, rows[k], width);
  return [elementsValue(params.dtype, [...indices.shape, ...params.shape.slice(1)], target)];
};

type Combine = (table: TypedArray, at: number, update: TypedArray, from: number, width: number) => void;

function scatter(combine: Combine): Kernel {
  return ({ inputs: [ref, indices, updates] }) => {
    const reference = ref as Reference;
    const table = changed(reference);
    const width = rowWidth(table.shape);
    const rows = rowNumbers(indices, table.shape[0]);
    const source = elementsOf(updates);
    if (source.length !== rows.length * width)
      throw new ShoalError('usage', `${rows.length} rows of ${width} elements need ${rows.length * width}, not ${source.length}`);
    for (let k = 0; k < rows.length; k++) combine(table.data, rows[k] * width, source, k * width, width);
    return [reference];
  };
}

const addTo: Combine = (table, at, update, from, width) => {
  // Both are of one dtype; the compiler cannot know that a sum of bigints stays one.
  for (let i = 0; i < width; i++) (table[at + i] as number) += update[from + i] as number;
};

const subtractFrom: Combine = (table, at, update, from, width) => {
  for (let i = 0; i < width; i++) (table[at + i] as number) -= update[from + i] as number;
};

const replace: Combine = (table, at, update, from, width) => {
  for (let i = 0; i < width; i++) table[at + i] = update[from + i];
};

const dynamicPartition: Kernel = ({ node, inputs: [data, partitions] }) => {
  const count = node.outputs.length;
  const numbers = rowNumbers(partitions, count);
  const rest = data.shape.slice(partitions.shape.length);
  const width = countOf(rest);
  const source = elementsOf(data);
  const sizes = new Int32Array(count);
  for (const part of numbers) sizes[part]++;
  const parts = Array.from(sizes, (size) => emptyElements(data.dtype, size * width));
  sizes.fill(0);
  for (let k = 0; k < numbers.length; k++) copyRow(parts[numbers[k]], sizes[numbers[k]]++, source, k, width);
  return parts.map((part, k) => elementsValue(data.dtype, [sizes[k], ...rest], part));
};

const dynamicStitch: Kernel = ({ inputs }) => {
  const half = inputs.length / 2;
  const [indices, data] = [inputs.slice(0, half), inputs.slice(half)];
  const rows = indices.map((each) => rowNumbers(each, rowsMax));
  let length = 0;
  for (const each of rows) for (const row of each) length = Math.max(length, row + 1);
  const rest = data[0].shape.slice(indices[0].shape.length);
  const width = countOf(rest);
  const target = emptyElements(data[0].dtype, length * width);
  rows.forEach((each, part) => {
    const source = elementsOf(data[part]);
    for (let k = 0; k < each.length; k++) copyRow(target, each[k], source, k, width);
  });
  return [elementsValue(data[0].dtype, [length, ...rest], target)];
};

const rowsMax = 2 ** 31;

const slicesToDense: Kernel = ({ inputs: [values, indices, like] }) => {
  const width = rowWidth(like.shape);
  const target = emptyElements(like.dtype, countOf(like.shape));
  const rows = rowNumbers(indices, like.shape[0]);
  const source = elementsOf(values);
  for (let k = 0; k < rows.length; k++) addTo(target, rows[k] * width, source, k * width, width);
  return [elementsValue(like.dtype, like.shape, target)];
};

/** A table's elements, to be changed in place. */
export function changed(reference: Reference): ElementsValue {
  return reference.change((value: Value) => elementsValue(value.dtype, value.shape, elementsOf(value).slice()));
}

function copyRow(target: TypedArray, to: number, source: TypedArray, from: number, width: number): void {
  for (let i = 0; i < width; i++) target[to * width + i] = source[from * width + i];
}

function assigning(combine: Combine): Kernel {
  return ({ inputs: [ref, value] }) => {
    const reference = ref as Reference;
    const table = changed(reference);
    combine(table.data, 0, elementsOf(value), 0, table.data.length);
    return [reference];
  };
}

export const sparseKernels: KernelTable = {
  GatherV2: gather,
  ScatterUpdate: scatter(replace),
  ScatterAdd: scatter(addTo),
  ScatterSub: scatter(subtractFrom),
  SlicesToDense: slicesToDense,
  DynamicPartition: dynamicPartition,
  DynamicStitch: dynamicStitch,
  AssignAdd: assigning(addTo),
  AssignSub: assigning(subtractFrom),
};
