import fc from 'fast-check';
import { expect, it } from 'vitest';
import { dtypeInfo, dtypes } from '../../memory/dtype.ts';
import { planBuckets } from './buckets.ts';

const options = { bucketBytes: 4096, aloneBytes: 1024 };

it('every parameter is in exactly one place, of its dtype; places do not overlap; buckets keep their bounds', () => {
  const parameters = fc.array(fc.record({ dtype: fc.constantFrom(...dtypes.map(({ name }) => name)), count: fc.nat(600) }), {
    maxLength: 60,
  });
  fc.assert(
    fc.property(parameters, (list) => {
      const buckets = planBuckets(list, options);
      const seen = buckets.flatMap(({ members }) => members.map(({ index }) => index)).sort((a, b) => a - b);
      expect(seen).toEqual(list.map((_, index) => index));
      for (const { dtype, members, count, bytes, alone } of buckets) {
        expect(bytes).toBe(count * dtypeInfo(dtype).bytes);
        let end = 0;
        for (const member of members) {
          expect(member).toEqual({ index: member.index, from: end, count: list[member.index].count });
          expect(list[member.index].dtype).toBe(dtype);
          end += member.count;
        }
        expect(end).toBe(count);
        if (alone) expect(members).toHaveLength(1);
        else expect(bytes).toBeLessThanOrEqual(options.bucketBytes);
      }
      // Large ones are alone, small ones are not.
      list.forEach(({ dtype, count }, index) => {
        const own = buckets.find(({ members }) => members.some((member) => member.index === index));
        expect(own?.alone).toBe(count * dtypeInfo(dtype).bytes >= options.aloneBytes);
      });
    }),
    { numRuns: 500 },
  );
});

it('packs neighbours', () => {
  const small = Array.from({ length: 10_000 }, () => ({ dtype: 'float32', count: 64 }) as const);
  expect(planBuckets(small, { bucketBytes: 4 * 2 ** 20, aloneBytes: 2 ** 19 })).toHaveLength(1);
});
