/** inproc within one thread: the conformance suite and what is its own. Between threads: test/messaging/messaging-threads.test.ts. */
import { describe, expect, it } from 'vitest';
import { UnhurriedClock } from '../../../base/testing/unhurried-clock.ts';
import { describeMessaging } from '../../conformance.ts';
import { MessagingContext } from '../../context.ts';
import { Dealer } from '../../dealer.ts';
import { Msg } from '../../msg.ts';
import { Router } from '../../router.ts';
import { runTogether } from '../../testing/check-runner.ts';
import { messagingChecks } from '../../testing/role-checks.ts';

const secret = new TextEncoder().encode('secret');
const clock = new UnhurriedClock();

describeMessaging('inproc', () => {
  let made = 0;
  return {
    context: (changes) => new MessagingContext({ world: 'inproc-test', secret, ...changes }),
    url: () => `inproc://router-${made++}`,
    rebinds: true,
  };
});

/** Processes run the same over what joins them: test/messaging/messaging-processes.test.ts. */
it.each(messagingChecks)('inproc, all parts in one thread: $name', (check) => {
  let made = 0;
  return runTogether(check, {
    context: (changes) => new MessagingContext({ world: `checks of ${check.name}`, secret, ...changes }),
    url: () => `inproc://router-${made++}`,
    rebinds: true,
  });
});

describe('inproc', () => {
  it('passes pointers by reference', async () => {
    await using context = new MessagingContext({ world: 'pointers', secret, clock });
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

  it('passes a message of nothing but pointers, as many as a message may have', async () => {
    await using context = new MessagingContext({ world: 'many', secret, clock });
    await using router = new Router(context);
    await using dealer = new Dealer(context, { address: 5n });
    await router.bind('inproc://router');
    await dealer.connect('inproc://router');
    const shared = [1, 2, 3].map((fill) => new Uint8Array(new SharedArrayBuffer(70_000)).fill(fill));
    for (const count of [3000, 30_000, 65_534]) {
      const msg = new Msg(5n, 0n);
      msg.addFormatFrame('p'.repeat(count), ...Array.from({ length: count }, (_, k) => shared[k % 3].subarray(k, k + 1)));
      dealer.send(msg);
      const { pointers } = await router.receive();
      expect(pointers.every((pointer, k) => pointer.byteOffset === k && pointer[0] === (k % 3) + 1)).toBe(true);
      expect(pointers.length).toBe(count);
    }
  });

  it('goes on, in order, after more memories than a pipe knows', async () => {
    await using context = new MessagingContext({ world: 'memories', secret, clock });
    await using router = new Router(context);
    await using dealer = new Dealer(context, { address: 5n });
    await router.bind('inproc://router');
    await dealer.connect('inproc://router');
    const messages = 90;
    for (let k = 0; k < messages; k++) {
      const msg = new Msg(5n, 0n);
      msg.setTarget(k, 0);
      msg.addFormatFrame('p'.repeat(100), ...Array.from({ length: 100 }, () => new Uint8Array(new SharedArrayBuffer(8)).fill(k)));
      dealer.send(msg);
      await dealer.flushed();
    }
    for (let k = 0; k < messages; k++) {
      const msg = await router.receive();
      expect([msg.targetValue, msg.pointers.length, msg.pointers[99][0]]).toEqual([k, 100, k]);
    }
  });

  it('who waits for room, or until all has arrived, hears when the dealer ends', async () => {
    await using context = new MessagingContext({ world: 'ends', secret, clock, limits: { queueMessages: 1, reconnectMs: 20 } });
    const router = new Router(context, { limits: { windowMessages: 1 } });
    await router.bind('inproc://router');
    const closed = new Dealer(context, { address: 1n });
    const lost = new Dealer(context, { address: 2n });
    await lost.connect('inproc://router');
    // The whole window; what follows waits in the dealer.
    lost.send(new Msg(2n, 0n));
    await lost.flushed();
    for (const { dealer, code, end } of [
      { dealer: closed, code: 'closed', end: () => closed.close({ timeoutMs: 0 }) },
      { dealer: lost, code: 'peer-lost', end: () => router.close() },
    ]) {
      dealer.send(new Msg(dealer.address, 0n));
      const writable = dealer.writable();
      const flushed = expect(dealer.flushed()).rejects.toMatchObject({ code });
      await end();
      await flushed;
      await writable;
      expect(() => dealer.send(new Msg(dealer.address, 0n))).toThrow(expect.objectContaining({ code }));
      await expect(dealer.flushed()).rejects.toMatchObject({ code });
      await dealer.close({ timeoutMs: 0 });
    }
  });

  it('who waits at a router for an address hears when what waits there goes another way, or the router ends', async () => {
    await using context = new MessagingContext({ world: 'moves', secret, clock, limits: { queueMessages: 1 } });
    await using router = new Router(context);
    await router.bind('inproc://router');
    router.send(new Msg(0n, 7n));
    router.send(new Msg(0n, 8n));
    const moved = router.writable(7n);
    const left = router.writable(8n);
    await using dealer = new Dealer(context, { address: 5n });
    await dealer.connect('inproc://router');
    dealer.send(new Msg(7n, 0n));
    expect((await dealer.receive()).destination).toBe(7n);
    await moved;
    const flushed = expect(router.flushed()).rejects.toMatchObject({ code: 'closed' });
    expect(await router.close({ timeoutMs: 0 })).toBe(1);
    await left;
    await flushed;
  });

  it('worlds do not meet, and names are checked', async () => {
    await using one = new MessagingContext({ world: 'one', secret, clock });
    await using two = new MessagingContext({ world: 'two', secret, clock });
    await using router = new Router(one);
    await router.bind('inproc://router');
    await using dealer = new Dealer(two, { address: 1n });
    await expect(dealer.connect('inproc://router', { timeoutMs: 50 })).rejects.toMatchObject({ code: 'timeout' });
    await expect(router.bind('inproc://a/b')).rejects.toMatchObject({ code: 'usage' });
    await expect(router.bind('carrier://pigeon')).rejects.toMatchObject({ code: 'usage', message: expect.stringMatching(/inproc:\/\//) });
  });
});
