import { describe, expect, it } from 'vitest';
import { VirtualClock, type Timer } from '../clock.ts';
import { ShoalError } from '../errors.ts';
import { seededRandom } from '../random.ts';
import { retry, type RetryOptions } from './retry.ts';

const refused = (text = 'refused'): ShoalError => new ShoalError('peer-lost', text);

/** Runs promises that wait, then the timers of the next millisecond. */
async function pass(clock: VirtualClock, ms: number): Promise<void> {
  for (let k = 0; k < ms; k++) {
    for (let turn = 0; turn < 10; turn++) await Promise.resolve();
    clock.advance(1);
  }
  for (let turn = 0; turn < 10; turn++) await Promise.resolve();
}

class CountingClock extends VirtualClock {
  readonly running = new Set<Timer>();

  override setTimer(delayMs: number, callback: () => void): Timer {
    const inner = super.setTimer(delayMs, () => {
      this.running.delete(timer);
      callback();
    });
    const timer = {
      cancel: () => {
        this.running.delete(timer);
        inner.cancel();
      },
    };
    this.running.add(timer);
    return timer;
  }
}

function world(rest: Partial<RetryOptions> = {}): { clock: CountingClock; options: RetryOptions } {
  const clock = new CountingClock();
  return { clock, options: { clock, random: seededRandom(1), isFinal: ({ code }) => code === 'auth', ...rest } };
}

describe('retry', () => {
  it('gives the first success, after pauses that double up to a bound and are at least half as long', async () => {
    const { clock, options } = world();
    const startedMs: number[] = [];
    const outcome = retry(options, async () => {
      startedMs.push(clock.now());
      if (startedMs.length < 9) throw refused();
      return 'there';
    });
    await pass(clock, 1500);
    expect(await outcome).toEqual({ value: 'there' });
    const pauses = startedMs.slice(1).map((ms, k) => ms - startedMs[k]);
    expect(pauses).toHaveLength(8);
    for (const [k, pauseMs] of pauses.entries()) {
      const mostMs = Math.min(250, 10 * 2 ** k);
      expect(pauseMs).toBeGreaterThanOrEqual(mostMs / 2);
      expect(pauseMs).toBeLessThanOrEqual(mostMs);
    }
  });

  it('ends with a final error, at once', async () => {
    const { options } = world({ timeoutMs: 1000 });
    const outcome = await retry(options, async () => {
      throw new ShoalError('auth', 'wrong secret');
    });
    expect(outcome).toMatchObject({ why: 'final', attempts: 1, error: { message: 'wrong secret' } });
  });

  it('ends after so many attempts, without a last pause', async () => {
    const { clock, options } = world({ attemptsMax: 1 });
    const outcome = await retry(options, async () => {
      throw refused();
    });
    expect(outcome).toMatchObject({ why: 'over', attempts: 1, error: { message: 'refused' } });
    expect(clock.now()).toBe(0);
  });

  it('stops the attempt under way when the time is over, and keeps the reason that an earlier one gave', async () => {
    const { clock, options } = world({ timeoutMs: 100 });
    let attempts = 0;
    const left: number[] = [];
    const outcome = retry(options, (stop, leftMs) => {
      left.push(leftMs);
      if (++attempts === 1) return Promise.reject(refused('nobody listens'));
      return new Promise((_, reject) => stop.addEventListener('abort', () => reject(new ShoalError('timeout', 'no answer'))));
    });
    await pass(clock, 99);
    clock.advance(1);
    expect(await outcome).toMatchObject({ why: 'over', attempts: 2, error: { message: 'nobody listens' } });
    expect(left[0]).toBe(100);
    expect(left[1]).toBeLessThan(100);
  });

  it('does not count time in which the process got no CPU', async () => {
    const { clock, options } = world({ timeoutMs: 1000 });
    let isThere = false;
    const outcome = retry(options, async () => {
      if (!isThere) throw refused();
      return 1;
    });
    await pass(clock, 10);
    clock.stall(60_000);
    isThere = true;
    await pass(clock, 300);
    expect(await outcome).toEqual({ value: 1 });
  });

  it('is aborted in an attempt, in a pause and before the first attempt, and leaves no timer behind', async () => {
    for (const when of ['before', 'attempt', 'pause'] as const) {
      const abort = new AbortController();
      if (when === 'before') abort.abort();
      const { clock, options } = world({ timeoutMs: 10_000, signal: abort.signal, begin: when === 'pause' ? 'pause' : 'attempt' });
      let attempts = 0;
      const outcome = retry(options, (stop) => {
        attempts++;
        return new Promise((_, reject) => stop.addEventListener('abort', () => reject(refused())));
      });
      await pass(clock, 1);
      abort.abort();
      expect(await outcome).toMatchObject({ why: 'aborted', attempts: when === 'attempt' ? 1 : 0 });
      expect(attempts).toBe(when === 'attempt' ? 1 : 0);
      expect(clock.running.size).toBe(0);
    }
  });
});
