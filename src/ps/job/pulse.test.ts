import { expect, it } from 'vitest';
import { systemClock } from '../../base/clock.ts';
import { systemRandom } from '../../base/random.ts';
import { askPulse, PulseThread } from './pulse.ts';

const place = { world: 'w/pulse', secret: new Uint8Array(16).fill(7) };
const asking = { ...place, clock: systemClock, random: systemRandom };

it('a thread answers those who know the secret, and none once it is closed', async () => {
  const thread = new PulseThread();
  const url = `tcp://127.0.0.1:${await thread.listen({ ...place, host: '127.0.0.1' })}`;
  expect(await askPulse(url, asking)).toBe('runs');
  expect(await askPulse(url, { ...asking, secret: new Uint8Array(16) })).toBe('ended');
  await thread.close();
  expect(await askPulse(url, asking)).toBe('ended');
});

it('a thread that ended before it was asked to listen says so', async () => {
  const thread = new PulseThread();
  await thread.close();
  await expect(thread.listen({ ...place, host: '127.0.0.1' })).rejects.toMatchObject({
    code: 'system',
    message: expect.stringContaining('pulse thread ended with code'),
  });
});
