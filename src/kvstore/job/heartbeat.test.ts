import { describe, expect, it } from 'vitest';
import { VirtualClock } from '../../base/clock.ts';
import { heartbeatMs, ListeningTime, Silence } from './heartbeat.ts';
import type { Pulse } from './pulse.ts';

const limitMs = 5000;

/** Of a peer that says of itself what `pulse` is, when it is asked. */
function silence(pulse: Pulse): {
  clock: VirtualClock;
  peer: Silence;
  asked: () => number;
  pass: (byMs: number) => Promise<string | undefined>;
} {
  const clock = new VirtualClock();
  let asked = 0;
  const ask = (): Promise<Pulse> => {
    asked++;
    return Promise.resolve(pulse);
  };
  const peer = new Silence({ listening: new ListeningTime(clock), limitMs, ask });
  const pass = async (byMs: number): Promise<string | undefined> => {
    let why: string | undefined;
    for (let ms = 0; ms < byMs && why === undefined; ms += heartbeatMs) {
      clock.advance(heartbeatMs);
      why = peer.look();
      await new Promise(setImmediate);
    }
    return why;
  };
  return { clock, peer, asked: () => asked, pass };
}

it('does not count the time in which its thread was elsewhere', () => {
  const clock = new VirtualClock();
  const listening = new ListeningTime(clock);
  clock.advance(heartbeatMs);
  expect(listening.nowMs).toBe(heartbeatMs);
  clock.stall(60_000);
  expect(listening.nowMs).toBe(2 * heartbeatMs);
  // Every turn comes late.
  for (let turn = 0; turn < 4; turn++) clock.stall(3000);
  expect(listening.nowMs).toBe(6 * heartbeatMs);
});

describe('a peer that says nothing', () => {
  it('is not asked before it has been silent for a while', async () => {
    const { asked, pass } = silence('runs');
    expect(await pass(limitMs / 4)).toBe(undefined);
    expect(asked()).toBe(0);
  });

  it('is there while its process runs', async () => {
    const { asked, pass } = silence('runs');
    expect(await pass(20 * limitMs)).toBe(undefined);
    expect(asked()).toBeLessThanOrEqual(20 * 4);
  });

  it('is lost when its process runs and has lost the connection', async () => {
    const { peer, pass } = silence('runs');
    peer.isConnected = false;
    expect(await pass(limitMs)).toBe(undefined);
    expect(await pass(heartbeatMs)).toContain('has been silent for 5 s');
  });

  it('is lost after the limit when its process is stopped', async () => {
    const { pass } = silence('silent');
    expect(await pass(limitMs)).toBe(undefined);
    expect(await pass(heartbeatMs)).toContain('was it stopped?');
  });

  it('is lost at once when its process has ended', async () => {
    const { pass } = silence('ended');
    expect(await pass(limitMs / 2)).toBe('has ended without a word');
  });

  it('is not lost by whoever was stopped itself', async () => {
    const { clock, peer, pass } = silence('silent');
    expect(await pass(limitMs / 2)).toBe(undefined);
    clock.stall(10 * limitMs);
    expect(peer.look()).toBe(undefined);
    peer.heard();
    expect(await pass(limitMs)).toBe(undefined);
  });
});
