/** When requests leave, on virtual time: together in one turn, alone when nobody comes, later when that saves requests. */
import { describe, expect, it } from 'vitest';
import { VirtualClock } from '../../base/clock.ts';
import { ReceiveWindow } from './receive-window.ts';

function world(itemsMax = 1000): {
  clock: VirtualClock;
  window: ReceiveWindow<number>;
  sent: { atMs: number; items: readonly number[] }[];
} {
  const clock = new VirtualClock();
  const sent: { atMs: number; items: readonly number[] }[] = [];
  const window = new ReceiveWindow<number>({ clock, itemsMax, send: (items) => sent.push({ atMs: clock.now(), items }) });
  return { clock, window, sent };
}

/** Steps of `count` receives that are `gapMs` apart; a request takes `roundTripMs`. @returns requests of the last step. */
function steps(given: { gapMs: number; roundTripMs: number; count: number }): { requests: number; waitMs: number } {
  const { clock, window, sent } = world();
  let before = 0;
  for (let step = 0; step < 40; step++) {
    before = sent.length;
    for (let k = 0; k < given.count; k++) {
      window.add(k);
      clock.advance(0);
      clock.advance(given.gapMs);
    }
    window.observeRoundTrip(given.roundTripMs);
    clock.advance(1000);
  }
  return { requests: sent.length - before, waitMs: window.waitMs };
}

describe('the window of receives', () => {
  it('takes what comes in one turn together, without waiting', () => {
    const { clock, window, sent } = world();
    for (let k = 0; k < 5; k++) window.add(k);
    expect(sent).toEqual([]);
    clock.advance(0);
    expect(sent).toEqual([{ atMs: 0, items: [0, 1, 2, 3, 4] }]);
    expect(window.waitMs).toBe(0);
  });

  it('waits where receives come one after the other, faster than a round trip', () => {
    const { requests, waitMs } = steps({ gapMs: 0.5, roundTripMs: 20, count: 20 });
    expect(waitMs).toBeGreaterThan(0.5);
    expect(waitMs).toBeLessThanOrEqual(10);
    expect(requests).toBeLessThan(15);
  });

  it('does not wait where they come slower than a round trip', () => {
    expect(steps({ gapMs: 50, roundTripMs: 5, count: 20 })).toEqual({ requests: 20, waitMs: 0 });
  });

  it('stops waiting when nobody comes any more', () => {
    const { clock, window } = world();
    window.observeRoundTrip(20);
    for (let k = 0; k < 20; k++) {
      window.add(k);
      clock.advance(0);
      clock.advance(4);
    }
    expect(window.waitMs).toBeGreaterThan(0);
    for (let k = 0; k < 20; k++) {
      window.add(k);
      clock.advance(1000);
    }
    expect(window.waitMs).toBe(0);
  });

  it('sends what is full, and nothing that was taken out', () => {
    const { clock, window, sent } = world(3);
    for (let k = 0; k < 4; k++) window.add(k);
    expect(sent.map(({ items }) => items)).toEqual([[0, 1, 2]]);
    expect(window.remove(3)).toBe(true);
    expect(window.remove(3)).toBe(false);
    clock.advance(1);
    expect(sent).toHaveLength(1);
    window.add(7);
    clock.advance(1);
    expect(sent[1].items).toEqual([7]);
  });
});
