/** inproc within one thread: the conformance suite and what is its own. Between threads: test/messaging-threads.test.ts. */
import { describe, expect, it } from 'vitest';
import { describeMessaging } from '../conformance.ts';
import { MessagingContext } from '../context.ts';
import { Dealer } from '../dealer.ts';
import { Msg } from '../msg.ts';
import { Router } from '../router.ts';

const secret = new TextEncoder().encode('secret');

describeMessaging('inproc', () => {
  let made = 0;
  return {
    context: (changes) => new MessagingContext({ world: 'inproc-test', secret, ...changes }),
    url: () => `inproc://router-${made++}`,
    rebinds: true,
  };
});

describe('inproc', () => {
  it('passes pointers by reference', async () => {
    await using context = new MessagingContext({ world: 'pointers', secret });
    await using router = new Router(context);
    await using dealer = new Dealer(context, { address: 5n });
    await router.bind('inproc://router');
    await dealer.connect('inproc://router');
    const shared = new Uint8Array(new SharedArrayBuffer(64), 8, 16);
    for (const text of ['first', 'again']) {
      const msg = new Msg(5n, 0n);
      msg.addFormatFrame('ps', shared, text);
      dealer.send(msg);
      const received = await router.receive();
      const [pointer, label] = received.parseFormatFrame('ps');
      expect([label, pointer.buffer, pointer.byteOffset, pointer.byteLength]).toEqual([text, shared.buffer, 8, 16]);
    }
  });

  it('worlds do not meet, and names are checked', async () => {
    await using one = new MessagingContext({ world: 'one', secret });
    await using two = new MessagingContext({ world: 'two', secret });
    await using router = new Router(one);
    await router.bind('inproc://router');
    await using dealer = new Dealer(two, { address: 1n });
    await expect(dealer.connect('inproc://router', { timeoutMs: 50 })).rejects.toMatchObject({ code: 'timeout' });
    await expect(router.bind('inproc://a/b')).rejects.toMatchObject({ code: 'usage' });
    await expect(router.bind('carrier://pigeon')).rejects.toMatchObject({ code: 'usage', message: expect.stringMatching(/inproc:\/\//) });
  });
});
