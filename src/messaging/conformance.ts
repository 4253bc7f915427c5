/** Checks of dealers, routers and pollers within one process, over every backend: calls that are refused, limits, strangers. Checks that take
 *  two processes is in testing/role-checks.ts. What a backend cannot do is skipped by name with the reason. */
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { afterEach, describe, expect } from 'vitest';
import { seededRandom } from '../base/random.ts';
import { testsBut, type Skip } from '../base/testing/skips.ts';
import { UnhurriedClock } from '../base/testing/unhurried-clock.ts';
import type { Address } from './address.ts';
import type { Pipe } from './backend.ts';
import type { MessagingContext, MessagingOptions } from './context.ts';
import { Dealer, type DealerOptions } from './dealer.ts';
import type { Msg } from './msg.ts';
import { message, pattern, server, stub, worker } from './testing/messages.ts';
import { Poller } from './poller.ts';
import { hostilePacket } from './testing/hostile-packets.ts';
import { Router, type PeerEvent, type RouterOptions } from './router.ts';
import { encodeControl, encodeData, encodeGreeting, noCounters } from './remote/packet.ts';

export interface MessagingWorld {
  /** A context of its own for each socket, as processes have. */
  context(changes?: Partial<MessagingOptions>): Promise<MessagingContext> | MessagingContext;
  /** A URL to bind; a new one each time. */
  url(): Promise<string> | string;
  /** To connect to, where nobody listens. Default: of a router that has closed; others may get its port. */
  deserted?(): Promise<string>;
  /** A new router may have the URL of one that has closed. */
  readonly rebinds: boolean;
  close?(): Promise<void> | void;
}

const clock = new UnhurriedClock();

/** The greeting of a stranger that plays a dealer. */
const greeting = {
  session: 77,
  knownSession: 0,
  address: worker(2),
  windowMessages: 4,
  windowBytes: 1000,
  messageBytes: 1e6,
  frames: 9,
  brief: false,
};

/** On each backend; the decoder alone takes FUZZ_INPUTS (wire.test.ts). */
const hostileInputs = Math.max(5000, Number(process.env.FUZZ_INPUTS ?? 0) / 100);
/** Most of its time is connecting: fabrics that take long for that may skip it. */
export const hostileTest = `${hostileInputs} hostile packets end no more than their pipes; memory stays bounded`;

/** Without what is only waiting to be collected. */
function bytesHeld(): number {
  setFlagsFromString('--expose-gc');
  (runInNewContext('gc') as () => void)();
  const { arrayBuffers, heapUsed } = process.memoryUsage();
  return arrayBuffers + heapUsed;
}

export function describeMessaging(name: string, makeWorld: () => MessagingWorld, options: { skips?: readonly Skip[] } = {}): void {
  const { test, checkSkips } = testsBut(options.skips, 120_000 + hostileInputs);

  describe(`messaging conformance: ${name}`, () => {
    const cleanups: (() => unknown)[] = [];
    let world: MessagingWorld | undefined;
    afterEach(async () => {
      for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
      await world?.close?.();
      world = undefined;
    });
    const surroundings = async (changes: Partial<MessagingOptions> = {}): Promise<MessagingContext> => {
      world ??= makeWorld();
      const context = await world.context({ clock, ...changes });
      cleanups.push(() => context.close());
      return context;
    };
    const routerOf = async (routerOptions: RouterOptions = {}, changes: Partial<MessagingOptions> = {}): Promise<Router> => {
      const router = new Router(await surroundings(changes), routerOptions);
      cleanups.push(() => router.close({ timeoutMs: 0 }));
      return router;
    };
    const boundRouter = async (
      routerOptions: RouterOptions = {},
      changes: Partial<MessagingOptions> = {},
    ): Promise<{ router: Router; url: string }> => {
      const router = await routerOf(routerOptions, changes);
      return { router, url: await router.bind(await world!.url()) };
    };
    const dealerOf = async (
      address: Address,
      dealerOptions: Partial<DealerOptions> = {},
      changes: Partial<MessagingOptions> = {},
    ): Promise<Dealer> => {
      const dealer = new Dealer(await surroundings(changes), { address, ...dealerOptions });
      cleanups.push(() => dealer.close({ timeoutMs: 0 }));
      return dealer;
    };
    const connectedDealer = async (url: string, address: Address, dealerOptions: Partial<DealerOptions> = {}): Promise<Dealer> => {
      const dealer = await dealerOf(address, dealerOptions);
      await dealer.connect(url);
      return dealer;
    };

    test('what waits is bounded in bytes too: the message that passes the bound is the last one taken', async () => {
      const full = expect.objectContaining({ code: 'out-of-memory' });
      const router = await routerOf({ limits: { queueBytes: 10_000 } });
      router.send(message(stub, worker(1), 0, new Uint8Array(50_000)));
      expect(() => router.send(message(stub, worker(1), 0, 'x'))).toThrow(full);
      router.send(message(stub, worker(2), 0, new Uint8Array(9000)));
      router.send(message(stub, worker(2), 0, new Uint8Array(2000)));
      expect(() => router.send(message(stub, worker(2), 0, ''))).toThrow(full);
    });

    test('of a message that waited for a receiver that does not take it the sender hears', async () => {
      const { router, url } = await boundRouter({ limits: { messageBytes: 1000 } });
      const dealer = await dealerOf(worker(1));
      dealer.send(message(worker(1), stub, 0, new Uint8Array(5000)));
      await dealer.connect(url).catch(() => undefined);
      await expect(dealer.receive()).rejects.toMatchObject({ code: 'usage', message: expect.stringMatching(/limits of the receiver/) });
      const undeliverable: string[] = [];
      const patient = await boundRouter({ onUndeliverable: (_, { code }) => undeliverable.push(code) });
      patient.router.send(message(stub, worker(2), 0, new Uint8Array(5000)));
      patient.router.send(message(stub, worker(2), 9));
      const small = await connectedDealer(patient.url, worker(2), { limits: { messageBytes: 1000 } });
      expect([(await small.receive()).type, undeliverable]).toEqual([9, ['usage']]);
      expect(router.ready).toBe(false);
    });

    test('a message is sent once', async () => {
      const dealer = await dealerOf(worker(1));
      const msg = message(worker(1), stub);
      dealer.send(msg);
      expect(() => dealer.send(msg)).toThrow(expect.objectContaining({ code: 'usage' }));
      dealer.send(msg.copy());
    });

    test('a poller waits for several sockets at once', async () => {
      const [first, second] = [await boundRouter(), await boundRouter()];
      const dealers = await Promise.all([connectedDealer(first.url, worker(1)), connectedDealer(second.url, worker(1))]);
      const poller = new Poller([first.router, second.router]);
      expect(await poller.wait(0)).toBeNull();
      expect(await poller.wait(5)).toBeNull();
      const waiting = poller.wait(30_000);
      await expect(poller.wait(1)).rejects.toMatchObject({ code: 'usage' });
      dealers[1].send(message(worker(1), stub, 1));
      expect(await waiting).toBe(second.router);
      dealers[0].send(message(worker(1), stub, 0));
      await expect.poll(() => first.router.ready).toBe(true);
      // Both are ready: each gets its turn.
      expect(new Set([await poller.wait(Infinity), await poller.wait(Infinity)])).toEqual(new Set([first.router, second.router]));
      const received: (readonly [unknown, number])[] = [];
      for await (const socket of poller) {
        received.push([socket, (await socket.receive()).type]);
        if (received.length === 2) break;
      }
      expect(new Map(received)).toEqual(
        new Map<unknown, number>([
          [first.router, 0],
          [second.router, 1],
        ]),
      );
      expect(poller.terminated).toBe(false);
      const interrupted = poller.wait(Infinity);
      poller.interrupt();
      expect([await interrupted, poller.terminated, await poller.wait(Infinity)]).toEqual([null, true, null]);
    });

    test('receive can be cancelled and loses nothing', async () => {
      const { router, url } = await boundRouter();
      const dealer = await connectedDealer(url, worker(1));
      const controller = new AbortController();
      const cancelled = router.receive({ signal: controller.signal });
      const kept = router.receive();
      controller.abort();
      await expect(cancelled).rejects.toMatchObject({ code: 'aborted' });
      dealer.send(message(worker(1), stub, 4));
      expect((await kept).type).toBe(4);
      expect(router.tryReceive()).toBeUndefined();
    });

    test('sockets are iterable until they are closed', async () => {
      const { router, url } = await boundRouter();
      const dealer = await connectedDealer(url, worker(1));
      for (let k = 0; k < 4; k++) dealer.send(message(worker(1), stub, k));
      const types: number[] = [];
      for await (const { type } of router) {
        types.push(type);
        if (type === 3) await router.close({ timeoutMs: 0 });
      }
      expect(types).toEqual([0, 1, 2, 3]);
      await expect(router.receive()).rejects.toMatchObject({ code: 'closed' });
    });

    test('an endpoint is bound once', async () => {
      const { url } = await boundRouter();
      if (!world!.rebinds) return;
      const other = await routerOf();
      await expect(other.bind(url)).rejects.toMatchObject({ code: 'system' });
    });

    test('an endpoint is free as soon as its router has closed', async () => {
      const { router: first, url } = await boundRouter();
      if (!world!.rebinds) return;
      let router = first;
      for (let round = 0; round < 30; round++) {
        const next = await routerOf();
        const dealer = round % 3 === 0 ? await connectedDealer(url, worker(round)) : undefined;
        await router.close();
        const bound = next.bind(url).catch(({ message }: Error) => message);
        expect([round, await bound]).toEqual([round, url]);
        router = next;
        await dealer?.close({ timeoutMs: 0 });
      }
    });

    test('connecting to nobody ends at the deadline', async () => {
      const desertedUrl = async (): Promise<string> => {
        const { router, url } = await boundRouter();
        await router.close();
        return url;
      };
      const dealer = await dealerOf(worker(1));
      const url = await (world!.deserted ?? desertedUrl)();
      await expect(dealer.connect(url, { timeoutMs: 300 })).rejects.toMatchObject({ code: expect.stringMatching(/timeout|peer-lost/) });
    });

    test('a hello that comes late, of a connection that is over, takes no place of a dealer', async () => {
      const { router, url } = await boundRouter();
      const dealer = await connectedDealer(url, worker(2));
      const backend = await (await surroundings()).backendOf(url);
      const pipe = await backend.connect(url, { timeoutMs: 10_000, signal: new AbortController().signal });
      const answers: Uint8Array[][] = [];
      pipe.setHandlers({ onParts: (parts) => answers.push(parts), onClose: () => undefined });
      const hello = encodeGreeting('hello', greeting, noCounters);
      pipe.send([hello.slice()]);
      await expect.poll(() => answers.length).toBe(1);
      dealer.send(message(worker(2), stub, 5));
      expect((await router.receive()).type).toBe(5);
      router.send(message(stub, worker(2), 6));
      expect((await dealer.receive()).type).toBe(6);
      // One that says so when it is asked is there.
      pipe.send([hello.slice()]);
      await expect(dealer.receive()).rejects.toMatchObject({ code: 'config' });
      await pipe.close(0);
    });

    test('packets that break the rules end their pipe with protocol, and nothing else', async () => {
      const events: PeerEvent[] = [];
      const { router, url } = await boundRouter({ onPeer: (event) => events.push(event), limits: { windowMessages: 4 } });
      const good = await connectedDealer(url, worker(1));
      const context = await surroundings();
      const backend = await context.backendOf(url);
      const hello = async (): Promise<{ pipe: Pipe; answers: Uint8Array[][] }> => {
        const pipe = await backend.connect(url, { timeoutMs: 10_000, signal: new AbortController().signal });
        const answers: Uint8Array[][] = [];
        pipe.setHandlers({ onParts: (parts) => answers.push(parts), onClose: () => undefined });
        return { pipe, answers };
      };
      const one = message(worker(2), stub);
      const data = (sequence: number): Uint8Array[] => encodeData([one], sequence, noCounters).parts;
      const greet = encodeGreeting('hello', greeting, noCounters);
      const hostile: Uint8Array[][][] = [
        [[Buffer.from('GET / HTTP/1.1\r\n\r\n')]],
        [[pattern(4096, 9)]],
        [[greet], [data(0)[0].subarray(0, 60)]],
        [[greet], [encodeControl('credit', { received: 5, consumed: 0, consumedBytes: 0 })]],
        [[greet], ...[0, 1, 2, 3, 4].map(data)],
        [[greet], [encodeGreeting('welcome', greeting, noCounters)]],
        [[greet], [encodeGreeting('hello', { ...greeting, address: worker(3) }, noCounters)]],
      ];
      for (const [k, packets] of hostile.entries()) {
        const { pipe } = await hello();
        for (const parts of packets) pipe.send(parts);
        await expect.poll(() => events.filter(({ state }) => state === 'refused').length).toBe(k + 1);
        expect(events.at(-1)?.error).toMatchObject({ code: 'protocol' });
        await pipe.close(0);
      }
      while (router.ready) router.tryReceive();
      good.send(message(worker(1), stub, 12));
      expect((await router.receive()).type).toBe(12);
    });

    test(hostileTest, async () => {
      const codes: (string | undefined)[] = [];
      const limits = { windowMessages: 8, messageBytes: 2 ** 20, frames: 100, peers: 200, queueMessages: 100 };
      const onPeer = ({ state, error }: PeerEvent): void => void (state === 'refused' && codes.push(error?.code));
      const { router, url } = await boundRouter({ onPeer, limits });
      const good = await connectedDealer(url, worker(1));
      const backend = await (await surroundings()).backendOf(url);
      const connect = async (): Promise<{ pipe: Pipe; open: boolean }> => {
        const pipe = await backend.connect(url, { timeoutMs: 10_000, signal: new AbortController().signal });
        const connection = { pipe, open: true };
        pipe.setHandlers({ onParts: () => undefined, onClose: () => void (connection.open = false) });
        return connection;
      };
      const hello = encodeGreeting('hello', greeting, noCounters);
      const small = message(worker(2), stub, 3, 'one', 'two');
      const large = message(worker(2), server(5), 4, pattern(40_000, 1), 'x');
      const data = (msg: Msg): Uint8Array[] => encodeData([msg], 0, noCounters).parts;
      const controls = (['credit', 'goodbye', 'reset'] as const).map((kind) => [encodeControl(kind, noCounters)]);
      const corpus = [[hello], data(small), data(large), ...controls];
      const random = seededRandom(hostileInputs);
      let stranger = await connect();
      const before = bytesHeld();
      for (let k = 0; k < hostileInputs; k++) {
        if (!stranger.open) stranger = await connect();
        // Every other packet comes from somebody who has introduced himself.
        if (k % 2 === 0) stranger.pipe.send([hello.slice()]);
        stranger.pipe.send(hostilePacket(corpus, random));
        if (k % 2 > 0) continue;
        const sent = message(worker(1), stub, 9);
        sent.setTarget(k, 1);
        good.send(sent);
        for (;;) {
          const msg = await router.receive();
          if (msg.source === worker(1) && msg.type === 9 && msg.targetValue === k) break;
        }
      }
      const after = bytesHeld();
      await stranger.pipe.close(0);
      // They have arrived, and not at pipes that were closed already.
      expect(codes.filter((code) => code === 'protocol').length).toBeGreaterThan(hostileInputs / 50);
      expect(after - before).toBeLessThan(256 * 2 ** 20);
      expect(router.peers.length).toBeLessThanOrEqual(limits.peers);
    });

    test('data without a hello is answered with a reset', async () => {
      const { url } = await boundRouter();
      const context = await surroundings();
      const pipe = await (await context.backendOf(url)).connect(url, { timeoutMs: 10_000, signal: new AbortController().signal });
      cleanups.push(() => pipe.close(0));
      const answer = new Promise<Uint8Array>((resolve) => {
        pipe.setHandlers({ onParts: ([first]) => resolve(first), onClose: () => undefined });
      });
      pipe.send([encodeControl('credit', noCounters)]);
      expect((await answer)[3]).toBe(6);
    });

    checkSkips();
  });
}
