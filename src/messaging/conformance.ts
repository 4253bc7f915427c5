/** What dealers, routers and pollers do over every backend: one suite, run on each. What a backend cannot do is skipped
 *  by name with the reason. */
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { afterEach, describe, expect, it } from 'vitest';
import { seededRandom } from '../base/random.ts';
import { UnhurriedClock } from '../base/testing/unhurried-clock.ts';
import { makeAddress, Role, type Address } from './address.ts';
import type { Pipe } from './backend.ts';
import type { MessagingContext, MessagingOptions } from './context.ts';
import { Dealer, type DealerOptions } from './dealer.ts';
import type { MessageSocket } from './message-socket.ts';
import { Msg } from './msg.ts';
import { Poller } from './poller.ts';
import { hostilePacket } from './testing/hostile-packets.ts';
import { Router, type PeerEvent, type RouterOptions } from './router.ts';
import { encodeControl, encodeData, encodeGreeting, noCounters } from './link/wire.ts';

export interface MessagingWorld {
  /** A context of its own for each socket, as processes have. */
  context(changes?: Partial<MessagingOptions>): Promise<MessagingContext> | MessagingContext;
  /** To bind; a new one each time. */
  url(): Promise<string> | string;
  /** To connect to, where nobody listens. Default: of a router that has closed; others may get its port. */
  deserted?(): Promise<string>;
  /** A new router may have the URL of one that has closed. */
  readonly rebinds: boolean;
  close?(): Promise<void> | void;
}

const clock = new UnhurriedClock();

/** On each backend; the decoder alone takes FUZZ_INPUTS (wire.test.ts). */
const hostileInputs = Math.max(5000, Number(process.env.FUZZ_INPUTS ?? 0) / 100);

export interface Skip {
  readonly test: string;
  readonly reason: string;
}

const worker = (id: number): Address => makeAddress({ group: 0, id, role: Role.workerParameter });
const server = (id: number): Address => makeAddress({ group: 0, id, role: Role.server });
const stub = makeAddress({ group: 0, id: 0, role: Role.stub });

function message(source: Address, destination: Address, type = 0, ...frames: (Uint8Array | string)[]): Msg {
  const msg = new Msg(source, destination);
  msg.type = type;
  for (const frame of frames) msg.addFrame(frame);
  return msg;
}

function pattern(bytes: number, seed: number): Uint8Array {
  const frame = new Uint8Array(bytes);
  for (let k = 0; k < bytes; k++) frame[k] = (k * 31 + (k >> 9) + seed) & 0xff;
  return frame;
}

/** Without what is only waiting to be collected. */
function bytesHeld(): number {
  setFlagsFromString('--expose-gc');
  (runInNewContext('gc') as () => void)();
  const { arrayBuffers, heapUsed } = process.memoryUsage();
  return arrayBuffers + heapUsed;
}

async function take(socket: MessageSocket, count: number): Promise<Msg[]> {
  const messages: Msg[] = [];
  while (messages.length < count) messages.push(await socket.receive());
  return messages;
}

export function describeMessaging(name: string, makeWorld: () => MessagingWorld, options: { skips?: readonly Skip[] } = {}): void {
  const skips = new Map(options.skips?.map(({ test, reason }) => [test, reason]));
  const test = (title: string, body: () => Promise<void>): void => {
    const reason = skips.get(title);
    skips.delete(title);
    if (reason === undefined) it(title, body, 120_000 + hostileInputs);
    else it.skip(`${title} (skipped: ${reason})`, () => undefined);
  };

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

    test('a request and its answer carry every field and frame', async () => {
      const { router, url } = await boundRouter();
      const dealer = await connectedDealer(url, worker(300));
      const frames = [0, 1, 7, 64, 16_383, 16_384, 100_000, 3 * 2 ** 20].map((bytes, k) => pattern(bytes, k));
      const request = message(worker(300), stub, 65_535, ...frames);
      request.setTarget(-5, Number.MAX_SAFE_INTEGER);
      request.addFormatFrame('i8s', -1, 2n ** 63n, 'naïve');
      dealer.send(request);
      const received = await router.receive();
      expect([received.source, received.destination, received.type]).toEqual([worker(300), stub, 65_535]);
      expect([received.targetValue, received.targetVersion]).toEqual([-5, Number.MAX_SAFE_INTEGER]);
      expect(received.frames.slice(0, -1).map((frame) => Buffer.from(frame).equals(frames[received.frames.indexOf(frame)]))).toEqual(
        frames.map(() => true),
      );
      received.lastFrame();
      expect(received.parseFormatFrame('i8s')).toEqual([-1, 2n ** 63n, 'naïve']);
      received.swapAddress();
      router.send(received);
      const answer = await dealer.receive();
      expect([answer.source, answer.destination, answer.frameCount]).toEqual([stub, worker(300), 9]);
      expect(Buffer.from(answer.frames[7]).equals(frames[7])).toBe(true);
    });

    test('messages arrive in order, in both directions, many and of mixed sizes', async () => {
      const { router, url } = await boundRouter();
      const dealer = await connectedDealer(url, worker(1));
      const count = 3000;
      const size = (k: number): number => (k % 97 === 0 ? 40_000 : k % 50);
      const send = async (socket: Dealer | Router, from: Address, to: Address): Promise<void> => {
        for (let k = 0; k < count; k++) {
          const msg = message(from, to, 0, pattern(size(k), k));
          msg.setTarget(k, 0);
          socket.send(msg);
          if (k % 500 === 0) await (socket instanceof Dealer ? socket.writable() : socket.writable(to));
        }
      };
      const check = async (socket: MessageSocket): Promise<void> => {
        for (let k = 0; k < count; k++) {
          const msg = await socket.receive();
          if (msg.targetValue !== k || msg.frameSize() !== size(k) || !Buffer.from(msg.frameData()).equals(pattern(size(k), k))) {
            throw new Error(`message ${k} is ${msg.targetValue} with ${msg.frameSize()} bytes`);
          }
        }
      };
      await Promise.all([send(dealer, worker(1), stub), send(router, stub, worker(1)), check(router), check(dealer)]);
    });

    test('a router sends each message to the dealer of its destination', async () => {
      const { router, url } = await boundRouter();
      const dealers = await Promise.all([1, 2, 3].map((id) => connectedDealer(url, worker(id))));
      expect(new Set(router.peers)).toEqual(new Set([worker(1), worker(2), worker(3)]));
      for (const id of [3, 1, 2, 1]) router.send(message(stub, worker(id), id));
      expect((await take(dealers[0], 2)).map(({ type }) => type)).toEqual([1, 1]);
      expect([(await dealers[1].receive()).type, (await dealers[2].receive()).type]).toEqual([2, 3]);
    });

    test('a router with addresses forwards what is not for it', async () => {
      const undeliverable: Address[] = [];
      const { router, url } = await boundRouter({
        addresses: [stub],
        limits: { queueMessages: 2 },
        onUndeliverable: ({ destination }, { code }) => undeliverable.push(destination, BigInt(code.length)),
      });
      const [a, b] = await Promise.all([connectedDealer(url, worker(1)), connectedDealer(url, server(1))]);
      a.send(message(worker(1), server(1), 7, 'to the server'));
      const request = await b.receive();
      expect(request.frameStr()).toBe('to the server');
      request.swapAddress();
      b.send(request);
      expect((await a.receive()).type).toBe(7);
      for (let k = 0; k < 3; k++) a.send(message(worker(1), server(99), k));
      a.send(message(worker(1), stub, 8));
      expect((await router.receive()).type).toBe(8);
      expect(undeliverable).toEqual([server(99), BigInt('out-of-memory'.length)]);
      const late = await connectedDealer(url, server(99));
      expect((await take(late, 2)).map(({ type }) => type)).toEqual([0, 1]);
    });

    test('a router keeps messages for a dealer that has not connected, in order, and refuses beyond the bound', async () => {
      const { router, url } = await boundRouter({ limits: { queueMessages: 5 } });
      const other = await connectedDealer(url, worker(2));
      for (let k = 0; k < 5; k++) router.send(message(stub, worker(1), k));
      const refused = message(stub, worker(1), 5);
      expect(() => router.send(refused)).toThrow(
        expect.objectContaining({ code: 'out-of-memory', message: expect.stringMatching(/worker.* 1 of group 0.*not connected/) }),
      );
      router.send(message(stub, worker(2), 9));
      expect((await other.receive()).type).toBe(9);
      const dealer = await connectedDealer(url, worker(1));
      expect((await take(dealer, 5)).map(({ type }) => type)).toEqual([0, 1, 2, 3, 4]);
      await router.writable(worker(1));
      router.send(refused);
      expect((await dealer.receive()).type).toBe(5);
    });

    test('what waits is bounded in bytes too: the message that passes the bound is the last one taken', async () => {
      const full = expect.objectContaining({ code: 'out-of-memory' });
      const router = await routerOf({ limits: { queueBytes: 10_000 } });
      router.send(message(stub, worker(1), 0, new Uint8Array(50_000)));
      expect(() => router.send(message(stub, worker(1), 0, 'x'))).toThrow(full);
      router.send(message(stub, worker(2), 0, new Uint8Array(9000)));
      router.send(message(stub, worker(2), 0, new Uint8Array(2000)));
      expect(() => router.send(message(stub, worker(2), 0, ''))).toThrow(full);
    });

    test('what writable has promised is taken, however large', async () => {
      const limits = { queueBytes: 10_000, windowBytes: 20_000 };
      const { router, url } = await boundRouter({ limits });
      const dealer = await connectedDealer(url, worker(1), { limits });
      const sizes = Array.from({ length: 60 }, (_, k) => (k * 7919) % 30_000);
      const sending = (async () => {
        for (const [k, bytes] of sizes.entries()) {
          await dealer.writable();
          dealer.send(message(worker(1), stub, k, new Uint8Array(bytes)));
        }
      })();
      expect((await take(router, sizes.length)).map((msg) => msg.frameSize())).toEqual(sizes);
      await sending;
    });

    test('a dealer may send before it connects', async () => {
      const { router, url } = await boundRouter();
      const dealer = await dealerOf(worker(1));
      for (let k = 0; k < 3; k++) dealer.send(message(worker(1), stub, k));
      const connecting = dealer.connect(url);
      dealer.send(message(worker(1), stub, 3));
      await connecting;
      expect((await take(router, 4)).map(({ type }) => type)).toEqual([0, 1, 2, 3]);
    });

    test('a receiver that does not take anything stops the sender, not the others, and memory stays bounded', async () => {
      const limits = { windowMessages: 10, queueMessages: 30 };
      const { router, url } = await boundRouter({ limits });
      const slow = await connectedDealer(url, worker(1), { limits });
      const quick = await connectedDealer(url, worker(2), { limits });
      let sent = 0;
      const fill = async (): Promise<void> => {
        for (;;) {
          try {
            router.send(message(stub, worker(1), sent));
            sent++;
          } catch (error) {
            expect(error).toMatchObject({ code: 'out-of-memory' });
            return;
          }
        }
      };
      await fill();
      // What has reached the process leaves the queue; then nothing moves any more.
      await expect.poll(async () => (await fill(), slow.ready)).toBe(true);
      for (let k = 0; k < 100; k++) {
        router.send(message(stub, worker(2), k));
        expect((await quick.receive()).type).toBe(k);
      }
      await fill();
      expect(sent).toBeLessThanOrEqual(limits.queueMessages + limits.windowMessages);
      expect((await take(slow, sent)).map(({ type }) => type)).toEqual(Array.from({ length: sent }, (_, k) => k));
      await router.writable(worker(1));
      router.send(message(stub, worker(1), 1));
      expect((await slow.receive()).type).toBe(1);
    });

    test('a message larger than the window travels alone', async () => {
      const limits = { windowBytes: 100_000 };
      const { router, url } = await boundRouter({ limits });
      const dealer = await connectedDealer(url, worker(1), { limits });
      for (let k = 0; k < 6; k++) dealer.send(message(worker(1), stub, k, pattern(k % 2 === 0 ? 500_000 : 60_000, k)));
      for (let k = 0; k < 6; k++)
        expect(Buffer.from((await router.receive()).frameData()).equals(pattern(k % 2 === 0 ? 500_000 : 60_000, k))).toBe(true);
    });

    test('what no end may take is refused at the sender, and the connection goes on', async () => {
      const large = { messageBytes: 8 * 2 ** 30 };
      const { router, url } = await boundRouter({ limits: { messageBytes: 100_000, frames: 20 } }, { limits: large });
      const dealer = await dealerOf(worker(1), {}, { limits: large });
      const usage = expect.objectContaining({ code: 'usage' });
      const frames = (count: number): Msg => message(worker(1), stub, count, ...Array.from({ length: count }, () => new Uint8Array(1)));
      // Untouched, it takes no memory.
      expect(() => dealer.send(message(worker(1), stub, 0, Buffer.allocUnsafeSlow(2 ** 30)))).toThrow(usage);
      expect(() => dealer.send(frames(65_536))).toThrow(usage);
      await dealer.connect(url);
      expect(() => dealer.send(frames(21))).toThrow(usage);
      expect(() => dealer.send(message(worker(1), stub, 0, new Uint8Array(100_000)))).toThrow(usage);
      dealer.send(frames(20));
      dealer.send(message(worker(1), stub, 1, new Uint8Array(99_000)));
      expect((await take(router, 2)).map(({ type }) => type)).toEqual([20, 1]);
      expect(() => router.send(message(stub, worker(1), 0, new Uint8Array(100_000)))).toThrow(usage);
      router.send(message(stub, worker(1), 2));
      expect((await dealer.receive()).type).toBe(2);
    });

    test('a message with as many frames as there may be arrives', async () => {
      const { router, url } = await boundRouter();
      const dealer = await connectedDealer(url, worker(1));
      const sizes = Array.from({ length: 65_535 }, (_, k) => (k % 1000 === 0 ? 20_000 : k % 3));
      dealer.send(message(worker(1), stub, 4, ...sizes.map((bytes) => new Uint8Array(bytes))));
      const { frames } = await router.receive();
      expect(frames.length).toBe(sizes.length);
      expect(frames.every(({ byteLength }, k) => byteLength === sizes[k])).toBe(true);
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

    test('frames may be changed when flushed has resolved', async () => {
      const { router, url } = await boundRouter();
      const dealer = await connectedDealer(url, worker(1));
      const frames = [pattern(50, 1), pattern(300_000, 2), new Uint8Array(new SharedArrayBuffer(200_000)).fill(5)];
      dealer.send(message(worker(1), stub, 0, ...frames));
      await dealer.flushed();
      for (const frame of frames) frame.fill(0);
      const received = await router.receive();
      expect(Buffer.from(received.frames[0]).equals(pattern(50, 1))).toBe(true);
      expect(Buffer.from(received.frames[1]).equals(pattern(300_000, 2))).toBe(true);
      expect(received.frames[2].every((byte) => byte === 5)).toBe(true);
    });

    test('a message is sent once', async () => {
      const dealer = await dealerOf(worker(1));
      const msg = message(worker(1), stub);
      dealer.send(msg);
      expect(() => dealer.send(msg)).toThrow(expect.objectContaining({ code: 'usage' }));
      dealer.send(msg.copy());
    });

    test('answers find addresses that speak through another dealer', async () => {
      const { router, url } = await boundRouter();
      const remoteStub = await connectedDealer(url, makeAddress({ group: 0, id: 1, role: Role.stub }));
      router.send(message(stub, worker(8), 1));
      for (const id of [7, 8]) remoteStub.send(message(worker(id), stub, id));
      for (const msg of await take(router, 2)) {
        msg.swapAddress();
        router.send(msg);
      }
      expect((await take(remoteStub, 3)).map(({ destination, type }) => [destination, type])).toEqual([
        [worker(8), 1],
        [worker(7), 7],
        [worker(8), 8],
      ]);
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
      expect([(await first.router.receive()).type, (await second.router.receive()).type]).toEqual([0, 1]);
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

    test('close waits until everything has arrived, or says how much has not', async () => {
      const { router, url } = await boundRouter();
      const dealer = await connectedDealer(url, worker(1));
      for (let k = 0; k < 500; k++) dealer.send(message(worker(1), stub, k, pattern(k % 40 === 0 ? 100_000 : 10, k)));
      const closing = dealer.close({ timeoutMs: 30_000 });
      expect(() => dealer.send(message(worker(1), stub))).toThrow(expect.objectContaining({ code: 'closed' }));
      expect(await closing).toBe(0);
      expect(await dealer.close()).toBe(0);
      expect((await take(router, 500)).map(({ type }) => type)).toEqual(Array.from({ length: 500 }, (_, k) => k));
      await expect(dealer.receive()).rejects.toMatchObject({ code: 'closed' });
      const lonely = await dealerOf(worker(2));
      lonely.send(message(worker(2), stub));
      expect(await lonely.close({ timeoutMs: 20 })).toBe(1);
      expect(() => lonely.send(message(worker(2), stub))).toThrow(expect.objectContaining({ code: 'closed' }));
    });

    test('a dealer that leaves and comes back under its address gets what waited', async () => {
      const events: PeerEvent['state'][] = [];
      const { router, url } = await boundRouter({ onPeer: ({ state }) => events.push(state) });
      const before = await connectedDealer(url, worker(1));
      router.send(message(stub, worker(1), 1));
      expect((await before.receive()).type).toBe(1);
      await before.close();
      await expect.poll(() => events).toEqual(['connected', 'left']);
      for (let k = 2; k < 5; k++) router.send(message(stub, worker(1), k));
      const after = await connectedDealer(url, worker(1));
      expect((await take(after, 3)).map(({ type }) => type)).toEqual([2, 3, 4]);
      after.send(message(worker(1), stub, 5));
      expect((await router.receive()).type).toBe(5);
    });

    test('a router that closes and is started anew gets what it had not received', async () => {
      const { router, url } = await boundRouter();
      const dealer = await connectedDealer(url, worker(1));
      dealer.send(message(worker(1), stub, 1));
      expect((await router.receive()).type).toBe(1);
      await dealer.flushed();
      await router.close();
      for (let k = 2; k < 5; k++) dealer.send(message(worker(1), stub, k));
      const again = await routerOf();
      const newUrl = await again.bind(world!.rebinds ? url : await world!.url());
      if (newUrl !== url) await dealer.connect(newUrl);
      expect((await take(again, 3)).map(({ type }) => type)).toEqual([2, 3, 4]);
      again.send(message(stub, worker(1), 5));
      expect((await dealer.receive()).type).toBe(5);
    });

    test('of two dealers with one address the later stays', async () => {
      const { router, url } = await boundRouter();
      const first = await connectedDealer(url, worker(1));
      const second = await connectedDealer(url, worker(1));
      await expect(first.receive()).rejects.toMatchObject({ code: 'config', message: expect.stringMatching(/its own address/) });
      router.send(message(stub, worker(1), 6));
      expect((await second.receive()).type).toBe(6);
    });

    test('a dealer can move to another router', async () => {
      const [one, two] = [await boundRouter(), await boundRouter()];
      const dealer = await connectedDealer(one.url, worker(1));
      await dealer.connect(two.url);
      dealer.send(message(worker(1), stub, 3));
      expect((await two.router.receive()).type).toBe(3);
      expect(one.router.ready).toBe(false);
    });

    test('an endpoint is bound once', async () => {
      const { url } = await boundRouter();
      if (!world!.rebinds) return;
      const other = await routerOf();
      await expect(other.bind(url)).rejects.toMatchObject({ code: 'system' });
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
      const greeting = {
        session: 77,
        knownSession: 0,
        address: worker(2),
        windowMessages: 4,
        windowBytes: 1000,
        messageBytes: 1e6,
        frames: 9,
      };
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

    test(`${hostileInputs} hostile packets end no more than their pipes; memory stays bounded`, async () => {
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
      const greeting = {
        session: 77,
        knownSession: 0,
        address: worker(2),
        windowMessages: 4,
        windowBytes: 1000,
        messageBytes: 1e6,
        frames: 9,
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

    it('skips name tests that exist', () => {
      expect([...skips.keys()]).toEqual([]);
    });
  });
}
