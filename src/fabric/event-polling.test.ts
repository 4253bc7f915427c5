/** A poller stops looking for frames soon when none come in time, and looks again now and then. */
import { describe, expect, it } from 'vitest';
import { VirtualClock } from '../base/clock.ts';
import { EventPolling } from './event-polling.ts';

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

describe('event polling', () => {
  it('goes on looking while frames come in time', async () => {
    const clock = new VirtualClock();
    const polling = new EventPolling(clock);
    polling.onPosted();
    for (let k = 0; k < 100; k++) {
      expect(polling.isLooking).toBe(true);
      await turn();
      clock.advance(0.05);
      polling.onFrame();
    }
    expect(polling.isLooking).toBe(true);
  });

  it('sleeps when none comes, for the next 1, 2, 4 … 256 frames', async () => {
    const clock = new VirtualClock();
    const polling = new EventPolling(clock);
    const slept: number[] = [];
    for (let round = 0; round < 10; round++) {
      let frames = 0;
      while (!polling.isLooking) {
        polling.onFrame();
        frames++;
      }
      slept.push(frames - 1);
      clock.advance(1);
      while (polling.isLooking) await turn();
    }
    expect(slept).toEqual([0, 1, 2, 4, 8, 16, 32, 64, 128, 256]);
  });

  it('counts from the beginning after one frame in time', async () => {
    const clock = new VirtualClock();
    const polling = new EventPolling(clock);
    for (let round = 0; round < 5; round++) {
      while (!polling.isLooking) polling.onFrame();
      clock.advance(1);
      while (polling.isLooking) await turn();
    }
    while (!polling.isLooking) polling.onFrame();
    polling.onFrame();
    clock.advance(1);
    while (polling.isLooking) await turn();
    polling.onFrame();
    expect(polling.isLooking).toBe(false);
    polling.onFrame();
    expect(polling.isLooking).toBe(true);
  });

  it('counts a frame that comes late, as where both ends share a CPU, as none', () => {
    const clock = new VirtualClock();
    const polling = new EventPolling(clock);
    polling.onPosted();
    clock.advance(0.2);
    polling.onFrame();
    expect(polling.isLooking).toBe(false);
  });

  it('ends when the clock stands still', async () => {
    const polling = new EventPolling(new VirtualClock());
    polling.onPosted();
    let turns = 0;
    while (polling.isLooking) {
      turns++;
      await turn();
    }
    expect(turns).toBeGreaterThan(10);
  });
});
