import { describe, expect, it } from 'vitest';
import { lookMs, Silence } from './silence.ts';
import type { Pulse } from './pulse.ts';

const limitMs = 5000;

/** The pulse of a peer, as it says itself when it is asked. */
function silence(pulse: Pulse): { peer: Silence; asked: () => number; pass: (byMs: number) => Promise<string | undefined> } {
  let asked = 0;
  const ask = (): Promise<Pulse> => {
    asked++;
    return Promise.resolve(pulse);
  };
  const peer = new Silence(limitMs, ask);
  const pass = async (byMs: number): Promise<string | undefined> => {
    let why: string | undefined;
    for (let ms = 0; ms < byMs && why === undefined; ms += lookMs) {
      why = peer.look();
      await new Promise(setImmediate);
    }
    return why;
  };
  return { peer, asked: () => asked, pass };
}

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
    expect(await pass(lookMs)).toContain('has been silent for 5 s');
  });

  it('is lost after the limit when its process is stopped', async () => {
    const { pass } = silence('silent');
    expect(await pass(limitMs)).toBe(undefined);
    expect(await pass(lookMs)).toContain('was it stopped?');
  });

  it('is lost at once when its process has ended', async () => {
    const { pass } = silence('ended');
    expect(await pass(limitMs / 2)).toBe('has ended without a word');
  });

  it('is silent from when it was heard of last', async () => {
    const { peer, pass } = silence('silent');
    expect(await pass(limitMs)).toBe(undefined);
    peer.heard();
    expect(await pass(limitMs)).toBe(undefined);
    expect(await pass(lookMs)).toContain('has been silent');
  });
});
