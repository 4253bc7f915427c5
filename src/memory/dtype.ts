/** Element types. The codes appear on the wire and in the addon: append only. */
import { ShoalError } from '../base/errors.ts';

/** The element type of a tensor, by torch's names. Every dtype can be moved; `ReduceOp` lists those that can be reduced. Other
 *  names give ShoalError `unsupported`. */
export type DType =
  | 'float64'
  | 'float32'
  | 'float16'
  | 'bfloat16'
  | 'int64'
  | 'int32'
  | 'int16'
  | 'int8'
  | 'uint32'
  | 'uint16'
  | 'uint8'
  | 'bool';

/** The parts of the half floats of newer engines that are used here: not every TypeScript library knows them. */
export interface NativeFloat16Array extends ArrayBufferView {
  readonly [Symbol.toStringTag]: 'Float16Array';
  readonly BYTES_PER_ELEMENT: number;
  readonly length: number;
  [index: number]: number;
  keys(): IterableIterator<number>;
}

/** The typed arrays that calls accept. The dtype is the array's own: Uint8ClampedArray counts as `uint8`. Float16Array is
 *  accepted too, where the engine has it; BigUint64Array and DataView have no dtype: `unsupported`. */
export type TypedArray =
  | Float64Array
  | Float32Array
  | BigInt64Array
  | Int32Array
  | Int16Array
  | Int8Array
  | Uint32Array
  | Uint16Array
  | Uint8Array
  | Uint8ClampedArray
  | BigUint64Array;

/** The view through which each dtype is read; the 16-bit floats are read as their bits, bool as bytes 0 and 1. */
export interface DTypeViews {
  /** 8 bytes, IEEE 754 double. */
  float64: Float64Array;
  /** 4 bytes, IEEE 754 single. */
  float32: Float32Array;
  /** 2 bytes, IEEE 754 half, as bits; `Tensor.float16` gives numbers where the engine can. */
  float16: Uint16Array;
  /** 2 bytes, the upper half of a float32, as bits. */
  bfloat16: Uint16Array;
  /** 8 bytes, signed; elements are bigints. */
  int64: BigInt64Array;
  /** 4 bytes, signed. */
  int32: Int32Array;
  /** 2 bytes, signed. */
  int16: Int16Array;
  /** 1 byte, signed. */
  int8: Int8Array;
  /** 4 bytes, unsigned. */
  uint32: Uint32Array;
  /** 2 bytes, unsigned. */
  uint16: Uint16Array;
  /** 1 byte, unsigned. */
  uint8: Uint8Array;
  /** 1 byte, 0 or 1. */
  bool: Uint8Array;
}

export type DTypeKind = 'float' | 'int' | 'uint' | 'bool';

export interface DTypeInfo {
  readonly name: DType;
  /** Number on the wire and in the addon. */
  readonly code: number;
  /** Bytes per element. */
  readonly bytes: 1 | 2 | 4 | 8;
  readonly kind: DTypeKind;
  /** A view of no elements. */
  readonly empty: TypedArray;
  readonly view: (buffer: ArrayBufferLike, byteOffset: number, count: number) => TypedArray;
}

function info(name: DType, code: number, bytes: 1 | 2 | 4 | 8, kind: DTypeKind, view: DTypeInfo['view']): DTypeInfo {
  return { name, code, bytes, kind, empty: view(new ArrayBuffer(0), 0, 0), view };
}

/** Every dtype, by code. */
export const dtypes: readonly DTypeInfo[] = [
  info('float64', 0, 8, 'float', (b, o, n) => new Float64Array(b, o, n)),
  info('float32', 1, 4, 'float', (b, o, n) => new Float32Array(b, o, n)),
  info('float16', 2, 2, 'float', (b, o, n) => new Uint16Array(b, o, n)),
  info('bfloat16', 3, 2, 'float', (b, o, n) => new Uint16Array(b, o, n)),
  info('int64', 4, 8, 'int', (b, o, n) => new BigInt64Array(b, o, n)),
  info('int32', 5, 4, 'int', (b, o, n) => new Int32Array(b, o, n)),
  info('int16', 6, 2, 'int', (b, o, n) => new Int16Array(b, o, n)),
  info('int8', 7, 1, 'int', (b, o, n) => new Int8Array(b, o, n)),
  info('uint32', 8, 4, 'uint', (b, o, n) => new Uint32Array(b, o, n)),
  info('uint16', 9, 2, 'uint', (b, o, n) => new Uint16Array(b, o, n)),
  info('uint8', 10, 1, 'uint', (b, o, n) => new Uint8Array(b, o, n)),
  info('bool', 11, 1, 'bool', (b, o, n) => new Uint8Array(b, o, n)),
];

const byName = new Map<string, DTypeInfo>(dtypes.map((d) => [d.name, d]));

/** @throws ShoalError `unsupported` for a name that is not a dtype; the message lists the dtypes. */
export function dtypeInfo(name: DType): DTypeInfo {
  const found = byName.get(name);
  if (found) return found;
  throw new ShoalError('unsupported', `dtype '${name}' is not supported; use one of ${dtypes.map((d) => d.name).join(', ')}`);
}

/** A typed view of `count` elements at `byteOffset`, which must be a multiple of the element size. */
export function viewOf<D extends DType>(dtype: D, buffer: ArrayBufferLike, byteOffset: number, count: number): DTypeViews[D] {
  return dtypeInfo(dtype).view(buffer, byteOffset, count) as DTypeViews[D];
}

/** The engine's Float16Array; undefined where it has none. */
const nativeFloat16Array = (globalThis as { Float16Array?: new (buffer: ArrayBufferLike, at: number, count: number) => NativeFloat16Array })
  .Float16Array;

/** A native view of half floats. @throws ShoalError `unsupported` where the engine has none. */
export function float16ViewOf(buffer: ArrayBufferLike, byteOffset: number, count: number): NativeFloat16Array {
  if (nativeFloat16Array) return new nativeFloat16Array(buffer, byteOffset, count);
  throw new ShoalError('unsupported', `Node.js ${process.version} has no Float16Array, newer versions (24) have; read the bits of data`);
}

/** The dtype of a foreign typed array. Uint16Array is `uint16`: half floats must say so, or be in a Float16Array.
 *  @throws ShoalError `unsupported` for arrays without a dtype (BigUint64Array, DataView). */
export function dtypeOfArray(array: ArrayBufferView): DType {
  if (array instanceof Float32Array) return 'float32';
  if (array instanceof Float64Array) return 'float64';
  if (array instanceof Int32Array) return 'int32';
  if (array instanceof Uint8Array || array instanceof Uint8ClampedArray) return 'uint8';
  if (array instanceof BigInt64Array) return 'int64';
  if (array instanceof Int16Array) return 'int16';
  if (array instanceof Int8Array) return 'int8';
  if (array instanceof Uint32Array) return 'uint32';
  if (array instanceof Uint16Array) return 'uint16';
  if (nativeFloat16Array && array instanceof nativeFloat16Array) return 'float16';
  throw new ShoalError('unsupported', `${array.constructor.name} has no dtype; pass a typed array of a supported dtype or a tensor`);
}
