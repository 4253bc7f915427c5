/** Waits that end. */
import type { Clock, Timer } from '../../base/clock.ts';

/** Resolves when `work` does or after `timeoutMs`, whichever is first. */
export async function within(clock: Clock, timeoutMs: number, work: Promise<unknown>): Promise<void> {
  let timer: Timer | undefined;
  const late = new Promise<void>((resolve) => {
    timer = clock.setTimer(timeoutMs, resolve, { keepAlive: true });
  });
  try {
    await Promise.race([work, late]);
  } finally {
    timer?.cancel();
  }
}
