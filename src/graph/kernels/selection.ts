/** Kernels that choose elements by what they are: of any dtype, so not by TensorFlow.js. */
import type { Kernel, KernelTable } from '../execute/kernel.ts';
import { elementsAs, elementsOf, elementsValue } from '../structure/elements.ts';
import type { DenseValue, Value } from '../structure/value.ts';

/** The places of elements that are not zero, row by row. */
const where: Kernel = ({ inputs: [condition] }) => {
  const { shape } = condition;
  const data = elementsOf(condition);
  const places: number[] = [];
  let count = 0;
  for (let k = 0; k < data.length; k++) {
    if (!data[k]) continue;
    count++;
    let [rest, width] = [k, data.length];
    for (const dimension of shape) {
      width /= dimension;
      places.push(Math.floor(rest / width));
      rest %= width;
    }
  }
  return [elementsValue('int64', [count, shape.length], elementsAs('int64', places))];
};

/** Different elements in the order in which they come, and which of these each element is. */
const unique: Kernel = ({ node, inputs: [x] }) => {
  const found = new Map<unknown, number>();
  const places = anyElements(x).map((each) => {
    const place = found.get(each) ?? found.size;
    found.set(each, place);
    return place;
  });
  const { dtype } = node.outputs[1];
  return [valueOf(x.dtype, [found.size], [...found.keys()]), elementsValue(dtype, x.shape, elementsAs(dtype, places))];
};

/** Elements of any dtype, strings among them. */
function anyElements(value: Value): readonly unknown[] {
  return Array.from((value.dtype === 'string' ? (value as DenseValue).data : elementsOf(value)) as ArrayLike<unknown>);
}

function valueOf(dtype: string, shape: readonly number[], data: readonly unknown[]): Value {
  return dtype === 'string' ? { dtype, shape, data } : elementsValue(dtype, shape, elementsAs(dtype, data as readonly number[]));
}

export const selectionKernels: KernelTable = { Where: where, Unique: unique };
