/** Kernels for tests: float32 and int32, element by element where shapes are equal or one side is a scalar. */
import type { Kernel, KernelTable } from '../execute/kernel.ts';
import type { Reference } from '../execute/variable-store.ts';
import type { DenseValue, Value } from '../structure/value.ts';

export function dense(shape: readonly number[], data: readonly number[], dtype = 'float32'): DenseValue {
  return { dtype, shape, data };
}

export function scalarOf(value: number, dtype = 'float32'): DenseValue {
  return dense([], [value], dtype);
}

export function numbersOf(value: Value | undefined): readonly number[] {
  return Array.from((value as DenseValue).data as ArrayLike<number>);
}

function unary(compute: (x: number) => number): Kernel {
  return ({ inputs: [x] }) => [{ ...x, data: numbersOf(x).map(compute) }];
}

function binary(compute: (x: number, y: number) => number, dtype?: string): Kernel {
  return ({ inputs: [x, y] }) => {
    const [left, right] = [numbersOf(x), numbersOf(y)];
    const { shape } = left.length >= right.length ? x : y;
    const count = Math.max(left.length, right.length);
    const data = Array.from({ length: count }, (_, k) => compute(left[left.length === 1 ? 0 : k], right[right.length === 1 ? 0 : k]));
    return [dense(shape, data, dtype ?? x.dtype)];
  };
}

function rows(value: Value): { readonly width: number; readonly row: (index: number) => readonly number[] } {
  const width = value.shape.slice(1).reduce((product, each) => product * each, 1);
  return { width, row: (index) => numbersOf(value).slice(index * width, (index + 1) * width) };
}

export const testKernels: KernelTable = {
  Neg: unary((x) => -x),
  LogicalNot: unary((x) => 1 - x),
  AddV2: binary((x, y) => x + y),
  Sub: binary((x, y) => x - y),
  Mul: binary((x, y) => x * y),
  Less: binary((x, y) => Number(x < y), 'bool'),
  AddN: ({ inputs }) => [dense(inputs[0].shape, [inputs.reduce((sum, each) => sum + numbersOf(each)[0], 0)])],
  Sum: ({ inputs: [x] }) => [scalarOf(numbersOf(x).reduce((sum, each) => sum + each, 0))],
  GatherV2: ({ inputs: [table, indices] }) => {
    const { row } = rows(table);
    return [dense([...indices.shape, ...table.shape.slice(1)], numbersOf(indices).flatMap(row))];
  },
  ScatterAdd: ({ inputs: [reference, indices, updates] }) => {
    const table = (reference as Reference).read();
    const data = [...numbersOf(table)];
    const { width, row } = rows(updates);
    numbersOf(indices).forEach((index, k) => row(k).forEach((each, column) => (data[index * width + column] += each)));
    (reference as Reference).write(dense(table.shape, data));
    return [reference];
  },
};
