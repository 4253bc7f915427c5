/** tcp and ipc: the conformance suite, keys out of the secret, strangers. */
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { statSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import net from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import * as zmq from 'zeromq';
import { systemClock, sleep } from '../../../base/clock.ts';
import { reservePort } from '../../../base/testing/reserved-port.ts';
import { UnhurriedClock } from '../../../base/testing/unhurried-clock.ts';
import { describeMessaging } from '../../conformance.ts';
import { MessagingContext } from '../../context.ts';
import { Dealer } from '../../dealer.ts';
import { Msg } from '../../msg.ts';
import { Router } from '../../router.ts';
import { deriveCurveKeys, z85 } from './curve-keys.ts';

const secret = new TextEncoder().encode('secret of the job');
const clock = new UnhurriedClock();
let folder = '';
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'shoal-ipc-'));
});
afterAll(() => rm(folder, { recursive: true }));

/** Routers come back to their ports, which must be free until then. */
const freeUrl = async (): Promise<string> => `tcp://127.0.0.1:${await reservePort()}`;

describeMessaging('tcp', () => ({
  context: (changes) => new MessagingContext({ world: 'tcp-test', secret, ...changes }),
  url: freeUrl,
  deserted: freeUrl,
  rebinds: true,
}));

describeMessaging('tcp without encryption', () => ({
  context: (changes) => new MessagingContext({ world: 'tcp-test', secret, encryption: 'none', ...changes }),
  url: freeUrl,
  deserted: freeUrl,
  rebinds: true,
}));

describeMessaging('ipc', () => {
  let made = 0;
  return {
    context: (changes) => new MessagingContext({ world: 'ipc-test', secret, ...changes }),
    url: () => `ipc://${join(folder, `r${made++}-${randomBytes(4).toString('hex')}`)}`,
    rebinds: true,
  };
});

describeMessaging('ipc without a file', () => {
  let made = 0;
  return {
    context: (changes) => new MessagingContext({ world: 'ipc-test', secret, ...changes }),
    url: () => `ipc://@shoal-${process.pid}-${made++}`,
    rebinds: true,
  };
});

describe('CURVE keys', () => {
  it('are pairs as ZeroMQ makes them, and depend on secret, world and role', () => {
    const keys = deriveCurveKeys(secret, 'w', 'router');
    expect(keys.publicKey).toMatch(/^[!-~]{40}$/);
    const others = [
      deriveCurveKeys(secret, 'w', 'dealer'),
      deriveCurveKeys(secret, 'v', 'router'),
      deriveCurveKeys(Buffer.from('x'), 'w', 'router'),
    ];
    expect(new Set([keys, ...others].map(({ publicKey }) => publicKey)).size).toBe(4);
  });

  it('are written in Z85', () => {
    expect(z85(Buffer.from('864fd26fb559f75b', 'hex'))).toBe('HelloWorld');
  });
});

it('connections that break in their handshake are made again', async () => {
  await using context = new MessagingContext({ world: 'w', secret, clock });
  await using router = new Router(context);
  const port = Number(new URL(await router.bind('tcp://127.0.0.1:*')).port);
  let broken = 0;
  const between = net.createServer((near) => {
    const far = net.connect({ port, host: '127.0.0.1' }).on('error', () => near.destroy());
    near.on('error', () => far.destroy()).on('close', () => far.destroy());
    near.pipe(far).pipe(near);
    if (broken < 4) near.once('data', () => near.resetAndDestroy() && broken++);
  });
  await once(between.listen(0, '127.0.0.1'), 'listening');
  await using dealer = new Dealer(context, { address: 2n });
  await dealer.connect(`tcp://127.0.0.1:${(between.address() as net.AddressInfo).port}`, { timeoutMs: 60_000 });
  expect(broken).toBe(4);
  await dealer.close();
  between.close();
});

describe('strangers', () => {
  const listening = async (router: Router): Promise<string> => router.bind('tcp://127.0.0.1:*');

  it('with another secret are told auth, and members go on', async () => {
    await using inside = new MessagingContext({ world: 'w', secret, clock });
    await using outside = new MessagingContext({ world: 'w', secret: Buffer.from('guess'), clock });
    await using router = new Router(inside);
    const url = await listening(router);
    await using stranger = new Dealer(outside, { address: 1n });
    stranger.send(new Msg(1n, 0n));
    await expect(stranger.connect(url)).rejects.toMatchObject({ code: 'auth', message: expect.stringMatching(/secret/) });
    await using member = new Dealer(inside, { address: 2n });
    await member.connect(url);
    const msg = new Msg(2n, 0n);
    member.send(msg);
    expect((await router.receive()).source).toBe(2n);
    expect(router.ready).toBe(false);
  });

  it('at the port of a router that is down do not end its dealers', async () => {
    await using inside = new MessagingContext({ world: 'w', secret, clock });
    await using outside = new MessagingContext({ world: 'w', secret: Buffer.from('guess'), clock });
    const first = new Router(inside);
    const url = await listening(first);
    await using member = new Dealer(inside, { address: 2n });
    await member.connect(url);
    await first.close();
    let refused = 0;
    const there = new Router(outside, { onPeer: () => refused++ });
    await there.bind(url);
    member.send(new Msg(2n, 0n));
    await sleep(clock, 2000);
    await there.close();
    expect(refused).toBe(0);
    await using second = new Router(inside);
    await second.bind(url);
    expect((await second.receive()).source).toBe(2n);
  });

  it('that have the port of a router that is late are told auth, and do not keep the dealer from it', async () => {
    await using context = new MessagingContext({ world: 'w', secret, clock });
    const ending = net.createServer((socket) => socket.on('error', () => undefined).end());
    const port = await reservePort();
    await once(ending.listen(port, '127.0.0.1'), 'listening');
    await using dealer = new Dealer(context, { address: 2n });
    const url = `tcp://127.0.0.1:${port}`;
    await expect(dealer.connect(url)).rejects.toMatchObject({ code: 'auth', message: expect.stringMatching(/and is it a router\?/) });
    ending.close();
    await using router = new Router(context);
    await router.bind(url);
    await dealer.connect(url);
    expect(router.peers).toEqual([2n]);
  });

  it('that even know the router key, but not the secret, never get through', async () => {
    await using inside = new MessagingContext({ world: 'w', secret, clock });
    await using router = new Router(inside);
    const url = await listening(router);
    const own = zmq.curveKeyPair();
    const impostors = [
      new zmq.Dealer({
        curveServerKey: deriveCurveKeys(secret, 'w', 'router').publicKey,
        curvePublicKey: own.publicKey,
        curveSecretKey: own.secretKey,
        linger: 0,
      }),
      new zmq.Dealer({ linger: 0 }),
      new zmq.Dealer({ plainUsername: 'admin', plainPassword: 'admin', linger: 0 }),
    ];
    const outcomes = impostors.map(
      (socket) =>
        new Promise<string>((resolve) => {
          socket.events.on('handshake', () => resolve('in'));
          for (const event of ['disconnect', 'handshake:error:auth', 'handshake:error:protocol', 'handshake:error:other'] as const) {
            socket.events.on(event, () => resolve('out'));
          }
          socket.connect(url);
        }),
    );
    expect(await Promise.all(outcomes)).toEqual(['out', 'out', 'out']);
    for (const socket of impostors) socket.close();
  });

  it('that send bytes to the port change nothing', async () => {
    await using inside = new MessagingContext({ world: 'w', secret, clock });
    await using router = new Router(inside);
    const url = await listening(router);
    const port = Number(/:(\d+)$/.exec(url)?.[1]);
    for (const bytes of [Buffer.from('GET / HTTP/1.0\r\n\r\n'), randomBytes(5000), Buffer.from('ff00000000000000017f', 'hex')]) {
      const socket = net.connect({ port, host: '127.0.0.1' });
      await new Promise<void>((resolve) => socket.once('connect', () => resolve()));
      const ended = new Promise<void>((resolve) => socket.once('close', () => resolve()));
      socket.on('error', () => undefined);
      socket.resume().end(bytes);
      await Promise.race([ended, sleep(systemClock, 200)]);
      socket.destroy();
    }
    await using member = new Dealer(inside, { address: 2n });
    await member.connect(url);
    member.send(new Msg(2n, 0n));
    expect((await router.receive()).source).toBe(2n);
  });

  it('cannot use an ipc socket of another user', async () => {
    await using inside = new MessagingContext({ world: 'w', secret, clock });
    await using router = new Router(inside);
    const path = join(folder, 'private');
    await router.bind(`ipc://${path}`);
    expect(statSync(path).mode & 0o777).toBe(0o600);
  });

  it('without encryption are kept out by allowing addresses of this host only', async () => {
    await using open = new MessagingContext({ world: 'w', secret, clock, encryption: 'none' });
    await using router = new Router(open);
    await expect(router.bind('tcp://0.0.0.0:*')).rejects.toMatchObject({ code: 'usage' });
    await using dealer = new Dealer(open, { address: 1n });
    await expect(dealer.connect('tcp://10.1.2.3:4')).rejects.toMatchObject({ code: 'usage' });
  });
});

/** A proxy between a dealer and a router that hears everything. */
async function wiretap(url: string): Promise<{ url: string; heard: () => Buffer; close: () => void }> {
  const chunks: Buffer[] = [];
  const sockets: net.Socket[] = [];
  const { port, hostname } = new URL(url);
  const server = net.createServer((near) => {
    const far = net.connect(Number(port), hostname);
    for (const [from, to] of [
      [near, far],
      [far, near],
    ]) {
      sockets.push(from);
      from.on('error', () => to.destroy());
      from.on('data', (chunk: Buffer) => {
        chunks.push(chunk);
        to.write(chunk);
      });
      from.on('close', () => to.destroy());
    }
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const close = (): void => {
    server.close();
    for (const socket of sockets) socket.destroy();
  };
  return { url: `tcp://127.0.0.1:${(server.address() as net.AddressInfo).port}`, heard: () => Buffer.concat(chunks), close };
}

describe('who hears the wire', () => {
  it.each([
    { title: 'cannot read frames, by default', options: {}, readable: false },
    { title: 'can where encryption was switched off', options: { encryption: 'none' as const }, readable: true },
  ])('$title', async ({ options, readable }) => {
    await using context = new MessagingContext({ world: 'w', secret, clock, ...options });
    await using router = new Router(context);
    const tap = await wiretap(await router.bind('tcp://127.0.0.1:*'));
    await using dealer = new Dealer(context, { address: 1n });
    await dealer.connect(tap.url);
    const msg = new Msg(1n, 0n);
    msg.addFrame('a gradient that is nobody else’s business');
    dealer.send(msg);
    expect((await router.receive()).frameStr()).toMatch(/^a gradient/);
    tap.close();
    expect(tap.heard().byteLength).toBeGreaterThan(50);
    expect(tap.heard().includes('a gradient that is')).toBe(readable);
    expect(tap.heard().includes(Buffer.from(secret))).toBe(false);
  });
});

describe('endpoints', () => {
  it('with a wildcard are returned as something to connect to', async () => {
    await using context = new MessagingContext({ world: 'w', secret, clock });
    await using router = new Router(context);
    expect(await router.bind('tcp://127.0.0.1:0')).toMatch(/^tcp:\/\/127\.0\.0\.1:[1-9]\d*$/);
    const url = await router.bind('tcp://0.0.0.0:*');
    expect(url).toMatch(/^tcp:\/\/\d+\.\d+\.\d+\.\d+:\d+$/);
    expect(url).not.toContain('0.0.0.0');
    await using dealer = new Dealer(context, { address: 1n });
    await dealer.connect(url);
    for (const wrong of ['tcp://nowhere', 'tcp://a:b', 'ipc://']) {
      await expect(router.bind(wrong)).rejects.toMatchObject({ code: 'usage' });
    }
  });
});
