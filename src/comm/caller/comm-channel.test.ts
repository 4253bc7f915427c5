import { MessageChannel } from 'node:worker_threads';
import { expect, it } from 'vitest';
import { ShoalError } from '../../base/errors.ts';
import { CommChannel } from './comm-channel.ts';
import { PortHost } from './comm-host.ts';
import { eventMemory } from '../shared/thread-protocol.ts';
import { GuestPort } from '../thread/guest.ts';

type Question = { readonly type: 'ask'; readonly work: number };

function connected() {
  const { port1, port2 } = new MessageChannel();
  const events = eventMemory();
  let host!: PortHost<Question, never>;
  const channel = new CommChannel<Question, string>((handlers) => (host = new PortHost({ port: port1, events }, handlers)));
  return { channel, host, guest: new GuestPort<Question, never>({ port: port2, events }) };
}

const gone = new ShoalError('closed', 'the thread has ended');

it('hears what the other end said last, also when its end is heard first', async () => {
  const { channel, host, guest } = connected();
  const [answered, unanswered] = [1, 2].map((k) => channel.start({ type: 'ask' }, `question ${k}`));
  guest.settle(1, undefined);
  host.end(gone);
  await expect(unanswered).rejects.toMatchObject({ code: 'closed' });
  await answered;
  await channel.leave(gone);
});

it('gives an answer to the work it is of, and what a hook throws is the error of that work', async () => {
  const { channel, guest } = connected();
  guest.onCommand(({ work }) => guest.settle(work, undefined, `answer ${work}`));
  const answers: unknown[] = [];
  const onSuccess = (answer: unknown): void => {
    answers.push(answer);
    if (answers.length === 2) throw new Error('not wanted');
  };
  const first = channel.start({ type: 'ask' }, 'the first', { onSuccess });
  const second = channel.start({ type: 'ask' }, 'the second', { onSuccess });
  await first;
  await expect(second).rejects.toMatchObject({ code: 'usage', message: 'not wanted' });
  expect(answers).toEqual(['answer 1', 'answer 2']);
  await channel.leave(gone);
});

it('fails what is pending and what comes later when the guest cannot go on, once', async () => {
  const { channel, guest } = connected();
  const pending = channel.start({ type: 'ask' }, 'a question');
  guest.emit({ type: 'failed', error: gone.toData(), begun: false });
  await expect(channel.ready()).rejects.toMatchObject({ code: 'closed' });
  expect(channel.hasBegun).toBe(false);
  await expect(pending).rejects.toMatchObject({ code: 'closed' });
  await channel.leave(new ShoalError('usage', 'too late to matter'));
  await expect(channel.start({ type: 'ask' }, 'another')).rejects.toMatchObject({ code: 'closed' });
});
