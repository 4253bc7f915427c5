import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { seededRandom } from '../../base/random.ts';
import { loadNative } from '../../memory/native.ts';
import { createParameterKernels } from '../../memory/parameter-kernels/create-parameter-kernels.ts';
import type { CompressionSpec } from './codec.ts';
import { codecs, createCodec, createDecoder } from './registry.ts';

const kernels = createParameterKernels({ native: loadNative({ enabled: true }) });
const specs: readonly CompressionSpec[] = [{ type: '2bit' }, { type: '2bit', threshold: 0.125 }, { type: 'fp16' }];

describe.each(specs)('codec %j', (spec) => {
  const codec = createCodec(spec, kernels);

  it('loses nothing: decoded + residual is what was put in', () => {
    fc.assert(
      fc.property(fc.integer({ min: 0, max: 300 }), fc.nat(), fc.nat(3), (count, seed, offset) => {
        const random = seededRandom(seed);
        // Multiples of 2^-10 up to 8: every sum and difference is exact.
        const put = new Float64Array(count);
        const received = new Float64Array(count);
        const residual = new Float32Array(count);
        for (let step = 0; step < 5; step++) {
          const gradient = Float32Array.from({ length: count }, () => (random.integer(2 ** 14) - 2 ** 13) / 2 ** 10);
          const encoded = new Uint8Array(codec.encodedBytes(count) + offset).subarray(offset);
          const decoded = new Float32Array(count);
          codec.encode(encoded, gradient, residual);
          createDecoder(codec.code, kernels).decode(decoded, encoded);
          for (let i = 0; i < count; i++) {
            put[i] += gradient[i];
            received[i] += decoded[i];
          }
        }
        for (let i = 0; i < count; i++) expect(received[i] + residual[i]).toBe(put[i]);
      }),
      { numRuns: 100 },
    );
  });

  it('sends what is not finite as such, once', () => {
    const residual = new Float32Array(5);
    const encoded = new Uint8Array(codec.encodedBytes(5));
    const decoded = new Float32Array(5);
    codec.encode(encoded, Float32Array.of(NaN, 1, Infinity, -Infinity, 0), residual);
    codec.decode(decoded, encoded);
    expect([...decoded].map(Number.isFinite)).toEqual([false, true, false, false, true]);
    expect(kernels.firstNonFinite(residual)).toBe(-1);
    codec.encode(encoded, new Float32Array(5), residual);
    codec.decode(decoded, encoded);
    expect(kernels.firstNonFinite(decoded)).toBe(-1);
  });

  it('refuses another length, before anything is written', () => {
    for (const count of [0, 1, 15, 16, 17, 33]) {
      const right = codec.encodedBytes(count);
      for (const length of [right - 1, right + 1, right + 4, 0]) {
        if (length < 0 || length === right) continue;
        const target = new Float32Array(count).fill(7);
        expect(() => codec.decode(target, new Uint8Array(length))).toThrow(expect.objectContaining({ code: 'protocol' }));
        expect(target).toEqual(new Float32Array(count).fill(7));
      }
    }
  });

  it('takes any bytes: decodes them or refuses them', () => {
    fc.assert(
      fc.property(fc.nat(100), fc.uint8Array({ maxLength: 300 }), (count, bytes) => {
        try {
          codec.decode(new Float32Array(count), bytes);
        } catch (error) {
          expect(error).toMatchObject({ code: 'protocol' });
        }
      }),
      { numRuns: 2000 },
    );
  });
});

describe('2bit', () => {
  it('packs as documented', () => {
    const codec = createCodec({ type: '2bit', threshold: 0.5 }, kernels);
    const gradient = Float32Array.of(0.5, -0.5, 0.25, 0.75, -2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.5, 1);
    const residual = new Float32Array(17);
    const encoded = new Uint8Array(codec.encodedBytes(17));
    codec.encode(encoded, gradient, residual);
    expect(encoded).toHaveLength(4 + 8);
    expect(new DataView(encoded.buffer).getFloat32(0, true)).toBe(0.5);
    expect([...encoded.subarray(4)]).toEqual([0b11100011, 0b10000000, 0, 0b00000011, 0b11000000, 0, 0, 0]);
    expect([...residual.subarray(0, 5)]).toEqual([0, 0, 0.25, 0.25, -1.5]);
    // The loss comes later.
    codec.encode(encoded, new Float32Array(17), residual);
    expect([...encoded.subarray(4, 6)]).toEqual([0, 0b10000000]);
  });

  it('refuses bits beyond the last element and thresholds that are none', () => {
    const codec = createCodec({ type: '2bit' }, kernels);
    for (let count = 1; count <= 33; count++) {
      const encoded = new Uint8Array(codec.encodedBytes(count));
      codec.encode(encoded, new Float32Array(count).fill(1), new Float32Array(count));
      for (let element = count; element < Math.ceil(count / 16) * 16; element++) {
        const hostile = encoded.slice();
        hostile[4 + (element >> 2)] |= 1 << (6 - 2 * (element & 3));
        expect(() => codec.decode(new Float32Array(count), hostile)).toThrow(expect.objectContaining({ code: 'protocol' }));
      }
      for (const threshold of [0, -1, NaN, Infinity]) {
        const hostile = encoded.slice();
        new DataView(hostile.buffer).setFloat32(0, threshold, true);
        expect(() => codec.decode(new Float32Array(count), hostile)).toThrow(/threshold/);
      }
    }
  });
});

describe('fp16', () => {
  it('sends what a half cannot hold in parts', () => {
    const codec = createCodec({ type: 'fp16' }, kernels);
    const [encoded, decoded, residual] = [new Uint8Array(2), new Float32Array(1), new Float32Array(1)];
    codec.encode(encoded, Float32Array.of(100_000), residual);
    codec.decode(decoded, encoded);
    expect(decoded[0]).toBe(65504);
    expect(residual[0]).toBe(100_000 - 65504);
    codec.encode(encoded, Float32Array.of(0), residual);
    codec.decode(decoded, encoded);
    expect(decoded[0] + residual[0]).toBe(100_000 - 65504);
  });
});

describe('the registry', () => {
  it('has one code per codec, none 0', () => {
    expect(new Set(codecs.map(({ code }) => code)).size).toBe(codecs.length);
    for (const { type, code } of codecs) {
      expect(code).toBeGreaterThan(0);
      expect(createDecoder(code, kernels).code).toBe(code);
      expect(createCodec({ type }, kernels).code).toBe(code);
    }
  });

  it('names what it has', () => {
    expect(() => createCodec({ type: '1bit' as 'fp16' }, kernels)).toThrow(
      "there is no gradient compression '1bit'; use one of '2bit', 'fp16'",
    );
    expect(() => createDecoder(9, kernels)).toThrow(expect.objectContaining({ code: 'protocol' }));
    for (const threshold of [0, -1, NaN, Infinity, 1e-60]) {
      expect(() => createCodec({ type: '2bit', threshold }, kernels)).toThrow(/threshold/);
    }
  });
});
