/** Kernels that choose elements by what they are: of any dtype, so not by TensorFlow.js. */
import type { Kernel, KernelTable } from '../execute/kernel.ts';
import { countOf, elementsAs, elementsOf, elementsValue } from '../structure/elements.ts';
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
  const places = Array.from(anyElements(x), (each) => {
    const place = found.get(each) ?? found.size;
    found.set(each, place);
    return place;
  });
  const { dtype } = node.outputs[1];
  return [valueOf(x.dtype, [found.size], [...found.keys()]), elementsValue(dtype, x.shape, elementsAs(dtype, places))];
};

/** The place of each key, of tables that were used before. */
const tables = new WeakMap<object, ReadonlyMap<unknown, number>>();

/** The values of keys; the default of those that the table does not have. */
const find: Kernel = ({ node, inputs: [keys, fallback, tableKeys, tableValues] }) => {
  const all = anyElements(tableKeys);
  const places = tables.get(all) ?? new Map(Array.from(all, (key, place) => [key, place]));
  tables.set(all, places);
  const [values, [other]] = [anyElements(tableValues), Array.from(anyElements(fallback))];
  const found = Array.from(anyElements(keys), (key) => {
    const place = places.get(key);
    return place === undefined ? other : values[place];
  });
  return [valueOf(node.outputs[0].dtype, keys.shape, found)];
};

/** Elements of any dtype, strings among them. */
function anyElements(value: Value): ArrayLike<unknown> {
  return value.dtype === 'string' ? (value as DenseValue).data : elementsOf(value);
}

function valueOf(dtype: string, shape: readonly number[], data: readonly unknown[]): Value {
  return dtype === 'string' ? { dtype, shape, data } : elementsValue(dtype, shape, elementsAs(dtype, data as readonly number[]));
}

const fill: Kernel = ({ node, inputs: [dims, value] }) => {
  const shape = Array.from(elementsOf(dims) as ArrayLike<number>, Number);
  const [element] = Array.from(anyElements(value));
  return [valueOf(node.outputs[0].dtype, shape, Array.from<unknown>({ length: countOf(shape) }).fill(element))];
};

export const selectionKernels: KernelTable = { Where: where, Unique: unique, LookupTableFindV2: find, Fill: fill };
