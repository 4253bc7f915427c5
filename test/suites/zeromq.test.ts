/** zeromq.js' tests of sockets, told from their descriptions. Its pairs of socket types are a dealer and a router here: a push socket is a
 *  dealer that is not answered, a request is a message that is. */
import { once } from 'node:events';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { Worker } from 'node:worker_threads';
import { afterEach, describe, expect } from 'vitest';
import { builtEntry } from '../../src/base/packages/package-root.ts';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import {
  Dealer,
  MessagingContext,
  Msg,
  Poller,
  Router,
  type DealerOptions,
  type MessagingOptions,
  type PeerEvent,
  type RouterOptions,
} from '../../src/messaging/index.ts';
import { zeromqJs } from './foreign-suites.ts';
import { ranksOf } from './support/shared-worlds.ts';
import { SuiteCases } from './support/suite-cases.ts';

const protocols = ['inproc', 'ipc', 'tcp'] as const;
type Protocol = (typeof protocols)[number];

const secret = new TextEncoder().encode('secret');
const cleanups: (() => Promise<unknown>)[] = [];
let made = 0;
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

function contextOf(options: Partial<MessagingOptions> = {}): MessagingContext {
  const context = new MessagingContext({ world: 'zeromq suite', secret, ...options });
  cleanups.push(() => context.close());
  return context;
}

function routerOf(context: MessagingContext, options?: RouterOptions): Router {
  const router = new Router(context, options);
  cleanups.push(() => router.close({ timeoutMs: 0 }));
  return router;
}

function dealerOf(context: MessagingContext, options: Partial<DealerOptions> = {}): Dealer {
  const dealer = new Dealer(context, { address: 1n, ...options });
  cleanups.push(() => dealer.close({ timeoutMs: 0 }));
  return dealer;
}

/** An endpoint that nobody has. */
function endpoint(protocol: Protocol): string {
  made += 1;
  if (protocol === 'inproc') return `inproc://suite-${made}`;
  return protocol === 'tcp' ? 'tcp://127.0.0.1:*' : `ipc://${join(temporaryFolder('zmq'), 's')}`;
}

/** A router and a dealer that is connected to it. */
async function connected(
  protocol: Protocol,
  options: Partial<DealerOptions> = {},
): Promise<{ router: Router; dealer: Dealer; url: string; context: MessagingContext }> {
  const context = contextOf();
  const router = routerOf(context);
  const url = await router.bind(endpoint(protocol));
  const dealer = dealerOf(context, options);
  await dealer.connect(url);
  return { router, dealer, url, context };
}

function send(socket: Dealer | Router, destination: bigint, ...frames: (string | ArrayBufferView)[]): void {
  const msg = new Msg(socket instanceof Dealer ? socket.address : 0n, destination);
  for (const frame of frames) msg.addFrame(frame);
  socket.send(msg);
}

const textsOf = (msg: Msg): string[] => msg.frames.map((frame) => Buffer.from(frame).toString());
const usage = expect.objectContaining({ name: 'ShoalError', code: 'usage' });
const closed = expect.objectContaining({ code: 'closed' });

describe(zeromqJs.name, () => {
  const cases = new SuiteCases(zeromqJs);
  const overEach = (test: string, what: string, run: (protocol: Protocol) => Promise<void>): void =>
    cases.each(test, protocols, (protocol) => `${what}, ${protocol}`, run);

  constructionCases();
  endpointCases();
  deliveryCases();
  stateCases();
  threadCases();
  cases.complete();

  function constructionCases(): void {
    const classes = [
      ['context-construction.throw-if-called-as-function', MessagingContext],
      ['construction.with-constructor/throw-if-called-as-function', Dealer],
      ['construction.with-child-constructor/throw-if-called-as-function', Router],
    ] as const;
    for (const [test, called] of classes)
      cases.add(test, `${called.name} is a class`, () => expect(called as unknown as () => unknown).toThrow(TypeError));
    const whole = { world: 'w', secret };
    const contexts = [
      ['throw-with-wrong-options-argument', 'options that are a number', 1],
      ['throw-with-wrong-options-argument', 'no options', undefined],
      ['throw-with-invalid-option-value', 'a limit of 0', { ...whole, limits: { peers: 0 } }],
      ['throw-with-invalid-option-value', 'a secret that is text', { ...whole, secret: 'text' }],
      ['throw-with-invalid-option-value', 'an encryption that there is not', { ...whole, encryption: 'rot13' }],
      ['throw-with-unknown-option', 'an option that there is not', { ...whole, doesNotExist: 1 }],
      ['throw-with-unknown-option', 'a limit that there is not', { ...whole, limits: { doesNotExist: 1 } }],
    ] as const;
    for (const [test, what, options] of contexts)
      cases.add(`context-construction.${test}`, `refused: ${what}`, () =>
        expect(() => new MessagingContext(options as never)).toThrow(usage),
      );
    cases.add('context-construction.set-option', 'limits are those that were given', () => {
      expect(contextOf({ limits: { peers: 7 } }).limits.peers).toBe(7);
    });
    const sockets = [
      ['throw-with-too-few-arguments', 'a dealer without anything', () => Reflect.construct(Dealer, [])],
      ['throw-with-too-few-arguments', 'a dealer without an address', () => Reflect.construct(Dealer, [contextOf()])],
      ['throw-with-wrong-options-argument', 'options that are a number', () => Reflect.construct(Dealer, [contextOf(), 1])],
      ['throw-with-invalid-context', 'a context that is an object', () => Reflect.construct(Router, [{ context: {} }])],
      ['throw-with-invalid-option-value', 'an address that is text', () => Reflect.construct(Dealer, [contextOf(), { address: 'a' }])],
      ['throw-with-invalid-option-value', 'a limit below 0', () => new Router(contextOf(), { limits: { queueMessages: -1 } })],
      ['throw-with-unknown-option', 'an option that there is not', () => Reflect.construct(Router, [contextOf(), { doesNotExist: 1 }])],
    ] as const;
    for (const [test, what, make] of sockets) cases.add(`construction.${test}`, `refused: ${what}`, () => expect(make).toThrow(usage));
    cases.add('construction.with-constructor/create-socket-with-given-context', 'a dealer has its address', () => {
      expect(dealerOf(contextOf(), { address: 5n })).toMatchObject({ address: 5n, connected: false, ready: false, ended: false });
    });
    cases.add('construction.with-child-constructor/create-socket-with-given-context', 'a router has no peers', () => {
      expect(routerOf(contextOf())).toMatchObject({ peers: [], ready: false, ended: false });
    });
    cases.add('construction.set-option', 'limits of a socket are its own', () => {
      const context = contextOf();
      const [narrow, wide] = [routerOf(context, { limits: { queueMessages: 1 } }), routerOf(context)];
      for (const router of [narrow, wide]) send(router, 1n, 'one');
      expect(() => send(narrow, 1n, 'two')).toThrow(expect.objectContaining({ code: 'out-of-memory' }));
      send(wide, 1n, 'two');
    });
  }

  function endpointCases(): void {
    overEach('bind-unbind.resolve', 'the endpoint that dealers connect to', async (protocol) => {
      const router = routerOf(contextOf());
      const url = await router.bind(endpoint(protocol));
      expect(url).toMatch(protocol === 'tcp' ? /^tcp:\/\/127\.0\.0\.1:\d+$/ : new RegExp(`^${protocol}://`));
      await dealerOf(contextOf()).connect(url);
    });
    for (const [test, url] of [
      ['throw-error-for-invalid-uri', 'foo-bar'],
      ['throw-error-for-invalid-protocol', 'foo://bar'],
    ]) {
      cases.add(`bind-unbind.bind/${test}`, `refused: ${url}`, () => expect(routerOf(contextOf()).bind(url)).rejects.toEqual(usage));
      cases.add(`connect-disconnect.connect/${test}`, `refused: ${url}`, () =>
        expect(dealerOf(contextOf()).connect(url)).rejects.toEqual(usage),
      );
    }
    cases.each(
      'close.close-socket',
      ['dealer', 'router'] as const,
      (kind) => kind,
      async (kind) => {
        const socket = kind === 'dealer' ? dealerOf(contextOf()) : routerOf(contextOf());
        expect(socket.ended).toBe(false);
        expect(await socket.close()).toBe(0);
        expect(socket.ended).toBe(true);
        expect(await socket.close()).toBe(0);
      },
    );
    cases.add('close.close-socket-and-cancel-send', 'what was not sent is counted', async () => {
      const dealer = dealerOf(contextOf());
      send(dealer, 0n, 'never');
      const flushed = expect(dealer.flushed()).rejects.toEqual(closed);
      expect(await dealer.close({ timeoutMs: 0 })).toBe(1);
      await flushed;
    });
    overEach('close.close-socket-and-cancel-receive', 'a receive that waits ends', async (protocol) => {
      const { router } = await connected(protocol);
      const waiting = expect(router.receive()).rejects.toEqual(closed);
      await router.close();
      await waiting;
    });
    overEach('close.close-after-successful-bind', 'an endpoint is bound, then closed', async (protocol) => {
      const router = routerOf(contextOf());
      await router.bind(endpoint(protocol));
      expect(await router.close()).toBe(0);
    });
    cases.add('close.close-after-unsuccessful-bind', 'a router that is bound nowhere closes', async () => {
      const router = routerOf(contextOf());
      await expect(router.bind('foo://bar')).rejects.toEqual(usage);
      expect(await router.close()).toBe(0);
    });
  }

  function deliveryCases(): void {
    const words = ['foo', 'bar', 'baz', 'qux'];
    overEach('pair.deliver-messages', 'one after the other, both ways', async (protocol) => {
      const { router, dealer } = await connected(protocol);
      for (const word of words) send(dealer, 0n, word);
      for (const word of words) {
        const msg = await router.receive();
        expect(textsOf(msg)).toEqual([word]);
        send(router, msg.source, word.toUpperCase());
      }
      for (const word of words) expect(textsOf(await dealer.receive())).toEqual([word.toUpperCase()]);
    });
    overEach('push-pull.deliver-messages', 'from several, in the order of each', async (protocol) => {
      const { router, dealer, url, context } = await connected(protocol);
      const other = dealerOf(context, { address: 2n });
      await other.connect(url);
      for (const word of words) for (const each of [dealer, other]) send(each, 0n, word);
      const received = new Map<bigint, string[]>([
        [1n, []],
        [2n, []],
      ]);
      for (let k = 0; k < 8; k++) {
        const msg = await router.receive();
        received.get(msg.source)!.push(...textsOf(msg));
      }
      expect([...received.values()]).toEqual([words, words]);
    });
    overEach('req-rep.deliver-messages', 'a request, then its answer', async (protocol) => {
      const { router, dealer } = await connected(protocol);
      const answering = (async () => {
        for (let k = 0; k < words.length; k++) {
          const request = await router.receive();
          const [word] = textsOf(request);
          send(router, request.source, `${word}!`);
        }
      })();
      for (const word of words) {
        send(dealer, 0n, word);
        expect(textsOf(await dealer.receive())).toEqual([`${word}!`]);
      }
      await answering;
    });
    overEach('router-dealer.deliver-messages', 'to each dealer what is its own', async (protocol) => {
      const { router, dealer, url, context } = await connected(protocol);
      const other = dealerOf(context, { address: 2n });
      await other.connect(url);
      for (const each of [dealer, other]) send(each, 0n, `from ${each.address}`);
      for (let k = 0; k < 2; k++) {
        const msg = await router.receive();
        expect(textsOf(msg)).toEqual([`from ${msg.source}`]);
        send(router, msg.source, `to ${msg.source}`);
      }
      for (const each of [dealer, other]) expect(textsOf(await each.receive())).toEqual([`to ${each.address}`]);
    });
    overEach('proxy-router-dealer.proxy-messages', 'a router passes on what is not its own', async (protocol) => {
      const context = contextOf();
      const proxy = routerOf(context, { addresses: [9n] });
      const url = await proxy.bind(endpoint(protocol));
      const [client, worker] = [dealerOf(context, { address: 1n }), dealerOf(context, { address: 2n })];
      for (const each of [client, worker]) await each.connect(url);
      for (const word of words) send(client, 2n, word);
      for (const word of words) {
        const msg = await worker.receive();
        expect([msg.source, ...textsOf(msg)]).toEqual([1n, word]);
        send(worker, msg.source, `${word}!`);
      }
      for (const word of words) expect(textsOf(await client.receive())).toEqual([`${word}!`]);
      expect(proxy.ready).toBe(false);
    });
    cases.each(
      'curve-send-receive.deliver-single-string-message',
      ['ipc', 'tcp'] as const,
      (protocol) => `encrypted, ${protocol}`,
      async (protocol) => {
        const options = { encryption: 'curve' } as const;
        const router = routerOf(contextOf(options));
        const dealer = dealerOf(contextOf(options));
        await dealer.connect(await router.bind(endpoint(protocol)));
        send(dealer, 0n, 'secret words');
        expect(textsOf(await router.receive())).toEqual(['secret words']);
      },
    );
    cases.add('zap.deliver-message', 'both know the secret', async () => {
      const router = routerOf(contextOf());
      const dealer = dealerOf(contextOf());
      await dealer.connect(await router.bind(endpoint('tcp')));
      send(dealer, 0n, 'hi');
      expect(textsOf(await router.receive())).toEqual(['hi']);
    });
    cases.add('zap.report-authentication-error', 'a dealer with another secret is refused', async () => {
      const router = routerOf(contextOf());
      const stranger = dealerOf(contextOf({ secret: new TextEncoder().encode('another secret') }));
      const url = await router.bind(endpoint('tcp'));
      await expect(stranger.connect(url, { timeoutMs: 2000 })).rejects.toMatchObject({ code: 'auth' });
      expect(router.peers).toEqual([]);
    });

    const messages = [
      ['deliver-single-string-message', 'a text', ['foo'], ['foo']],
      ['deliver-single-buffer-message', 'bytes', [Buffer.from('foo')], ['foo']],
      ['deliver-single-multipart-string-message', 'texts as frames', ['foo', 'bar', ''], ['foo', 'bar', '']],
      [
        'deliver-single-multipart-buffer-message',
        'bytes as frames',
        [Buffer.from('foo'), Buffer.alloc(0), Buffer.from('bar')],
        ['foo', '', 'bar'],
      ],
      [
        'deliver-typed-array-and-array-buffer-messages',
        'arrays of integers',
        [Uint8Array.of(102), Uint16Array.of(0x6f66), Uint32Array.of(0x6f6f66)],
        ['f', 'fo', 'foo\0'],
      ],
      [
        'deliver-typed-array-and-array-buffer-messages',
        'a view of a part',
        [new DataView(Uint8Array.from(Buffer.from('xfoox')).buffer, 1, 3)],
        ['foo'],
      ],
    ] as const;
    for (const [test, what, frames, texts] of messages) {
      overEach(`send-receive.${test}`, what, async (protocol) => {
        const { router, dealer } = await connected(protocol);
        send(dealer, 0n, ...frames);
        expect(textsOf(await router.receive())).toEqual(texts);
      });
    }
    overEach('send-receive.deliver-multiple-messages', 'many, in order', async (protocol) => {
      const { router, dealer } = await connected(protocol);
      for (const k of ranksOf(100)) send(dealer, 0n, `message ${k}`);
      for (const k of ranksOf(100)) expect(textsOf(await router.receive())).toEqual([`message ${k}`]);
    });
    overEach('send-receive.deliver-message', 'sent before there is a connection, received after', async (protocol) => {
      const context = contextOf();
      const [router, dealer] = [routerOf(context), dealerOf(context)];
      const url = await router.bind(endpoint(protocol));
      send(dealer, 0n, 'early');
      const receiving = router.receive();
      await dealer.connect(url);
      expect(textsOf(await receiving)).toEqual(['early']);
    });
    overEach('send-receive.share-memory-of-large-buffers', 'a large frame arrives as it was', async (protocol) => {
      const { router, dealer } = await connected(protocol);
      const large = new Uint8Array(2 ** 20).map((_, i) => i);
      send(dealer, 0n, large);
      await dealer.flushed();
      expect(Buffer.compare((await router.receive()).frameData(), large)).toBe(0);
    });
    overEach('send-receive.not-starve-event-loop', 'timers fire beside messages that never end', async (protocol) => {
      const { router, dealer } = await connected(protocol);
      let fired = false;
      setTimeout(() => (fired = true), 5);
      let rounds = 0;
      for (; !fired && rounds < 200_000; rounds++) {
        send(dealer, 0n, 'ping');
        await router.receive();
      }
      expect(fired).toBe(true);
    });
  }

  function stateCases(): void {
    cases.add('send-receive.when-not-connected/be-writable', 'a dealer takes messages for later', async () => {
      const dealer = dealerOf(contextOf());
      await dealer.writable();
      send(dealer, 0n, 'later');
    });
    cases.add('send-receive.when-not-connected/not-be-readable', 'a dealer has nothing', async () => {
      const dealer = dealerOf(contextOf());
      expect([dealer.ready, dealer.tryReceive()]).toEqual([false, undefined]);
      expect(await new Poller([dealer]).wait(1)).toBeNull();
    });
    cases.add('send-receive.honor-send-high-water-mark-and-timeout', 'no more than the bound is taken', async () => {
      const dealer = dealerOf(contextOf(), { limits: { queueMessages: 2 } });
      for (const word of ['one', 'two']) send(dealer, 0n, word);
      expect(() => send(dealer, 0n, 'three')).toThrow(expect.objectContaining({ code: 'out-of-memory' }));
      let writable = false;
      const waiting = dealer.writable().then(() => (writable = true));
      await Promise.resolve();
      expect(writable).toBe(false);
      await dealer.close({ timeoutMs: 0 });
      await waiting;
    });
    overEach('send-receive.when-connected/be-writable', 'to both sides', async (protocol) => {
      const { router, dealer } = await connected(protocol);
      await dealer.writable();
      await router.writable(dealer.address);
    });
    overEach('send-receive.when-connected/not-be-readable', 'while nobody has sent', async (protocol) => {
      const { router, dealer } = await connected(protocol);
      expect([router.ready, dealer.ready]).toEqual([false, false]);
      expect(await new Poller([router, dealer]).wait(5)).toBeNull();
    });
    overEach('send-receive.be-readable-if-message-is-available', 'until it is taken', async (protocol) => {
      const { router, dealer } = await connected(protocol);
      send(dealer, 0n, 'foo');
      expect(await new Poller([router]).wait(60_000)).toBe(router);
      expect(router.ready).toBe(true);
      expect(textsOf(router.tryReceive()!)).toEqual(['foo']);
      expect(router.ready).toBe(false);
    });
    overEach('send-receive.poll-simultaneously', 'a wait for room and one for a message', async (protocol) => {
      const { router, dealer } = await connected(protocol);
      const both = Promise.all([dealer.writable(), new Poller([router]).wait(60_000)]);
      send(dealer, 0n, 'foo');
      expect((await both)[1]).toBe(router);
    });
    overEach('send-receive.poll-simultaneously-after-delay', 'two waits, whichever message comes first', async (protocol) => {
      const { router, dealer } = await connected(protocol);
      const waits = [new Poller([router]).wait(60_000), new Poller([dealer]).wait(60_000)];
      await new Promise((resolve) => setTimeout(resolve, 15));
      send(router, dealer.address, 'to the dealer');
      expect(await waits[1]).toBe(dealer);
      send(dealer, 0n, 'to the router');
      expect(await waits[0]).toBe(router);
    });
    overEach('send-receive.honor-receive-timeout', 'a receive gives up when it is told to', async (protocol) => {
      const { router, dealer } = await connected(protocol);
      await expect(router.receive({ signal: AbortSignal.timeout(5) })).rejects.toMatchObject({ code: 'aborted' });
      send(dealer, 0n, 'later');
      expect(textsOf(await router.receive())).toEqual(['later']);
    });
    const whenClosed: readonly (readonly [string, (dealer: Dealer) => unknown])[] = [
      [
        'not-be-writable',
        async (dealer) => {
          await dealer.writable();
          expect(() => send(dealer, 0n, 'x')).toThrow(closed);
        },
      ],
      ['when-closed/not-be-readable', (dealer) => expect(() => dealer.tryReceive()).toThrow(closed)],
      ['not-be-able-to-send', (dealer) => expect(() => send(dealer, 0n, 'x')).toThrow(closed)],
      ['not-be-able-to-receive', (dealer) => expect(dealer.receive()).rejects.toEqual(closed)],
    ];
    for (const [test, check] of whenClosed) {
      cases.add(`send-receive.${test}`, 'a dealer that was closed', async () => {
        const { dealer } = await connected('inproc');
        await dealer.close();
        await check(dealer);
      });
    }
    overEach('send-receive.gracefully-stop-async-iterator', 'the loop over messages ends with the socket', async (protocol) => {
      const { router, dealer } = await connected(protocol);
      const texts: string[] = [];
      const loop = (async () => {
        for await (const msg of router) texts.push(...textsOf(msg));
      })();
      send(dealer, 0n, 'foo');
      await expect.poll(() => texts.length).toBe(1);
      await router.close();
      await loop;
      expect(texts).toEqual(['foo']);
    });
    cases.add('send-receive.not-mask-other-error-type-in-async-iterator', 'the loop over messages throws what is no end', async () => {
      const { dealer, url, context } = await connected('inproc');
      const loop = (async () => {
        for await (const msg of dealer) expect(msg).toBeUndefined();
      })();
      // Another dealer takes its address.
      const outcome = expect(loop).rejects.toMatchObject({ code: 'config' });
      await dealerOf(context, { address: dealer.address }).connect(url);
      await outcome;
    });
    overEach('events.receive-connect-events', 'a dealer comes and leaves', async (protocol) => {
      const events: PeerEvent[] = [];
      const context = contextOf();
      const router = routerOf(context, { onPeer: (event) => events.push(event) });
      const dealer = dealerOf(context);
      await dealer.connect(await router.bind(endpoint(protocol)));
      await expect.poll(() => events.map(({ state }) => state)).toEqual(['connected']);
      await dealer.close();
      await expect.poll(() => events.map(({ state }) => state)).toEqual(['connected', 'left']);
      expect(events.map(({ address }) => address)).toEqual([1n, 1n]);
    });
  }

  /** Sockets of other threads, over names that the threads of a process share. */
  function threadCases(): void {
    const index = pathToFileURL(builtEntry('messaging/index.js')).href;
    const thread = (body: string, workerData: object): Worker => {
      const program = `
        const { workerData, parentPort } = require('node:worker_threads');
        import(workerData.index).then(async ({ Dealer, MessagingContext, Msg, Router }) => {
          const context = new MessagingContext({ world: workerData.world, secret: new Uint8Array([1]) });
          ${body}
          await context.close();
        });`;
      const worker = new Worker(program, { eval: true, workerData: { index, ...workerData } });
      cleanups.push(() => worker.terminate());
      return worker;
    };
    const routes = `
      const router = new Router(context);
      await router.bind(workerData.url);
      for (let k = 0; k < 3; k++) {
        const msg = await router.receive();
        msg.swapAddress();
        router.send(msg);
      }
      await router.flushed();`;
    const deals = `
      const dealer = new Dealer(context, { address: 1n });
      await dealer.connect(workerData.url, { timeoutMs: 60000 });
      const answers = [];
      for (const word of ['foo', 'bar', 'baz']) {
        const msg = new Msg(1n, 0n);
        msg.addFrame(word);
        dealer.send(msg);
        answers.push((await dealer.receive()).frameStr());
      }
      parentPort.postMessage(answers);
      await dealer.close();`;
    const answersOf = async (worker: Worker): Promise<unknown> => ((await once(worker, 'message')) as unknown[])[0];
    const answers = ['foo', 'bar', 'baz'];
    const place = (): { world: string; url: string } => ({ world: `zeromq threads ${process.pid} ${made++}`, url: 'inproc://router' });
    cases.add('thread.when-connected-within-thread/deliver-messages', 'both sockets in another thread', async () => {
      const both = `const served = (async () => { ${routes} return router; })(); ${deals} await (await served).close();`;
      expect(await answersOf(thread(both, place()))).toEqual(answers);
    });
    cases.add('thread.when-connected-to-thread/deliver-messages', 'the router here, the dealer there', async () => {
      const { world, url } = place();
      const router = routerOf(contextOf({ world, secret: Uint8Array.of(1) }));
      await router.bind(url);
      const worker = answersOf(thread(deals, { world, url }));
      for (let k = 0; k < 3; k++) {
        const msg = await router.receive();
        msg.swapAddress();
        router.send(msg);
      }
      expect(await worker).toEqual(answers);
    });
    cases.add('thread.when-connected-between-threads/deliver-messages', 'each socket in a thread of its own', async () => {
      const where = place();
      thread(`${routes} await router.close();`, where);
      expect(await answersOf(thread(deals, where))).toEqual(answers);
    });
  }
});
