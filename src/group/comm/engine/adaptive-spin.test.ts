import { describe, expect, it } from 'vitest';
import { AdaptiveSpin } from './adaptive-spin.ts';

function wait(spin: AdaptiveSpin, fromMs: number, ms: number): boolean {
  const polls = spin.waits(fromMs);
  spin.ends(fromMs + ms);
  return polls;
}

describe('adaptive spin', () => {
  it('polls for the time it may, then sleeps', () => {
    const spin = new AdaptiveSpin(0.1, { adapts: true });
    expect([0, 0.05, 0.09, 0.1, 5].map((nowMs) => spin.waits(nowMs))).toEqual([true, true, true, false, false]);
  });

  it('stops polling where waits are long, and begins again where they are short', () => {
    const spin = new AdaptiveSpin(0.1, { adapts: true });
    const polled = Array.from({ length: 20 }, (_, k) => wait(spin, k * 10, 3));
    expect(polled).toEqual(polled.map((_, k) => k === 0));
    const again = Array.from({ length: 20 }, (_, k) => wait(spin, 1000 + k, 0.01));
    expect(again.indexOf(true)).toBeGreaterThan(0);
    expect(again.slice(again.indexOf(true))).not.toContain(false);
  });

  it('polls in every wait where it is not to adapt', () => {
    const spin = new AdaptiveSpin(0.1, { adapts: false });
    for (let k = 0; k < 20; k++) expect(wait(spin, k * 10, 3)).toBe(true);
  });

  it('does not count time without anything to wait for', () => {
    const spin = new AdaptiveSpin(0.1, { adapts: true });
    for (let k = 0; k < 20; k++) {
      expect(spin.waits(k * 10)).toBe(true);
      spin.stops();
      spin.ends(k * 10 + 5);
    }
  });

  it('never polls when it may not', () => {
    const spin = new AdaptiveSpin(0, { adapts: true });
    expect(wait(spin, 0, 0)).toBe(false);
    expect(wait(spin, 1, 0)).toBe(false);
  });
});
