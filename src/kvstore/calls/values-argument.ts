/** Normalises keys and values as callers pass them: one key or several; a value per key, or a list of values per key
 *  (one per device), which are summed. The same for every kind of store. Pure. */
import { describeForeign } from '../../memory/foreign-value.ts';
import { bytesOf } from '../../base/bytes.ts';
import { listed } from '../../base/collections/lists.ts';
import { ShoalError } from '../../base/errors.ts';
import { describeValue } from '../../base/schema.ts';
import { dtypeInfo, dtypeOfArray, type DType, type TypedArray } from '../../memory/dtype.ts';
import { countOf, sameShape, Tensor } from '../../memory/tensor.ts';
import type { Key, Value, Values } from './types.ts';
import type { Placeable } from '../../ps/protocol/placement.ts';

/** A parameter as `init` named it. */
export interface NamedParameter extends Placeable {
  readonly key: string;
  readonly count: number;
}

const keyCharacters = 1024;

/** @throws ShoalError `usage` for keys that cannot be, and for one that is there twice. */
export function keysOf(keys: Key | readonly Key[]): string[] {
  const names = (Array.isArray(keys) ? (keys as readonly Key[]) : [keys as Key]).map(nameOf);
  if (names.length === 0) throw new ShoalError('usage', 'the list of keys is empty');
  if (names.length > 1 && new Set(names).size < names.length) {
    const twice = names.find((name, index) => names.indexOf(name) !== index);
    throw new ShoalError('usage', `key '${twice}' is in the list twice`);
  }
  return names;
}

/** For each key the values that are summed, or the places where its value goes; at least one. */
export function listsPerKey(names: readonly string[], values: Values, what: 'value' | 'output'): (readonly Value[])[] {
  if (!Array.isArray(values)) {
    if (names.length === 1) return [[values as Value]];
    throw new ShoalError('usage', `${names.length} keys have one ${what}; pass a list with one per key`);
  }
  const list = values as readonly (Value | readonly Value[])[];
  // One key: the list is that of its devices.
  if (names.length === 1 && list.length > 0 && list.every((value) => !Array.isArray(value))) return [list as readonly Value[]];
  if (list.length !== names.length) throw new ShoalError('usage', `${names.length} keys have ${list.length} ${what}s; pass one per key`);
  return list.map((value, index) => {
    const own = Array.isArray(value) ? (value as readonly Value[]) : [value as Value];
    if (own.length === 0) throw new ShoalError('usage', `the list of ${what}s of '${names[index]}' is empty`);
    return own;
  });
}

/** The first value of each key. @throws ShoalError `usage` for a list of several. */
export function firstValues(names: readonly string[], values: Values): readonly Value[] {
  return listsPerKey(names, values, 'value').map((list, index) => {
    if (list.length === 1) return list[0];
    const message = `'${names[index]}' is given ${list.length} first values; a parameter begins with one: lists, one value per device, are for push and pushPull`;
    throw new ShoalError('usage', message);
  });
}

/** The elements of a value. An array has the shape given, or is a vector; `expected` settles what 16 bits mean.
 *  @throws ShoalError `usage` for a shape that does not fit, `unsupported` for arrays without a dtype. */
export function elementsOf(
  value: Value,
  shape?: readonly number[],
  expected?: DType,
): { dtype: DType; shape: readonly number[]; data: TypedArray } {
  if (value instanceof Tensor) {
    checkNotReleased(value);
    return { dtype: value.dtype, shape: value.shape, data: value.data };
  }
  if (!ArrayBuffer.isView(value) || value instanceof DataView)
    throw new ShoalError('usage', `a value must be a tensor or a typed array, not ${describeForeign(value)}`);
  const dtype = expected !== undefined && isBitsOf(value, expected) ? expected : dtypeOfArray(value);
  if (shape === undefined) return { dtype, shape: [value.length], data: value };
  // A copy: the caller's list may change.
  if (countOf(shape) === value.length) return { dtype, shape: [...shape], data: value };
  throw new ShoalError('usage', `an array of ${value.length} elements has not the shape [${shape.join(', ')}]`);
}

/** @throws ShoalError `usage`: its memory is another tensor's, or will be. */
export function checkNotReleased({ dtype, shape, released }: Tensor): void {
  if (released) throw new ShoalError('usage', `the tensor ${dtype}[${shape.join(', ')}] has been released; make another one`);
}

/** Row numbers of a matrix parameter. @throws ShoalError `usage`. */
export function rowIdsOf(
  { key, shape }: NamedParameter,
  rows: Uint32Array | Int32Array,
  { ascending }: { readonly ascending: boolean },
): Uint32Array {
  const [count = 0] = shape;
  if (shape.length < 2)
    throw new ShoalError('usage', `'${key}' has shape [${shape.join(', ')}]; rows are those of a matrix: init it with one`);
  const ids = new Uint32Array(rows.length);
  for (let i = 0; i < rows.length; i++) {
    const row = rows[i];
    if (row < 0 || row >= count) throw new ShoalError('usage', `'${key}' has no row ${row}; rows are 0…${count - 1}`);
    if (ascending && i > 0 && row <= rows[i - 1])
      throw new ShoalError('usage', `rows of '${key}' must be ascending and distinct; ${row} follows ${rows[i - 1]}`);
    ids[i] = row;
  }
  return ids;
}

/** The elements of a value that fits the parameter. @throws ShoalError `mismatch` naming both. */
export function fittingElements({ key, dtype, shape, count }: NamedParameter, value: Value): TypedArray {
  const given = elementsOf(value, undefined, dtype);
  if (given.dtype === dtype && given.data.length === count && (!(value instanceof Tensor) || sameShape(value.shape, shape)))
    return given.data;
  const what = value instanceof Tensor ? `${given.dtype}[${value.shape.join(', ')}]` : `${given.dtype} with ${given.data.length} elements`;
  throw new ShoalError('mismatch', `parameter '${key}' is ${dtype}[${shape.join(', ')}], the value is ${what}`);
}

/** The elements of a value that holds so many rows of the parameter. @throws ShoalError `mismatch`. */
export function fittingRows({ key, dtype, shape }: NamedParameter, value: Value, rows: number): TypedArray {
  const { dtype: given, data } = elementsOf(value, undefined, dtype);
  const elements = rows * countOf(shape.slice(1));
  if (given === dtype && data.length === elements) return data;
  const message = `${rows} rows of '${key}' are ${elements} elements of ${dtype}, the value is ${given} with ${data.length} elements`;
  throw new ShoalError('mismatch', message);
}

/** `'a', 'b'`, `'a', 'b', 'c' and 7 more`. */
export function listedKeys(keys: readonly string[]): string {
  const quoted = keys.map((key) => `'${key}'`);
  return listed(quoted, 3);
}

/** Elements in memory of their own. Not `slice`, which a Buffer answers with the same memory. */
export function copyOf(dtype: DType, data: TypedArray): TypedArray {
  const { view } = dtypeInfo(dtype);
  const copy = new Uint8Array(data.byteLength);
  copy.set(bytesOf(data));
  return view(copy.buffer, 0, data.length);
}

export function nameOf(key: Key): string {
  if (typeof key !== 'string' && typeof key !== 'number')
    throw new ShoalError('usage', `${describeValue(key)} is no key; use text or a number`);
  if (typeof key === 'number' && !Number.isFinite(key)) throw new ShoalError('usage', `${key} is no key; use text or a number`);
  const name = String(key);
  if (name.length > 0 && name.length <= keyCharacters) return name;
  throw new ShoalError('usage', `a key has ${name.length} characters; it must have 1 to ${keyCharacters}`);
}

/** 16-bit floats are given as their bits, bool as bytes. */
function isBitsOf(value: TypedArray, dtype: DType): boolean {
  if (dtype === 'float16' || dtype === 'bfloat16') return value instanceof Uint16Array;
  return dtype === 'bool' && value instanceof Uint8Array;
}
