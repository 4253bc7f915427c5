import { describe, expect, it } from 'vitest';
import { copyOf, fittingElements, fittingRows, type NamedParameter } from './values-argument.ts';

const matrix: NamedParameter = { key: 'w', dtype: 'float32', shape: [4, 2], count: 8 };

describe('values', () => {
  it('are copied into memory of their own, also from a Buffer, which shares it with others', () => {
    const pooled = Buffer.from([1, 2, 3]);
    const copy = copyOf('uint8', pooled);
    pooled.fill(9);
    expect([[...copy], copy.buffer.byteLength]).toEqual([[1, 2, 3], 3]);
    expect([...copyOf('float32', new Float32Array([1, 2, 3]).subarray(1))]).toEqual([2, 3]);
  });

  it('must have the dtype and the number of elements of their parameter', () => {
    expect(fittingElements(matrix, new Float32Array(8))).toHaveLength(8);
    expect(() => fittingElements(matrix, new Int32Array(8))).toThrow(/'w' is float32\[4, 2\], the value is int32/);
    expect(() => fittingElements(matrix, new Float32Array(7))).toThrow(/7 elements/);
  });

  it('that are rows must have its dtype, too', () => {
    expect(fittingRows(matrix, new Float32Array(6), 3)).toHaveLength(6);
    expect(() => fittingRows(matrix, new Int32Array(6), 3)).toThrow(/3 rows of 'w' are 6 elements of float32, the value is int32/);
  });
});
