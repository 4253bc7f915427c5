import { describe, expect, it } from 'vitest';
import { systemRandom } from './random.ts';

describe('randomness of the machine', () => {
  it('gives as many bytes as were asked for, and no byte twice', () => {
    const counts = Array.from({ length: 200 }, (_, k) => [8, 32, 0, 255, 256, 257, 5000][k % 7]);
    const drawn = counts.map((count) => systemRandom.bytes(count));
    expect(drawn.map(({ length }) => length)).toEqual(counts);
    const long = drawn.filter(({ length }) => length >= 8).map((bytes) => Buffer.from(bytes.subarray(0, 8)).toString('hex'));
    expect(new Set(long).size).toBe(long.length);
    expect(long).not.toContain('0000000000000000');
    // Each result has memory of its own, so no caller sees the bytes of another.
    expect(drawn.every(({ buffer, byteLength }) => buffer.byteLength === byteLength)).toBe(true);
  });
});
