import { describe, expect, test } from 'vitest';
import { checksum, checksumBytes, checksumsOf, describeDisagreement } from './checksum.ts';

describe('checksum', () => {
  test('is stable: these digits never change', () => {
    expect(checksum([])).toBe('e3b0c44298fc1c14');
    expect(checksum([Float32Array.of(1, 2), Float64Array.of(-0)])).toBe('20cbb0cbe34a6bf7');
  });

  test('sees bits, lengths and order; not where the bytes lie', () => {
    const base = checksum([Float32Array.of(1, 2), Float32Array.of(3)]);
    expect(checksum([Float32Array.of(1), Float32Array.of(2, 3)])).not.toBe(base);
    expect(checksum([Float32Array.of(3), Float32Array.of(1, 2)])).not.toBe(base);
    expect(checksum([Float32Array.of(0)])).not.toBe(checksum([Float32Array.of(-0)]));
    const shared = new Float32Array(new SharedArrayBuffer(32), 8, 2);
    shared.set([1, 2]);
    expect(checksum([shared, Float32Array.of(3)])).toBe(base);
  });

  test('travels as eight bytes', () => {
    const [a, b] = [checksum([Float32Array.of(1)]), checksum([])];
    expect(checksumsOf(Uint8Array.of(...checksumBytes(a), ...checksumBytes(b)))).toEqual([a, b]);
    expect(() => checksumBytes('xyz')).toThrow(/'xyz' is not a checksum/);
  });
});

test('disagreement: who has what, the odd ones first', () => {
  expect(describeDisagreement(['x', 'y', 'x', 'x'])).toBe('rank 1 has y; ranks 0, 2, 3 have x');
  expect(describeDisagreement(['x', 'y'])).toBe('rank 1 has y; rank 0 has x');
});
