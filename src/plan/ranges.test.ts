import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { joined, lineCount, pieces, segments, split, type Range } from './ranges.ts';

/** Checks that ranges follow each other from `offset` on and hold `count` elements. */
function expectCover(ranges: readonly Range[], { offset, count }: Range): void {
  let at = offset;
  for (const range of ranges) {
    expect(range.offset).toBe(at);
    at += range.count;
  }
  expect(at).toBe(offset + count);
}

describe('split', () => {
  it('covers exactly, begins on lines, and is even to within a line', () => {
    fc.assert(
      fc.property(fc.nat(100_000), fc.integer({ min: 1, max: 100 }), (count, parts) => {
        const shares = split(count, parts);
        expect(shares).toHaveLength(parts);
        expectCover(shares, { offset: 0, count });
        for (const share of shares.filter((each) => each.count > 0)) expect(share.offset % lineCount).toBe(0);
        const sizes = shares.map((share) => share.count);
        expect(Math.max(...sizes) - Math.min(...sizes)).toBeLessThanOrEqual(2 * lineCount - 1);
      }),
    );
  });

  it('gives whole lines to few when there are fewer lines than parts', () => {
    expect(split(20, 4).map(({ count }) => count)).toEqual([0, 16, 0, 4]);
  });
});

describe('pieces', () => {
  it('cover exactly, none empty, none larger than allowed', () => {
    fc.assert(
      fc.property(fc.nat(1000), fc.nat(5000), fc.integer({ min: 1, max: 600 }), (offset, count, most) => {
        const cut = pieces({ offset, count }, most);
        expectCover(cut, { offset, count });
        for (const piece of cut) {
          expect(piece.count).toBeGreaterThan(0);
          expect(piece.count).toBeLessThanOrEqual(most);
        }
      }),
    );
  });

  it('are of nearly equal size', () => {
    expect(pieces({ offset: 0, count: 130 }, 64).map(({ count }) => count)).toEqual([48, 48, 34]);
  });
});

describe('segments and joined', () => {
  it('segments follow each other; joined undoes the cuts', () => {
    fc.assert(
      fc.property(fc.array(fc.nat(9), { minLength: 1 }), (counts) => {
        const total = counts.reduce((sum, count) => sum + count, 0);
        expectCover(segments(counts), { offset: 0, count: total });
        expect(joined(segments(counts).toReversed())).toEqual(total === 0 ? [] : [{ offset: 0, count: total }]);
      }),
    );
  });

  it('joined keeps gaps', () => {
    expect(
      joined([
        { offset: 8, count: 2 },
        { offset: 0, count: 4 },
        { offset: 4, count: 1 },
      ]),
    ).toEqual([
      { offset: 0, count: 5 },
      { offset: 8, count: 2 },
    ]);
  });
});
