/** A poller stops looking for frames soon when none come in time, and looks again now and then. */
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { VirtualClock } from '../base/clock.ts';
import { EventPolling } from './event-polling.ts';

/** Turns of the event loop that are asked for, and pass when the test says so. */
let turns: (() => void)[] = [];
const turn = (): void => turns.splice(0).forEach((each) => each());
/** It asks for turns while it looks. */
const isLooking = (): boolean => turns.length > 0;

beforeEach(() => {
  turns = [];
  vi.stubGlobal('setImmediate', (callback: () => void) => turns.push(callback));
});
afterEach(() => void vi.unstubAllGlobals());

describe('event polling', () => {
  it('goes on looking while frames come in time', () => {
    const clock = new VirtualClock();
    const polling = new EventPolling(clock);
    polling.onPosted();
    for (let k = 0; k < 100; k++) {
      expect(isLooking()).toBe(true);
      turn();
      clock.advance(0.05);
      polling.onFrame();
    }
    expect(isLooking()).toBe(true);
  });

  it('sleeps when none comes, for the next 1, 2, 4 … 256 frames', () => {
    const clock = new VirtualClock();
    const polling = new EventPolling(clock);
    const slept: number[] = [];
    for (let round = 0; round < 10; round++) {
      let frames = 0;
      while (!isLooking()) {
        polling.onFrame();
        frames++;
      }
      slept.push(frames - 1);
      clock.advance(1);
      while (isLooking()) turn();
    }
    expect(slept).toEqual([0, 1, 2, 4, 8, 16, 32, 64, 128, 256]);
  });

  it('counts from the beginning after one frame in time', () => {
    const clock = new VirtualClock();
    const polling = new EventPolling(clock);
    for (let round = 0; round < 5; round++) {
      while (!isLooking()) polling.onFrame();
      clock.advance(1);
      while (isLooking()) turn();
    }
    while (!isLooking()) polling.onFrame();
    polling.onFrame();
    clock.advance(1);
    while (isLooking()) turn();
    polling.onFrame();
    expect(isLooking()).toBe(false);
    polling.onFrame();
    expect(isLooking()).toBe(true);
  });

  it('counts a frame that comes late, as where both ends share a CPU, as none', () => {
    const clock = new VirtualClock();
    const polling = new EventPolling(clock);
    polling.onPosted();
    clock.advance(0.3);
    polling.onFrame();
    turn();
    expect(isLooking()).toBe(false);
  });

  it('ends when the clock stands still', () => {
    const polling = new EventPolling(new VirtualClock());
    polling.onPosted();
    let passed = 0;
    for (; isLooking(); passed++) turn();
    expect(passed).toBeGreaterThan(10);
  });
});
