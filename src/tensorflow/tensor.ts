/** TensorProto, and weights beside a `model.json`, as values. */
import { textOf } from '../base/bytes.ts';
import { dtypeInfo, type DType } from '../memory/dtype.ts';
import type { Fail } from '../graph/structure/definition.ts';
import { countOf, elementsValue, emptyElements } from '../graph/structure/elements.ts';
import { elementBytes, type GraphDType } from '../graph/structure/graph-dtype.ts';
import { dimensionsMax } from '../memory/tensor.ts';
import type { Dimension, Shape } from '../graph/structure/shape.ts';
import type { Value } from '../graph/structure/value.ts';
import { dtypeOf, type ShapeProto, type TensorProto } from './graph-def.ts';

export function shapeOfProto(proto: ShapeProto | null, fail: Fail): Shape {
  if (proto === null || proto.unknownRank) return proto === null ? [] : 'unknown';
  if (proto.dim.length > dimensionsMax) return fail(`${proto.dim.length} dimensions; at most ${dimensionsMax} are allowed`);
  return proto.dim.map(({ size }): Dimension => {
    const dimension = Number(size);
    if (dimension === -1) return null;
    return Number.isSafeInteger(dimension) && dimension >= 0 ? dimension : fail(`${String(size)} is no dimension`);
  });
}

/** Bytes of elements that constants have beyond those that the graph lists: what a few bytes may be repeated to, in all constants
 *  together. */
export class Budget {
  #bytes = 2 ** 28;

  take(bytes: number, fail: Fail): void {
    this.#bytes -= bytes;
    if (!(this.#bytes >= 0)) fail('the constants of the graph have more than 256 MiB of repeated elements; compute them by operations');
  }
}

/** Either all elements as bytes (`tensor_content`), or a list of the dtype's own, whose last is repeated as often as the shape needs; none
 *  at all are zeros. */
export function valueOfProto(proto: TensorProto, budget: Budget, fail: Fail): Value {
  const dtype = dtypeOf(proto.dtype, fail);
  const shape = shapeOfProto(proto.tensorShape, fail);
  if (shape === 'unknown' || shape.includes(null)) return fail('the shape of a value must be known');
  const dimensions = shape as readonly number[];
  const count = countOf(dimensions);
  const { tensorContent: content } = proto;
  if (content.byteLength > 0) return valueOfBytes(dtype, dimensions, content, fail);
  const given = proto[lists[dtype]];
  if (given.length > count) fail(`${given.length} elements are too many for [${dimensions.join(', ')}]`);
  budget.take((count - given.length) * (elementBytes(dtype) ?? 8), fail);
  const at = (k: number): never => given[Math.min(k, given.length - 1)] as never;
  if (dtype === 'string') {
    const texts = (given as readonly Uint8Array[]).map(textOf);
    return { dtype, shape: dimensions, data: Array.from({ length: count }, (_, k) => texts[Math.min(k, texts.length - 1)] ?? '') };
  }
  const elements = emptyElements(dtype, count);
  if (given.length === 0) return elementsValue(dtype, dimensions, elements);
  if (elements instanceof BigInt64Array) for (let k = 0; k < count; k++) elements[k] = BigInt(String(at(k)));
  else for (let k = 0; k < count; k++) elements[k] = at(k);
  return elementsValue(dtype, dimensions, elements);
}

/** Is any of the elements there? */
export function hasElements(proto: TensorProto): boolean {
  return proto.tensorContent.length > 0 || Object.values(lists).some((list) => proto[list].length > 0);
}

/** A copy. Little-endian, as TensorFlow writes and every machine here reads them. */
export function valueOfBytes(dtype: GraphDType, shape: readonly number[], bytes: Uint8Array, fail: Fail): Value {
  const size = elementBytes(dtype);
  if (size === undefined) return fail('the elements of a string tensor as bytes are not supported');
  const count = countOf(shape);
  if (bytes.byteLength !== count * size) fail(`${dtype}[${shape.join(', ')}] has ${count * size} bytes, not ${bytes.byteLength}`);
  // Not slice: of a Buffer that is a view.
  const copy = Uint8Array.from(bytes);
  return elementsValue(dtype, shape, dtypeInfo(dtype as DType).view(copy.buffer, copy.byteOffset, count));
}

/** The fields with elements that are no bytes. */
const lists = {
  float32: 'floatVal',
  float64: 'doubleVal',
  float16: 'halfVal',
  bfloat16: 'halfVal',
  int32: 'intVal',
  int16: 'intVal',
  int8: 'intVal',
  uint16: 'intVal',
  uint8: 'intVal',
  int64: 'int64Val',
  uint32: 'uint32Val',
  bool: 'boolVal',
  string: 'stringVal',
} as const satisfies Record<GraphDType, keyof TensorProto>;
