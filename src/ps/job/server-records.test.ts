/** The records of a job's servers, as processes that wait for them see them. */
import { expect, it } from 'vitest';
import { VirtualClock } from '../../base/clock.ts';
import { HashStore } from '../../store/hash-store.ts';
import { ServerRecords } from './server-records.ts';

it('workers wait until every server has had a standby, and are told which has none', async () => {
  const clock = new VirtualClock();
  const records = new ServerRecords(new HashStore({ clock }));
  await records.noteDoubled(0, 1);
  const waiting = records.doubled(0, 3, 1000);
  waiting.catch(() => undefined);
  await new Promise((resolve) => setImmediate(resolve));
  clock.advance(1000);
  await expect(waiting).rejects.toMatchObject({
    code: 'timeout',
    message: expect.stringMatching(/^server 0, 2 of group 0 has had no standby within 1000 ms; start one of each/),
  });
  await records.noteDoubled(0, 0);
  await records.noteDoubled(0, 2);
  await records.doubled(0, 3, 1000);
});
