import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { Expressions, garbage, type Value } from './expression.ts';
import { IntervalMap } from './interval-map.ts';

const size = 40;
const write = fc.record({ offset: fc.nat(size - 1), length: fc.integer({ min: 1, max: size }), node: fc.nat(3) });

describe('IntervalMap', () => {
  it('is an array of values', () => {
    fc.assert(
      fc.property(fc.array(write, { maxLength: 30 }), (writes) => {
        const map = new IntervalMap(size, garbage);
        const array: Value[] = Array.from({ length: size }, () => garbage);
        for (const { offset, length, node } of writes) {
          const count = Math.min(length, size - offset);
          const first = count >> 1;
          const halves = [
            { offset, count: first, value: { node, delta: 0 } },
            { offset: offset + first, count: count - first, value: { node: node + 1, delta: offset } },
          ];
          map.write(halves.filter((half) => half.count > 0));
          for (const half of halves) array.fill(half.value, half.offset, half.offset + half.count);
        }
        const [from, to] = [size >> 2, size - 3];
        const read = map.read(from, to - from).flatMap(({ count, value }) => Array.from({ length: count }, () => value));
        expect(read).toEqual(array.slice(from, to));
        const all = map.read(0, size);
        expect(all.reduce((sum, { count }) => sum + count, 0)).toBe(size);
        // Equal neighbours are one interval.
        all.slice(1).forEach(({ value }, index) => expect(value).not.toEqual(all[index].value));
      }),
    );
  });
});

describe('Expressions', () => {
  it('are equal exactly when built alike, wherever they were copied', () => {
    const e = new Expressions();
    const leaf = (rank: number, delta: number): Value => e.leaf({ rank, buffer: 'data', delta });
    const sum = e.reduce(leaf(0, 0), leaf(1, 0));
    expect(e.reduce(leaf(0, -4), leaf(1, -4))).toEqual({ node: sum.node, delta: -4 });
    expect(e.reduce(leaf(0, 0), leaf(1, 1)).node).not.toBe(sum.node);
    expect(e.reduce(leaf(1, 0), leaf(0, 0)).node).not.toBe(sum.node);
    expect(e.final(sum).node).not.toBe(sum.node);
    expect(e.underFinal(e.final(sum))).toEqual(sum);
    expect(e.format({ ...e.final(sum), delta: 2 }, 5)).toBe('final((data[7] of 0 ⊕ data[7] of 1))');
  });

  it('list their leaves, unless there is garbage or a finished value among them', () => {
    const e = new Expressions();
    const leaf = (rank: number): Value => e.leaf({ rank, buffer: 'input', delta: rank });
    const sum = e.reduce(e.reduce(leaf(2), leaf(0)), leaf(1));
    expect(e.leavesOf({ ...sum, delta: sum.delta + 10 })).toEqual([2, 0, 1].map((rank) => ({ rank, buffer: 'input', delta: rank + 10 })));
    expect(e.leavesOf(e.reduce(sum, garbage))).toBeUndefined();
    expect(e.leavesOf(e.reduce(e.final(leaf(0)), leaf(1)))).toBeUndefined();
  });
});
