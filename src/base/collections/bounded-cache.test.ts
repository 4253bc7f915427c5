import { getHeapStatistics } from 'node:v8';
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { BoundedCache } from './bounded-cache.ts';

it('holds at most so many entries; the one used least recently makes room', () => {
  const use = fc.record({ key: fc.integer({ min: 0, max: 8 }), put: fc.boolean() });
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 5 }), fc.array(use, { maxLength: 60 }), (most, uses) => {
      const dropped: string[] = [];
      const cache = new BoundedCache<number, string>(most, (value) => dropped.push(value));
      /** Keys and values, the least recently used first. */
      let model: [number, string][] = [];
      const expected: string[] = [];
      uses.forEach(({ key, put }, step) => {
        const known = model.find(([each]) => each === key);
        const value = put ? `value ${step}` : known?.[1];
        expect(put ? cache.put(key, `value ${step}`) : cache.get(key)).toBe(value);
        if (value === undefined) return;
        model = [...model.filter(([each]) => each !== key), [key, value]];
        if (model.length > most) expected.push(model.shift()![1]);
      });
      expect([...cache.values()].sort()).toEqual(model.map(([, value]) => value).sort());
      expect(dropped).toEqual(expected);
    }),
  );
});

it('drops at the wish of its owner without telling', () => {
  const dropped: string[] = [];
  const cache = new BoundedCache<string, string>(1, (value) => dropped.push(value));
  cache.put('a', 'A');
  cache.delete('a');
  cache.put('b', 'B');
  expect([cache.get('a'), cache.get('b'), dropped]).toEqual([undefined, 'B', []]);
});

it('allocates nothing on a hit', () => {
  const cache = new BoundedCache<string, object>(4);
  for (const key of ['a', 'b', 'c']) cache.put(key, {});
  const hit = (times: number): number => {
    // Not malloced_memory: a compiler in the background has its own.
    const before = getHeapStatistics().used_heap_size;
    for (let k = 0; k < times; k++) cache.get(k % 2 === 0 ? 'a' : 'b');
    return getHeapStatistics().used_heap_size - before;
  };
  hit(100_000);
  // An object for each hit would be 1.6 MB.
  const [, median] = [hit(100_000), hit(100_000), hit(100_000)].sort((a, b) => a - b);
  expect(median).toBeLessThan(200_000);
});
