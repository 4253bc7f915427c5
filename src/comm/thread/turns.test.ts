import { expect, it } from 'vitest';
import { VirtualClock } from '../../base/clock.ts';
import { turnsOf } from './turns.ts';

function turns({ shared }: { shared: boolean }) {
  const clock = new VirtualClock();
  let next: (() => void)[] = [];
  const giveWay = turnsOf({ clock, isShared: () => shared, nextTurn: (resume) => void next.push(resume) });
  const turn = (): void => {
    const due = next;
    next = [];
    for (const resume of due) resume();
  };
  return { clock, giveWay, turn };
}

it('whoever goes on and on is asked to wait for the next turn, once there', () => {
  const { clock, giveWay, turn } = turns({ shared: true });
  const resumed: number[] = [];
  const resume = (): void => void resumed.push(clock.now());
  expect(giveWay(resume)).toBe(false);
  clock.advance(1);
  expect(giveWay(resume)).toBe(false);
  clock.advance(1);
  expect(giveWay(resume)).toBe(true);
  expect(resumed).toEqual([]);
  turn();
  expect(resumed).toEqual([2]);
  // The next request belongs to a turn of its own.
  expect(giveWay(resume)).toBe(false);
});

it('time between turns counts for nobody', () => {
  const { clock, giveWay, turn } = turns({ shared: true });
  const resume = (): void => expect.unreachable();
  for (let k = 0; k < 3; k++) {
    expect(giveWay(resume)).toBe(false);
    turn();
    clock.advance(1000);
  }
});

it('a guest alone is never asked', () => {
  const { clock, giveWay } = turns({ shared: false });
  for (let k = 0; k < 3; k++) {
    expect(giveWay(() => expect.unreachable())).toBe(false);
    clock.advance(1000);
  }
});
