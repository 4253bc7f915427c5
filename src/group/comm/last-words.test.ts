/** A rank that fails waits for these before its script hears of it. */
import { describe, expect, it } from 'vitest';
import { VirtualClock } from '../../base/clock.ts';
import { answerMs, LastWords } from './last-words.ts';

/** The state of the waiting. */
async function hearing(words: LastWords): Promise<() => boolean> {
  let heard = false;
  void words.heard().then(() => (heard = true));
  await Promise.resolve();
  return () => heard;
}

describe('last words', () => {
  it('are heard when nothing was said', async () => {
    expect((await hearing(new LastWords(new VirtualClock(), () => [])))()).toBe(true);
  });

  it('are not heard before the store has them', async () => {
    const words = new LastWords(new VirtualClock(), () => []);
    let take = (): void => undefined;
    words.tellStore(new Promise((resolve) => (take = resolve)));
    words.onClosed(0);
    const heard = await hearing(words);
    expect(heard()).toBe(false);
    take();
    await expect.poll(heard).toBe(true);
  });

  it('are not waited for for ever where the store does not answer', async () => {
    const clock = new VirtualClock();
    const words = new LastWords(clock, () => []);
    words.tellStore(new Promise(() => undefined));
    const heard = await hearing(words);
    clock.advance(answerMs - 1);
    await Promise.resolve();
    expect(heard()).toBe(false);
    clock.advance(10 * answerMs);
    await expect.poll(heard).toBe(true);
  });
});
