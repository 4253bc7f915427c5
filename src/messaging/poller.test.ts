/** A poller beyond the conformance suite: sockets of several backends at once, and the end of its waiting for good. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import { systemRandom } from '../base/random.ts';
import { UnhurriedClock } from '../base/testing/unhurried-clock.ts';
import { LoopbackNetwork } from '../fabric/testing/loopback.ts';
import { createRegionAllocator } from '../memory/regions/allocator.ts';
import { MessagingContext } from './context.ts';
import { Dealer } from './dealer.ts';
import { Msg } from './msg.ts';
import { Poller } from './poller.ts';
import { Router } from './router.ts';

const world = 'poller-test';
const secret = new TextEncoder().encode('secret');
const clock = new UnhurriedClock();

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

describe('a poller', () => {
  it('waits for sockets of several backends at once, and gives each its turn', async () => {
    const folder = await mkdtemp(join(tmpdir(), 'shoal-poller-'));
    cleanups.push(() => rm(folder, { recursive: true }));
    const network = new LoopbackNetwork();
    const contextOf = (rank: number): MessagingContext => {
      const identity = { world, rank };
      const fabric = network.createFabric({ identity, secret, clock, random: systemRandom });
      cleanups.push(() => fabric.close());
      const context = new MessagingContext({ world, secret, clock, fabric: { fabric, identity, regions: createRegionAllocator() } });
      cleanups.push(() => context.close());
      return context;
    };
    const [near, far] = [contextOf(0), contextOf(1)];
    const pairs: { router: Router; dealer: Dealer }[] = [];
    for (const [k, wanted] of ['inproc://poller', 'tcp://127.0.0.1:*', `ipc://${join(folder, 'router')}`, 'fabric://loopback'].entries()) {
      const router = new Router(near);
      const dealer = new Dealer(far, { address: BigInt(k + 1) });
      cleanups.push(
        () => router.close({ timeoutMs: 0 }),
        () => dealer.close({ timeoutMs: 0 }),
      );
      await dealer.connect(await router.bind(wanted));
      pairs.push({ router, dealer });
    }
    using poller = new Poller(
      pairs.map(({ router }) => router),
      { clock },
    );
    expect(await poller.wait(0)).toBeNull();
    for (const { router, dealer } of pairs) {
      const waiting = poller.wait(Infinity);
      dealer.send(new Msg(dealer.address, 0n));
      expect(await waiting).toBe(router);
      expect((await router.receive()).source).toBe(dealer.address);
    }
    expect(await poller.wait(0)).toBeNull();
    for (const { dealer } of pairs) dealer.send(new Msg(dealer.address, 0n));
    for (const { router } of pairs) await expect.poll(() => router.ready).toBe(true);
    const turns = new Set<unknown>();
    for (const _ of pairs) turns.add(await poller.wait(Infinity));
    expect(turns).toEqual(new Set(pairs.map(({ router }) => router)));
  });

  it('tells once that a socket has ended, after what it had, and goes on with the others', async () => {
    const context = new MessagingContext({ world, secret, clock });
    cleanups.push(() => context.close());
    const [ending, staying] = [new Router(context), new Router(context)];
    cleanups.push(() => staying.close());
    const dealers = [new Dealer(context, { address: 1n }), new Dealer(context, { address: 2n })];
    for (const [k, router] of [ending, staying].entries()) await dealers[k].connect(await router.bind(`inproc://ends-${k}`));
    for (const dealer of dealers) cleanups.push(() => dealer.close({ timeoutMs: 0 }));
    using poller = new Poller([ending, staying], { clock });
    dealers[0].send(new Msg(1n, 0n));
    await expect.poll(() => ending.ready).toBe(true);
    await ending.close({ timeoutMs: 0 });
    expect([await poller.wait(0), ending.tryReceive()?.source]).toEqual([ending, 1n]);
    expect(await poller.wait(Infinity)).toBe(ending);
    await expect(ending.receive()).rejects.toMatchObject({ code: 'closed' });
    expect(await poller.wait(0)).toBeNull();
    dealers[1].send(new Msg(2n, 0n));
    expect(await poller.wait(Infinity)).toBe(staying);
    await staying.receive();
    await staying.close({ timeoutMs: 0 });
    expect(await poller.wait(Infinity)).toBe(staying);
    await expect(poller.wait(Infinity)).rejects.toMatchObject({ code: 'closed', message: expect.stringMatching(/all sockets/) });
    expect([poller.remove(staying), poller.terminated]).toEqual([false, false]);
  });

  it('is iterated until all sockets have ended, it is interrupted or closed', async () => {
    const context = new MessagingContext({ world, secret, clock });
    cleanups.push(() => context.close());
    const router = new Router(context);
    const dealer = new Dealer(context, { address: 1n });
    cleanups.push(() => dealer.close({ timeoutMs: 0 }));
    await dealer.connect(await router.bind('inproc://iterated'));
    using poller = new Poller(router, { clock });
    for (const type of [1, 2]) {
      const msg = new Msg(1n, 0n);
      msg.type = type;
      dealer.send(msg);
    }
    const received: unknown[] = [];
    for await (const socket of poller) {
      received.push(socket.ended ? 'ended' : (await socket.receive()).type);
      if (received.length === 2) await socket.close({ timeoutMs: 0 });
    }
    expect(received).toEqual([1, 2, 'ended']);

    const iterate = async (polled: Poller): Promise<number> => {
      let sockets = 0;
      for await (const _ of polled) sockets++;
      return sockets;
    };
    const empty = new Poller([], { clock });
    const iterated = iterate(empty);
    await expect(empty.wait(0)).rejects.toMatchObject({ code: 'usage' });
    empty.close();
    expect([await iterated, empty.terminated, await iterate(empty)]).toEqual([0, false, 0]);
    const interrupted = new Poller([], { clock });
    const ended = iterate(interrupted);
    interrupted.interrupt();
    expect([await ended, await iterate(interrupted)]).toEqual([0, 0]);
  });

  it('forgets a socket that is removed, also while it waits', async () => {
    const context = new MessagingContext({ world, secret, clock });
    cleanups.push(() => context.close());
    const router = new Router(context);
    cleanups.push(() => router.close());
    const dealer = new Dealer(context, { address: 1n });
    cleanups.push(() => dealer.close({ timeoutMs: 0 }));
    await dealer.connect(await router.bind('inproc://removed'));
    using poller = new Poller(router, { clock });
    const waiting = poller.wait(50);
    expect([poller.remove(router), poller.remove(router)]).toEqual([true, false]);
    dealer.send(new Msg(1n, 0n));
    await expect.poll(() => router.ready).toBe(true);
    expect([await waiting, await poller.wait(0)]).toEqual([null, null]);
    poller.add(router);
    expect(await poller.wait(0)).toBe(router);
  });

  it('is terminated by the signals it is told, until it is closed', async () => {
    const listeners = (): number => process.listenerCount('SIGUSR2');
    const before = listeners();
    const poller = new Poller([], { clock, interruptOn: ['SIGUSR2'] });
    const waiting = poller.wait(Infinity);
    expect(poller.terminated).toBe(false);
    process.kill(process.pid, 'SIGUSR2');
    expect([await waiting, poller.terminated, await poller.wait(Infinity)]).toEqual([null, true, null]);
    poller.close();
    expect(listeners()).toBe(before);
  });

  it('is terminated when its AbortSignal aborts, also before it waits', async () => {
    const controller = new AbortController();
    using poller = new Poller([], { clock, signal: controller.signal });
    const waiting = poller.wait(Infinity);
    controller.abort();
    expect([await waiting, poller.terminated]).toEqual([null, true]);
    using late = new Poller([], { clock, signal: controller.signal });
    expect([late.terminated, await late.wait(Infinity)]).toEqual([true, null]);
  });
});
