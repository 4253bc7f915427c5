/** Checks of dealers and routers over every backend, by name, whose parts are processes: a router and up to three dealers. Run
 *  by real processes over what joins processes, and by the parts together in one thread over what does not leave it. */
import assert from 'node:assert/strict';
import type { ErrorCode } from '../../base/errors.ts';
import { makeAddress, type Address } from '../address.ts';
import type { MessagingOptions } from '../context.ts';
import { Dealer, type DealerOptions } from '../dealer.ts';
import type { MessageSocket } from '../message-socket.ts';
import type { Msg } from '../msg.ts';
import { message, pattern, server, stub, worker } from './messages.ts';
import { Poller } from '../poller.ts';
import type { PeerEvent, Router, RouterOptions } from '../router.ts';

export const checkParts = ['router', 'a', 'b', 'c'] as const;
export type CheckPart = (typeof checkParts)[number];

/** The place where one part of a check runs. */
export interface CheckPlace {
  /** Sockets have surroundings of their own, as processes have; they are closed when all parts have ended. */
  router(options?: RouterOptions, changes?: Partial<MessagingOptions>): Promise<Router>;
  dealer(address: Address, options?: Partial<DealerOptions>, changes?: Partial<MessagingOptions>): Promise<Dealer>;
  /** A URL to bind; a new one each time. */
  url(): Promise<string> | string;
  /** A new router may have the URL of one that has closed. */
  readonly rebinds: boolean;
  /** Tells the other parts of this check. */
  tell(what: string, value?: string): Promise<void>;
  /** The value that a part has told, or will tell. */
  hear(what: string): Promise<string>;
}

export interface MessagingCheck {
  readonly name: string;
  readonly parts: Readonly<Partial<Record<CheckPart, (place: CheckPlace) => Promise<void>>>>;
}

function sameBytes(one: Uint8Array, other: Uint8Array): boolean {
  return Buffer.compare(one, other) === 0;
}

async function take(socket: MessageSocket, count: number): Promise<Msg[]> {
  const messages: Msg[] = [];
  while (messages.length < count) messages.push(await socket.receive());
  return messages;
}

async function takeTypes(socket: MessageSocket, types: readonly number[]): Promise<void> {
  assert.deepEqual(
    (await take(socket, types.length)).map(({ type }) => type),
    types,
  );
}

function refuses(code: ErrorCode, call: () => unknown): void {
  assert.throws(call, { code });
}

async function bound(place: CheckPlace, options: RouterOptions = {}, changes: Partial<MessagingOptions> = {}): Promise<Router> {
  const router = await place.router(options, changes);
  await place.tell('url', await router.bind(await place.url()));
  return router;
}

async function connected(place: CheckPlace, address: Address, options: Partial<DealerOptions> = {}): Promise<Dealer> {
  const dealer = await place.dealer(address, options);
  await dealer.connect(await place.hear('url'));
  return dealer;
}

/** Numbers from 0. */
function upTo(count: number): number[] {
  return Array.from({ length: count }, (_, k) => k);
}

const requestFrames = [0, 1, 7, 64, 16_383, 16_384, 100_000, 3 * 2 ** 20];
const orderedCount = 1500;
const orderedBytes = (k: number): number => (k % 97 === 0 ? 40_000 : k % 50);

async function sendOrdered(socket: Dealer | Router, from: Address, to: Address): Promise<void> {
  for (const k of upTo(orderedCount)) {
    const msg = message(from, to, 0, pattern(orderedBytes(k), k));
    msg.setTarget(k, 0);
    socket.send(msg);
    if (k % 500 === 0) await (socket instanceof Dealer ? socket.writable() : socket.writable(to));
  }
}

async function takeOrdered(socket: MessageSocket): Promise<void> {
  for (const k of upTo(orderedCount)) {
    const msg = await socket.receive();
    const sound = msg.targetValue === k && sameBytes(msg.frameData(), pattern(orderedBytes(k), k));
    if (!sound) throw new Error(`message ${k} is ${msg.targetValue} with ${msg.frameSize()} bytes`);
  }
}

const narrow = { windowMessages: 10, queueMessages: 30 };
const promisedSizes = upTo(60).map((k) => (k * 7919) % 30_000);
const manyFrames = upTo(65_535).map((k) => (k % 1000 === 0 ? 20_000 : k % 3));
const flushedFrames = (): Uint8Array[] => [pattern(50, 1), pattern(300_000, 2), new Uint8Array(new SharedArrayBuffer(200_000)).fill(5)];

export const messagingChecks: readonly MessagingCheck[] = [
  {
    name: 'a request and its answer carry every field and frame',
    parts: {
      async router(place) {
        const router = await bound(place);
        const received = await router.receive();
        assert.deepEqual([received.source, received.destination, received.type], [worker(300), stub, 65_535]);
        assert.deepEqual([received.targetValue, received.targetVersion], [-5, Number.MAX_SAFE_INTEGER]);
        for (const [k, bytes] of requestFrames.entries()) assert.ok(sameBytes(received.frames[k], pattern(bytes, k)), `frame ${k}`);
        received.lastFrame();
        assert.deepEqual(received.parseFormatFrame('i8s'), [-1, 2n ** 63n, 'naïve']);
        received.swapAddress();
        router.send(received);
      },
      async a(place) {
        const dealer = await connected(place, worker(300));
        const request = message(worker(300), stub, 65_535, ...requestFrames.map(pattern));
        request.setTarget(-5, Number.MAX_SAFE_INTEGER);
        request.addFormatFrame('i8s', -1, 2n ** 63n, 'naïve');
        dealer.send(request);
        const answer = await dealer.receive();
        assert.deepEqual([answer.source, answer.destination, answer.frameCount], [stub, worker(300), 9]);
        assert.ok(sameBytes(answer.frames[7], pattern(3 * 2 ** 20, 7)));
      },
    },
  },
  {
    name: 'messages arrive in order, in both directions, many and of mixed sizes',
    parts: {
      async router(place) {
        const router = await bound(place);
        await Promise.all([sendOrdered(router, stub, worker(1)), takeOrdered(router)]);
      },
      async a(place) {
        const dealer = await connected(place, worker(1));
        await Promise.all([sendOrdered(dealer, worker(1), stub), takeOrdered(dealer)]);
      },
    },
  },
  {
    name: 'a router sends each message to the dealer of its destination',
    parts: {
      async router(place) {
        const router = await bound(place);
        for (const part of ['a', 'b', 'c']) await place.hear(`${part} is there`);
        assert.deepEqual(new Set(router.peers), new Set([worker(1), worker(2), worker(3)]));
        for (const id of [3, 1, 2, 1]) router.send(message(stub, worker(id), id));
        await router.flushed();
      },
      a: (place) => takesOwn(place, 'a', 1, [1, 1]),
      b: (place) => takesOwn(place, 'b', 2, [2]),
      c: (place) => takesOwn(place, 'c', 3, [3]),
    },
  },
  {
    name: 'a router with addresses forwards what is not for it',
    parts: {
      async router(place) {
        const undeliverable: unknown[] = [];
        const router = await bound(place, {
          addresses: [stub],
          limits: { queueMessages: 2 },
          onUndeliverable: ({ destination }, { code }) => undeliverable.push(destination, code),
        });
        assert.equal((await router.receive()).type, 8);
        assert.deepEqual(undeliverable, [server(99), 'out-of-memory']);
        await place.tell('late');
      },
      async a(place) {
        const dealer = await connected(place, worker(1));
        await place.hear('b is there');
        dealer.send(message(worker(1), server(1), 7, 'to the server'));
        assert.equal((await dealer.receive()).type, 7);
        for (const k of upTo(3)) dealer.send(message(worker(1), server(99), k));
        dealer.send(message(worker(1), stub, 8));
      },
      async b(place) {
        const dealer = await connected(place, server(1));
        await place.tell('b is there');
        const request = await dealer.receive();
        assert.equal(request.frameStr(), 'to the server');
        request.swapAddress();
        dealer.send(request);
      },
      async c(place) {
        await place.hear('late');
        await takeTypes(await connected(place, server(99)), [0, 1]);
      },
    },
  },
  {
    name: 'a router keeps messages for a dealer that has not connected, in order, and refuses beyond the bound',
    parts: {
      async router(place) {
        const router = await bound(place, { limits: { queueMessages: 5 } });
        await place.hear('b is there');
        for (const k of upTo(5)) router.send(message(stub, worker(1), k));
        const refused = message(stub, worker(1), 5);
        assert.throws(() => router.send(refused), { code: 'out-of-memory', message: / 1 of group 0.*not connected/ });
        router.send(message(stub, worker(2), 9));
        await place.hear('b has it');
        await place.tell('late');
        await router.writable(worker(1));
        router.send(refused);
        await router.flushed();
      },
      async a(place) {
        await place.hear('late');
        await takeTypes(await connected(place, worker(1)), [0, 1, 2, 3, 4, 5]);
      },
      async b(place) {
        const dealer = await connected(place, worker(2));
        await place.tell('b is there');
        assert.equal((await dealer.receive()).type, 9);
        await place.tell('b has it');
      },
    },
  },
  {
    name: 'what writable has promised is taken, however large',
    parts: {
      async router(place) {
        const router = await bound(place, { limits: { queueBytes: 10_000, windowBytes: 20_000 } });
        assert.deepEqual(
          (await take(router, promisedSizes.length)).map((msg) => msg.frameSize()),
          promisedSizes,
        );
      },
      async a(place) {
        const dealer = await connected(place, worker(1), { limits: { queueBytes: 10_000, windowBytes: 20_000 } });
        for (const [k, bytes] of promisedSizes.entries()) {
          await dealer.writable();
          dealer.send(message(worker(1), stub, k, new Uint8Array(bytes)));
        }
      },
    },
  },
  {
    name: 'a dealer may send before it connects',
    parts: {
      async router(place) {
        await takeTypes(await bound(place), [0, 1, 2, 3]);
      },
      async a(place) {
        const dealer = await place.dealer(worker(1));
        for (const k of upTo(3)) dealer.send(message(worker(1), stub, k));
        const connecting = dealer.connect(await place.hear('url'));
        dealer.send(message(worker(1), stub, 3));
        await connecting;
      },
    },
  },
  {
    name: 'a receiver that does not take anything stops the sender, not the others',
    parts: {
      async router(place) {
        const router = await bound(place, { limits: narrow });
        for (const part of ['a', 'b']) await place.hear(`${part} is there`);
        let sent = 0;
        const fill = (): void => {
          try {
            for (;;) {
              router.send(message(stub, worker(1), sent));
              sent++;
            }
          } catch (error) {
            assert.equal((error as { code?: unknown }).code, 'out-of-memory');
          }
        };
        fill();
        // A message that has reached the process leaves the queue; then nothing moves any more.
        for (const k of upTo(100)) {
          router.send(message(stub, worker(2), k));
          assert.equal((await router.receive()).type, k);
          fill();
        }
        assert.ok(sent <= narrow.queueMessages + narrow.windowMessages, `${sent} messages were sent`);
        await place.tell('sent', String(sent));
        await router.writable(worker(1));
        router.send(message(stub, worker(1), 1));
        await router.flushed();
      },
      async a(place) {
        const slow = await connected(place, worker(1), { limits: narrow });
        await place.tell('a is there');
        await takeTypes(slow, [...upTo(Number(await place.hear('sent'))), 1]);
      },
      async b(place) {
        const quick = await connected(place, worker(2), { limits: narrow });
        await place.tell('b is there');
        for (let k = 0; k < 100; k++) {
          const msg = await quick.receive();
          msg.swapAddress();
          quick.send(msg);
        }
      },
    },
  },
  {
    name: 'a message larger than the window travels alone',
    parts: {
      async router(place) {
        const router = await bound(place, { limits: { windowBytes: 100_000 } });
        for (const k of upTo(6)) assert.ok(sameBytes((await router.receive()).frameData(), pattern(k % 2 === 0 ? 500_000 : 60_000, k)));
      },
      async a(place) {
        const dealer = await connected(place, worker(1), { limits: { windowBytes: 100_000 } });
        for (const k of upTo(6)) dealer.send(message(worker(1), stub, k, pattern(k % 2 === 0 ? 500_000 : 60_000, k)));
      },
    },
  },
  {
    name: 'what no end may take is refused at the sender, and the connection goes on',
    parts: {
      async router(place) {
        const router = await bound(place, { limits: { messageBytes: 100_000, frames: 20 } }, { limits: { messageBytes: 8 * 2 ** 30 } });
        await takeTypes(router, [20, 1]);
        refuses('usage', () => router.send(message(stub, worker(1), 0, new Uint8Array(100_000))));
        router.send(message(stub, worker(1), 2));
        await router.flushed();
      },
      async a(place) {
        const dealer = await place.dealer(worker(1), {}, { limits: { messageBytes: 8 * 2 ** 30 } });
        const frames = (count: number): Msg => message(worker(1), stub, count, ...upTo(count).map(() => new Uint8Array(1)));
        // Untouched, it takes no memory.
        refuses('usage', () => dealer.send(message(worker(1), stub, 0, Buffer.allocUnsafeSlow(2 ** 30))));
        refuses('usage', () => dealer.send(frames(65_536)));
        await dealer.connect(await place.hear('url'));
        refuses('usage', () => dealer.send(frames(21)));
        refuses('usage', () => dealer.send(message(worker(1), stub, 0, new Uint8Array(100_000))));
        dealer.send(frames(20));
        dealer.send(message(worker(1), stub, 1, new Uint8Array(99_000)));
        assert.equal((await dealer.receive()).type, 2);
      },
    },
  },
  {
    name: 'a message with as many frames as there may be arrives',
    parts: {
      async router(place) {
        const { frames } = await (await bound(place)).receive();
        assert.equal(frames.length, manyFrames.length);
        assert.ok(frames.every(({ byteLength }, k) => byteLength === manyFrames[k]));
      },
      async a(place) {
        const dealer = await connected(place, worker(1));
        dealer.send(message(worker(1), stub, 4, ...manyFrames.map((bytes) => new Uint8Array(bytes))));
      },
    },
  },
  {
    name: 'frames may be changed when flushed has resolved',
    parts: {
      async router(place) {
        const received = await (await bound(place)).receive();
        for (const [k, frame] of flushedFrames().entries()) assert.ok(sameBytes(received.frames[k], frame), `frame ${k}`);
      },
      async a(place) {
        const dealer = await connected(place, worker(1));
        const frames = flushedFrames();
        dealer.send(message(worker(1), stub, 0, ...frames));
        await dealer.flushed();
        for (const frame of frames) frame.fill(0);
      },
    },
  },
  {
    name: 'answers find addresses that speak through another dealer',
    parts: {
      async router(place) {
        const router = await bound(place);
        router.send(message(stub, worker(8), 1));
        for (const msg of await take(router, 2)) {
          msg.swapAddress();
          router.send(msg);
        }
        await router.flushed();
      },
      async a(place) {
        const remoteStub = await connected(place, makeAddress({ group: 0, id: 1, role: 3 }));
        for (const id of [7, 8]) remoteStub.send(message(worker(id), stub, id));
        assert.deepEqual(
          (await take(remoteStub, 3)).map(({ destination, type }) => [destination, type]),
          [
            [worker(8), 1],
            [worker(7), 7],
            [worker(8), 8],
          ],
        );
      },
    },
  },
  {
    name: 'a poller says which of several sockets has a message',
    parts: {
      async router(place) {
        const [first, second] = [await place.router(), await place.router()];
        for (const [part, router] of Object.entries({ a: first, b: second }))
          await place.tell(`url of ${part}`, await router.bind(await place.url()));
        const poller = new Poller([first, second]);
        assert.equal(await poller.wait(0), null);
        await place.tell('b sends');
        assert.equal(await poller.wait(Infinity), second);
        assert.equal((await second.receive()).type, 1);
        await place.tell('a sends');
        assert.equal(await poller.wait(Infinity), first);
        assert.equal((await first.receive()).type, 0);
        assert.equal(await poller.wait(0), null);
      },
      a: (place) => sendsWhenTold(place, 'a', 0),
      b: (place) => sendsWhenTold(place, 'b', 1),
    },
  },
  {
    name: 'close waits until everything has arrived, or says how much has not',
    parts: {
      async router(place) {
        await takeTypes(await bound(place), upTo(500));
      },
      async a(place) {
        const dealer = await connected(place, worker(1));
        for (const k of upTo(500)) dealer.send(message(worker(1), stub, k, pattern(k % 40 === 0 ? 100_000 : 10, k)));
        const closing = dealer.close({ timeoutMs: 30_000 });
        refuses('closed', () => dealer.send(message(worker(1), stub)));
        assert.equal(await closing, 0);
        assert.equal(await dealer.close(), 0);
        await assert.rejects(dealer.receive(), { code: 'closed' });
        const lonely = await place.dealer(worker(2));
        lonely.send(message(worker(2), stub));
        assert.equal(await lonely.close({ timeoutMs: 20 }), 1);
      },
    },
  },
  {
    name: 'a dealer that leaves and comes back under its address, elsewhere, gets what waited',
    parts: {
      async router(place) {
        const events: PeerEvent['state'][] = [];
        let onLeft: () => void = () => undefined;
        const left = new Promise<void>((resolve) => (onLeft = resolve));
        const router = await bound(place, {
          onPeer: ({ state }) => {
            events.push(state);
            if (state === 'left') onLeft();
          },
        });
        router.send(message(stub, worker(1), 1));
        await left;
        assert.deepEqual(events, ['connected', 'left']);
        for (const k of [2, 3, 4]) router.send(message(stub, worker(1), k));
        await place.tell('late');
        assert.equal((await router.receive()).type, 5);
      },
      async a(place) {
        const dealer = await connected(place, worker(1));
        assert.equal((await dealer.receive()).type, 1);
        await dealer.close();
      },
      async b(place) {
        await place.hear('late');
        const dealer = await connected(place, worker(1));
        await takeTypes(dealer, [2, 3, 4]);
        dealer.send(message(worker(1), stub, 5));
      },
    },
  },
  {
    name: 'a router that closes and is started anew gets what it had not received',
    parts: {
      async router(place) {
        const router = await place.router();
        const url = await router.bind(await place.url());
        await place.tell('url', url);
        assert.equal((await router.receive()).type, 1);
        await place.hear('flushed');
        await router.close();
        await place.tell('closed');
        const again = await place.router();
        await place.tell('new url', await again.bind(place.rebinds ? url : await place.url()));
        await takeTypes(again, [2, 3, 4]);
        again.send(message(stub, worker(1), 5));
        await again.flushed();
      },
      async a(place) {
        const dealer = await connected(place, worker(1));
        dealer.send(message(worker(1), stub, 1));
        await dealer.flushed();
        await place.tell('flushed');
        await place.hear('closed');
        for (const k of [2, 3, 4]) dealer.send(message(worker(1), stub, k));
        const newUrl = await place.hear('new url');
        if (!place.rebinds) await dealer.connect(newUrl);
        assert.equal((await dealer.receive()).type, 5);
      },
    },
  },
  {
    name: 'of two dealers with one address the later stays',
    parts: {
      async router(place) {
        const router = await bound(place);
        await place.hear('b is there');
        router.send(message(stub, worker(1), 6));
        await router.flushed();
      },
      async a(place) {
        const first = await connected(place, worker(1));
        await place.tell('a is there');
        await assert.rejects(first.receive(), { code: 'config', message: /its own address/ });
      },
      async b(place) {
        await place.hear('a is there');
        const second = await connected(place, worker(1));
        await place.tell('b is there');
        assert.equal((await second.receive()).type, 6);
      },
    },
  },
  {
    name: 'a dealer of one router ends when that has forgotten it, or closes',
    parts: {
      async router(place) {
        const router = await bound(place);
        await takeTypes(router, [1, 1]);
        router.forget(worker(1));
        await place.tell('forgotten');
        await place.hear('a has ended');
        await router.close();
      },
      async a(place) {
        const dealer = await connected(place, worker(1), { routers: 'one' });
        dealer.send(message(worker(1), stub, 1));
        await place.hear('forgotten');
        await assert.rejects(dealer.receive(), { code: 'peer-lost', message: /has forgotten it/ });
        await place.tell('a has ended');
      },
      async b(place) {
        const dealer = await connected(place, worker(2), { routers: 'one' });
        dealer.send(message(worker(2), stub, 1));
        await assert.rejects(dealer.receive(), { code: 'peer-lost', message: /has closed/ });
      },
    },
  },
  {
    name: 'a dealer can move to another router',
    parts: {
      async router(place) {
        const one = await bound(place);
        await place.hear('moved');
        assert.equal(one.ready, false);
      },
      async b(place) {
        const two = await place.router();
        await place.tell('other url', await two.bind(await place.url()));
        assert.equal((await two.receive()).type, 3);
      },
      async a(place) {
        const dealer = await connected(place, worker(1));
        await dealer.connect(await place.hear('other url'));
        dealer.send(message(worker(1), stub, 3));
        await dealer.flushed();
        await place.tell('moved');
      },
    },
  },
];

async function takesOwn(place: CheckPlace, part: CheckPart, id: number, types: readonly number[]): Promise<void> {
  const dealer = await connected(place, worker(id));
  await place.tell(`${part} is there`);
  await takeTypes(dealer, types);
}

async function sendsWhenTold(place: CheckPlace, part: CheckPart, type: number): Promise<void> {
  const dealer = await place.dealer(worker(1));
  await dealer.connect(await place.hear(`url of ${part}`));
  await place.hear(`${part} sends`);
  dealer.send(message(worker(1), stub, type));
  await dealer.flushed();
}
