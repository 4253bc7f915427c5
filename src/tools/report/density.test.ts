import fc from 'fast-check';
import { expect, it } from 'vitest';
import { Density } from './density.ts';

/** Shares of busy and of waiting, 0…15. */
function levelsOf(density: Density, stretchUs: number, endUs: number): [busy: number, waiting: number][] {
  return [...Buffer.from(density.encoded(stretchUs, 0, endUs), 'base64')].map((byte) => [byte >> 4, byte & 15]);
}

it('says how much of each stretch was busy, and how much of that was waiting', () => {
  const density = new Density();
  density.add(0, 16, false);
  density.add(24, 8, true);
  density.add(40, 0.01, false);
  density.add(48, 32, false);
  density.add(50, 10, false);
  expect(levelsOf(density, 16, 96)).toEqual([
    [15, 0],
    [0, 8],
    [1, 0],
    [15, 0],
    [15, 0],
    [0, 0],
  ]);
});

it('keeps what it knew when the run turns out to be longer', () => {
  const density = new Density();
  density.add(0, 8, false);
  density.add(1e9, 1e6, true);
  const stretchUs = density.stretchUs;
  expect(Math.log2(stretchUs) % 1).toBe(0);
  const levels = levelsOf(density, stretchUs, 1.001e9);
  expect(levels.length).toBeLessThanOrEqual(2048);
  expect(levels[0]).toEqual([1, 0]);
  expect(levels.findIndex(([, waiting]) => waiting > 0)).toBe(Math.floor(1e9 / stretchUs));
});

it('loses no time, whatever the order and the length of spans', () => {
  const spans = fc.array(fc.tuple(fc.integer({ min: 0, max: 500 }), fc.integer({ min: 0, max: 60 })), { minLength: 1, maxLength: 50 });
  fc.assert(
    fc.property(spans, (all) => {
      const density = new Density();
      // One after another, so that none counts twice.
      let at = 0;
      const placed = all.map(([gap, length]) => {
        const start = at + gap * 1000;
        at = start + length * 1000;
        return [start, length * 1000] as const;
      });
      for (const [start, length] of placed.toReversed()) density.add(start, length, false);
      const stretchUs = Math.max(1, density.stretchUs);
      const levels = levelsOf(density, stretchUs, at);
      const busyUs = placed.reduce((sum, [, length]) => sum + length, 0);
      // Each stretch is rounded to a fifteenth; what is little shows, too.
      const told = levels.reduce((sum, [busy]) => sum + (busy / 15) * stretchUs, 0);
      expect(Math.abs(told - busyUs)).toBeLessThanOrEqual((levels.length * stretchUs) / 15 + stretchUs);
    }),
  );
});
