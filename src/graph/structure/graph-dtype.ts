/** Element types of tensors in a graph: those of memory, and strings, which only travel serialised. */
import { dtypes, type DType } from '../../memory/dtype.ts';

/** Element type of a tensor in a graph. */
export type GraphDType = DType | 'string';

export type FloatDType = 'float64' | 'float32' | 'float16' | 'bfloat16';
export type IndexDType = 'int32' | 'int64';
export type NumericDType = Exclude<DType, 'bool'>;

export const floatDTypes: readonly FloatDType[] = ['float64', 'float32', 'float16', 'bfloat16'];
export const indexDTypes: readonly IndexDType[] = ['int32', 'int64'];
export const numericDTypes = dtypes.map(({ name }) => name).filter((name): name is NumericDType => name !== 'bool');
export const graphDTypes: readonly GraphDType[] = [...dtypes.map(({ name }) => name), 'string'];

const bytesByName = new Map<GraphDType, number>(dtypes.map(({ name, bytes }) => [name, bytes]));

export function isGraphDType(name: unknown): name is GraphDType {
  return name === 'string' || bytesByName.has(name as DType);
}

/** Bytes per element; undefined for strings. */
export function elementBytes(dtype: GraphDType): number | undefined {
  return bytesByName.get(dtype);
}
