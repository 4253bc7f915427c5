import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { dtypeInfo, type DType } from '../memory/dtype.ts';
import { countOf } from '../memory/tensor.ts';
import { assignBuckets, parameterAlignment, type ParameterSpec } from './buckets.ts';

const spec = (name: string, count: number, dtype: DType = 'float32'): ParameterSpec => ({ name, shape: [count], dtype });
const indices = (parameters: ParameterSpec[], firstBucketBytes: number, bucketBytes: number): number[][] =>
  assignBuckets(parameters, { firstBucketBytes, bucketBytes }).map(({ slots }) => slots.map(({ parameter }) => parameter));

describe('assignBuckets', () => {
  test('fills in reverse order of registration, a small bucket first', () => {
    const parameters = [spec('a', 16), spec('b', 16), spec('c', 16), spec('d', 16)];
    expect(indices(parameters, 64, 128)).toEqual([[3], [2, 1], [0]]);
  });

  test('a parameter larger than a bucket is alone in its own', () => {
    const parameters = [spec('a', 16), spec('huge', 1000), spec('c', 16)];
    expect(indices(parameters, 128, 128)).toEqual([[2], [1], [0]]);
  });

  test('dtypes never share a bucket; buckets start in the order of their last gradient', () => {
    const parameters = [spec('a', 16), spec('h', 32, 'float16'), spec('b', 16)];
    expect(indices(parameters, 1024, 1024)).toEqual([[1], [2, 0]]);
  });

  test('offsets are aligned, padding counts', () => {
    const [bucket] = assignBuckets([spec('a', 3), spec('b', 5)], { firstBucketBytes: 1024, bucketBytes: 1024 });
    expect(bucket).toEqual({
      dtype: 'float32',
      count: 19,
      bytes: 76,
      slots: [
        { parameter: 1, offset: 0, count: 5 },
        { parameter: 0, offset: 16, count: 3 },
      ],
    });
  });

  test('no parameters, no buckets', () => {
    expect(assignBuckets([], { firstBucketBytes: 1, bucketBytes: 1 })).toEqual([]);
  });

  test.each([
    [[spec('a', 1), spec('a', 2)], 'usage', /'a' is registered twice/],
    [[spec('a', 1, 'int32')], 'unsupported', /'a' is int32/],
    [[spec('a', -1)], 'usage', /shape \[-1\]/],
  ] as const)('refuses %j', (parameters, code, message) => {
    const call = (): unknown => assignBuckets(parameters, { firstBucketBytes: 1, bucketBytes: 1 });
    expect(call).toThrow(expect.objectContaining({ code, message: expect.stringMatching(message) as string }));
  });

  test('refuses limits that are not positive integers', () => {
    expect(() => assignBuckets([], { firstBucketBytes: 0, bucketBytes: 1 })).toThrow(
      /'firstBucketBytes' must be a whole number from 1, not 0/,
    );
  });

  test('every parameter once, in order, aligned, within limits, disjoint; greedy', () => {
    const parameter = fc.record({ count: fc.nat(200), dtype: fc.constantFrom<DType>('float64', 'float32', 'float16', 'bfloat16') });
    fc.assert(
      fc.property(
        fc.array(parameter, { maxLength: 40 }),
        fc.integer({ min: 1, max: 600 }),
        fc.integer({ min: 1, max: 2000 }),
        (list, first, other) => {
          const parameters = list.map(({ count, dtype }, i) => spec(`p${i}`, count, dtype));
          const buckets = assignBuckets(parameters, { firstBucketBytes: first, bucketBytes: other });
          const seen = buckets.flatMap(({ slots }) => slots.map((slot) => slot.parameter));
          expect(seen.toSorted((a, b) => a - b)).toEqual(parameters.map((_, i) => i));
          const begun = new Map<DType, { bytes: number; limit: number }>();
          for (const { dtype, slots, count, bytes } of buckets) {
            const { bytes: elementBytes } = dtypeInfo(dtype);
            const limit = begun.has(dtype) ? other : first;
            expect(bytes).toBe(count * elementBytes);
            if (slots.length > 1) expect(bytes).toBeLessThanOrEqual(limit);
            let end = 0;
            for (const [i, { parameter: index, offset, count: elements }] of slots.entries()) {
              expect(parameters[index].dtype).toBe(dtype);
              expect(elements).toBe(countOf(parameters[index].shape));
              expect((offset * elementBytes) % parameterAlignment).toBe(0);
              expect(offset).toBeGreaterThanOrEqual(end);
              if (i > 0) expect(index).toBeLessThan(slots[i - 1].parameter);
              end = offset + elements;
            }
            expect(end).toBe(count);
            // Greedy: the first parameter of this bucket did not fit into the previous bucket of its dtype.
            const previous = begun.get(dtype);
            if (previous) {
              const start = Math.ceil(previous.bytes / parameterAlignment) * parameterAlignment;
              expect(start + slots[0].count * elementBytes).toBeGreaterThan(previous.limit);
            }
            begun.set(dtype, { bytes, limit });
          }
          const last = buckets.map(({ slots }) => slots.at(-1)!.parameter);
          expect(last).toEqual(last.toSorted((a, b) => b - a));
        },
      ),
    );
  });
});
