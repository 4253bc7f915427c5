import { expect, it } from 'vitest';
import { VirtualClock } from '../../base/clock.ts';
import { heartbeatMs, ListeningTime } from './heartbeat.ts';

it('does not count the time in which its thread was elsewhere', () => {
  const clock = new VirtualClock();
  const listening = new ListeningTime(clock);
  clock.advance(heartbeatMs);
  listening.tick();
  expect(listening.nowMs).toBe(heartbeatMs);
  clock.advance(60_000);
  listening.tick();
  expect(listening.nowMs).toBe(3 * heartbeatMs);
});
