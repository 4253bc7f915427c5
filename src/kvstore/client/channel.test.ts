import { MessageChannel } from 'node:worker_threads';
import { expect, it } from 'vitest';
import { ShoalError } from '../../base/errors.ts';
import { ClientChannel } from './channel.ts';

it('hears what the other end said last, also when its end is heard first', async () => {
  const { port1, port2 } = new MessageChannel();
  const events = new SharedArrayBuffer(4);
  const channel = new ClientChannel({ local: 0, port: port1, events });
  const [answered, unanswered] = [1, 2].map((k) => channel.start({ type: 'barrier' }, `barrier ${k}`));
  port2.postMessage({ type: 'done', work: 1 });
  Atomics.add(new Int32Array(events), 0, 1);
  channel.end(new ShoalError('closed', 'the thread has ended'));
  await expect(unanswered).rejects.toMatchObject({ code: 'closed' });
  await answered;
  channel.close();
});
